"""Replaces Python in make's recipes: prints the command with the options of make's variables."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdt.command import add_make_variables
from gdt.common.errors import exit_with_message


def main() -> None:
    _, module, *arguments = sys.argv[1:]
    if module == "gdt":
        arguments = [arguments[0], *add_make_variables(arguments[0], arguments[1:])]
    print(shlex.join([module, *arguments]))


if __name__ == "__main__":
    exit_with_message(main)
