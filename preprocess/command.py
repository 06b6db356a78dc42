"""The command line of preprocessing."""

from __future__ import annotations

import sys

import tyro

from pipeline.commandline import Options
from preprocess.estimate import estimate
from preprocess.stage import Preprocess, run
from preprocess.summary import describe


def main() -> None:
    settings = settings_of(sys.argv[1:])
    print(estimate(settings) if settings.dry_run else describe(run(settings)))


def settings_of(arguments: list[str]) -> Preprocess:
    """The settings that a command line gives."""
    options, flat = Options(Preprocess), (tyro.conf.OmitArgPrefixes,)
    return options.settings(tyro.cli(options.type, prog="python -m preprocess", config=flat, args=arguments))
