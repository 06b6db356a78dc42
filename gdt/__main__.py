"""python -m gdt: the command gdt."""

from gdt.command import console

if __name__ == "__main__":
    console()
