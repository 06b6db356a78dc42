"""The command line of preprocessing."""

from __future__ import annotations

import tyro

from pipeline.commandline import Options
from preprocess.estimate import estimate
from preprocess.stage import Preprocess, run
from preprocess.summary import describe


def main() -> None:
    options = Options(Preprocess)
    settings = options.settings(
        tyro.cli(options.type, prog="python -m preprocess", config=(tyro.conf.OmitArgPrefixes,))
    )
    print(estimate(settings) if settings.dry_run else describe(run(settings)))
