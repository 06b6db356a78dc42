"""Entry point of `python -m gdt`."""

from gdt.cli import console

if __name__ == "__main__":
    console()
