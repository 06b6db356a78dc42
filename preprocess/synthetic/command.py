"""gdt generate: the command line of synthetic data sets."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from gdt.common.commandline import expand_home, gdt_command
from gdt.common.variables import Option, Variables, options_of
from gdt.pipeline.shards.layout import GENERATED
from gdt.preprocess.synthetic import GeneratedSet, generate, generated

COMMANDS = GENERATED
_ARGUMENTS = """

Args:
    destination: Folder of the videos; an incomplete set with the same settings is completed.
    workers: Processes that render and encode; 0: one per core.
    progress: Show a progress bar.
"""


def main(arguments: Sequence[str]) -> None:
    commands = {name: _command(generated(name)) for name in GENERATED}
    tyro.extras.subcommand_cli_from_dict(
        commands, prog="gdt generate", description="Generate a synthetic data set.", args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip


def _command(kind: type[GeneratedSet]) -> Callable[..., None]:
    def command(destination: Path, settings: GeneratedSet = kind(), workers: int = 0, progress: bool = True) -> None:
        folder = expand_home(destination)
        generate(folder, settings, workers, progress)
        following = shlex.join(gdt_command("preprocess", "--dataset", settings.name, "--source", folder))
        print(f"the videos are in {folder}; next:\n  {following}")

    command.__annotations__["settings"] = kind
    command.__doc__ = (kind.__doc__ or "").partition("\n")[0] + _ARGUMENTS
    return command


def options(arguments: Sequence[str]) -> Variables:
    """Make's variables of a set, except SIZE, which is the size of networks."""
    known: dict[str, Option] = {"DESTINATION": Option("--destination", Path), "WORKERS": Option("--workers", int)}
    for name in arguments[:1]:
        known |= options_of(generated(name)) if name in GENERATED else {}
    known.pop("SIZE", None)
    return known
