"""python -m gdt, which is gdt."""

from gdt.command import console

if __name__ == "__main__":
    console()
