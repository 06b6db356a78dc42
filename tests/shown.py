"""In the place of Python in a recipe of make: print the command with the options that the variables stand for."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdt.command import COMMANDS, _variables
from gdt.common.errors import exit_with_message
from gdt.common.variables import with_variables


def main() -> None:
    _, module, *arguments = sys.argv[1:]
    if module == "gdt":
        name, *arguments = arguments
        arguments = [
            name,
            *with_variables(arguments, importlib.import_module(COMMANDS[name].module).options, anywhere=_variables),
        ]
    print(shlex.join([module, *arguments]))


if __name__ == "__main__":
    exit_with_message(main)
