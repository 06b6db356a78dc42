"""Entry point of `python -m gdt`."""

from gdt.command import console

if __name__ == "__main__":
    console()
