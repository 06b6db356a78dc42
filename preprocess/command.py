"""The command line of preprocessing."""

from __future__ import annotations

from collections.abc import Sequence

from gdt.common.commandline import Options
from gdt.common.variables import Variables, options_of
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.summary import describe


def main(arguments: Sequence[str]) -> None:
    settings = settings_of(arguments)
    if settings.dry_run:
        from gdt.preprocess.estimate import estimate

        print(estimate(settings))
    else:
        print(describe(run(settings)))


def options(_: Sequence[str]) -> Variables:
    return options_of(Preprocess, prefixed=False)


def settings_of(arguments: Sequence[str]) -> Preprocess:
    """The settings of a command line."""
    return Options(Preprocess).parse("gdt preprocess", arguments)
