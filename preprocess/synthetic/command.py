"""The command line that makes generated data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro

from gdt.preprocess.synthetic import hard, standard

SETS: dict[str, Callable[..., None]] = {"synthetic": standard.generate, "synthetic-hard": hard.generate}


def main(arguments: Sequence[str]) -> None:
    tyro.extras.subcommand_cli_from_dict(SETS, prog="gdt generate", args=arguments, config=(tyro.conf.OmitArgPrefixes,))


def options(_: Sequence[str]) -> Mapping[str, Any]:
    return {}
