"""The command line that makes generated data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from gdt.common.variables import Variables
from gdt.pipeline.shards.layout import GENERATED
from gdt.preprocess.synthetic import GeneratedSet, generate, generated


def main(arguments: Sequence[str]) -> None:
    commands = {name: _command(generated(name)) for name in GENERATED}
    tyro.extras.subcommand_cli_from_dict(commands, prog="gdt generate", args=arguments,
                                         config=(tyro.conf.OmitArgPrefixes,))  # fmt: skip


def _command(kind: type[GeneratedSet]) -> Callable[..., None]:
    def command(
        destination: Path, settings: GeneratedSet = kind(), workers: int | None = None, progress: bool = True
    ) -> None:
        generate(destination, settings, workers, progress)

    command.__annotations__["settings"] = kind
    command.__doc__ = generate.__doc__
    return command


def options(_: Sequence[str]) -> Variables:
    return {}
