"""The commands of `gdt eval`."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union

import tyro

from gdt.common import serialization
from gdt.common.commandline import Options
from gdt.common.variables import Variables, options_of
from gdt.eval.ablation.settings import Ablation
from gdt.eval.embed import Embed
from gdt.eval.export import Export
from gdt.eval.factors.settings import Factors
from gdt.eval.nearest import Nearest
from gdt.eval.page.settings import Report
from gdt.eval.settings import Downstream
from gdt.eval.show_batch import ShowBatch
from gdt.eval.show_tree import ShowTree
from gdt.pipeline import notation, presets
from gdt.pipeline.shards.index import require_index
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import require_checkpoint, require_one_composition


class Command(NamedTuple):
    """A subcommand."""

    settings: type
    run: str
    """module:function that takes the settings and returns the text to print. Imported late, since torch and DALI take
    seconds to import and --help should be fast."""
    message: str = "{0}"
    """Format of the returned value."""
    cleans_up: bool = False
    """Whether it stops its subprocesses and removes temporary files on SIGTERM; others end immediately."""


COMMANDS = {
    "downstream": Command(Downstream, "gdt.eval.downstream:downstream"),
    "ablation": Command(Ablation, "gdt.eval.ablation.runs:ablation"),
    "embed": Command(Embed, "gdt.eval.embed:embed", cleans_up=True),
    "nearest": Command(Nearest, "gdt.eval.nearest:nearest"),
    "export": Command(Export, "gdt.eval.export:export", cleans_up=True),
    "factors": Command(Factors, "gdt.eval.factors.evaluate:factors"),
    "report": Command(Report, "gdt.eval.page.page:report", "report: {0}", cleans_up=True),
    "show-batch": Command(ShowBatch, "gdt.eval.show_batch:show_batch", "image: {0}"),
    "show-tree": Command(ShowTree, "gdt.eval.show_tree:show_tree", "{0[0]}\n\nimage: {0[1]}"),
}


_DESCRIPTION = "Evaluate and compare compositions, extract features, draw batches."


def main(
    arguments: Sequence[str], commands: Mapping[str, Command] = COMMANDS, prog: str = "gdt eval",
    description: str = _DESCRIPTION,
) -> None:  # fmt: skip
    command = settings_of(arguments, commands, prog, description)
    if command is None:
        return
    chosen = next(one for one in commands.values() if isinstance(command, one.settings))
    if chosen.cleans_up:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _require_inputs(command)
    module, _, function = chosen.run.partition(":")
    print(chosen.message.format(getattr(importlib.import_module(module), function)(command)))


def _require_inputs(command: Any) -> None:
    """Raise UserError if a checkpoint or shards are missing. Called before torch is imported."""
    given = getattr(command, "ckpt", None) or ()
    for path in (given,) if isinstance(given, Path) else given:
        require_checkpoint(path)
    dataset, shards = getattr(command, "dataset", ""), getattr(command, "shards", None)
    if dataset or shards:
        require_index(shard_folder(dataset, shards))


def options(arguments: Sequence[str], commands: Mapping[str, Command] = COMMANDS) -> Variables:
    """Make's variables of the command that the arguments begin with, or of all commands."""
    chosen = [commands[name] for name in arguments[:1] if name in commands] or commands.values()
    return {name: option for one in chosen for name, option in options_of(one.settings).items()}


def settings_of(
    arguments: Sequence[str], commands: Mapping[str, Command] = COMMANDS, prog: str = "gdt eval",
    description: str = _DESCRIPTION,
) -> Any:  # fmt: skip
    """Parse the settings of a command, from options or as JSON (`common.serialization`), as subprocesses get them.

    Prints a list and returns None for --preset help and --factors help.
    """
    if len(arguments) == 2 and arguments[0] in commands and arguments[1].startswith("{"):
        return serialization.from_dict(commands[arguments[0]].settings, json.loads(arguments[1]))
    require_one_composition(arguments)
    parsers: dict[str, Options[Any]] = {name: Options(one.settings) for name, one in commands.items()}
    subcommands = [Annotated[one.type, tyro.conf.subcommand(name, prefix_name=False)] for name, one in parsers.items()]
    one_of_them: Any = Union[tuple(subcommands)]  # noqa: UP007
    parsed: Any = tyro.cli(one_of_them, prog=prog, description=description, args=arguments or ["--help"])
    (command,) = (one.settings(parsed) for one in parsers.values() if isinstance(parsed, one.type))
    if isinstance(command, ShowBatch | ShowTree) and "help" in (command.preset, command.factors):
        known = notation.load_factors(command.factors_from) if command.factors_from else notation.TRANSFORMATIONS
        print(presets.listing() if command.preset == "help" else notation.listing(known))
        return None
    return command
