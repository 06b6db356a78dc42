"""The command line: `gdt <command>`, also as `python -m gdt <command>`.

Commands are imported once their name is known, and torch and DALI once there is something to compute.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import NamedTuple

from gdt.common.errors import UserError, exit_with_message, quiet_until_ready
from gdt.common.supervise import supervise


class Command(NamedTuple):
    module: str
    """Has `main(arguments)`, and `options(arguments)` for make's variables."""
    says: str
    after_crash: str = ""
    """What to do after a crash of compiled code, for commands that use it; they run below a parent that says so."""


_TRAINED = "make:"
"""In the Makefile, followed by a data set: the checkpoint that `make pretrain` with the same variables has written."""
_AGAIN = "run the same command again"
COMMANDS = {
    "preprocess": Command("gdt.preprocess.command", "videos to shards"),
    "verify": Command("gdt.preprocess.verify", "check every shard"),
    "generate": Command("gdt.preprocess.synthetic.command", "make a generated data set"),
    "pretrain": Command("gdt.train.command", "shards to a checkpoint", "the same command goes on from the last "
                        "checkpoint"),
    "eval": Command("gdt.eval.command", "models by the paper's protocols, features, tables, pictures", _AGAIN),
    "study": Command("gdt.studies.command", "the paper's theorem and figures", _AGAIN),
}  # fmt: skip


def console() -> None:
    """What `gdt` does."""
    quiet_until_ready()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("\n".join(["usage: gdt <command> [options]", ""]
                        + [f"  gdt {name:12} {command.says}" for name, command in COMMANDS.items()]
                        + ["", "gdt <command> --help shows its options"]))  # fmt: skip
        return
    if name not in COMMANDS:
        exit_with_message(lambda: _unknown(name))
    command = COMMANDS[name]

    def run() -> None:
        exit_with_message(lambda: _run(name, arguments))

    if command.after_crash:
        supervise(run, command.after_crash)
    else:
        run()


def _run(name: str, arguments: list[str]) -> None:
    arguments = add_make_variables(name, arguments)
    sys.orig_argv[:] = ["gdt", name, *arguments]  # what a run says that it was started by
    importlib.import_module(COMMANDS[name].module).main(arguments)


def add_make_variables(name: str, arguments: list[str]) -> list[str]:
    """The arguments of a command with those that make's variables stand for. Raises UserError as `with_variables`."""
    from gdt.common.variables import with_variables

    def anywhere() -> set[str]:
        return {name for command in COMMANDS.values() for name in importlib.import_module(command.module).options([])}

    arguments = with_variables(arguments, importlib.import_module(COMMANDS[name].module).options, anywhere=anywhere)
    if any(word.startswith(_TRAINED) for word in arguments):
        from gdt.train.settings import checkpoint_of

        return [
            str(checkpoint_of(word.removeprefix(_TRAINED), os.environ)) if word.startswith(_TRAINED) else word
            for word in arguments
        ]
    return arguments


def _unknown(name: str) -> None:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    raise UserError(f"there is no command '{name}'; " + (f"write {near[0]}" if near else "'gdt --help' lists them"))
