"""The command line: `gdt <command>`, also as `python -m gdt <command>`.

A command's module is imported only when the command runs, and torch and DALI only when something is computed.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import os
import sys
from typing import NamedTuple

from gdt.common.errors import UserError, exit_with_message, unknown


class Command(NamedTuple):
    """A command. Its module defines `main(arguments)`, and `options(arguments)` for make's variables."""

    module: str
    help: str
    first: str = ""
    """What the first argument is called in errors, if it must be one of `COMMANDS` in the module."""


_CHECKPOINT_OF = "make:"
"""The Makefile passes `make:<dataset>` for the checkpoint that `make pretrain` writes with the same variables."""
COMMANDS = {
    "preprocess": Command("gdt.preprocess.command", "turn videos into shards"),
    "verify": Command("gdt.preprocess.verify", "check shards for damage"),
    "generate": Command("gdt.preprocess.synthetic.files", "generate a synthetic data set"),
    "pretrain": Command("gdt.train.command", "pretrain a model on shards", "size"),
    "eval": Command(
        "gdt.eval.command",
        "evaluate and compare compositions, extract features, draw batches",
        "command",
    ),
}
_HELP = "\n".join([
    "usage: gdt <command> [options]", "", "Pretrain video and audio networks on compositions of transformations.", "",
    "commands:", *(f"  {name:12} {command.help}" for name, command in COMMANDS.items()), "",
    "'gdt <command> --help' lists the options of a command; 'gdt --version' prints the version.",
])  # fmt: skip


def console() -> None:
    """Run the command line."""
    faulthandler.enable()  # says where compiled code crashes
    exit_with_message(_main)


def _main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(_HELP)
        return
    if name == "--version":
        print(f"gdt {importlib.metadata.version('gdt')}")
        return
    if name not in COMMANDS:
        if name in importlib.import_module(COMMANDS["eval"].module).COMMANDS:
            raise UserError(f"unknown command '{name}'; did you mean 'gdt eval {name}'?")
        raise unknown("command", name, COMMANDS)
    _run(name, arguments)


def _run(name: str, arguments: list[str]) -> None:
    arguments = add_make_variables(name, arguments)
    sys.orig_argv[:] = ["gdt", name, *arguments]  # recorded as the command of the run
    module = importlib.import_module(COMMANDS[name].module)
    from gdt.common.commandline import report_mistakes  # imports tyro, which `gdt --help` does not need

    words = ["gdt", name]
    if (kind := COMMANDS[name].first) and arguments and not arguments[0].startswith("-"):
        if arguments[0] not in module.COMMANDS:
            raise unknown(kind, arguments[0], module.COMMANDS)
        words.append(arguments[0])
    with report_mistakes((option.name for option in module.options(arguments).values()), " ".join(words)):
        module.main(arguments)


def add_make_variables(name: str, arguments: list[str]) -> list[str]:
    """The arguments of a command with the options of make's variables, and the name of the data set of --shards.

    Raises UserError like `with_variables`.
    """
    from gdt.common.variables import name_after_shards, with_variables

    def all_variables() -> set[str]:
        return {name for command in COMMANDS.values() for name in importlib.import_module(command.module).options([])}

    options = importlib.import_module(COMMANDS[name].module).options
    arguments = with_variables(arguments, options, all_variables=all_variables)
    if "--shards" in " ".join(arguments):
        arguments = name_after_shards(arguments, options(arguments))
    if not any(word.startswith(_CHECKPOINT_OF) for word in arguments):
        return arguments
    from gdt.train.settings import checkpoint_of

    return [
        str(checkpoint_of(word.removeprefix(_CHECKPOINT_OF), os.environ)) if word.startswith(_CHECKPOINT_OF) else word
        for word in arguments
    ]
