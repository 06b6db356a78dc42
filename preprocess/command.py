"""The command line of preprocessing."""

from __future__ import annotations

import tyro

from preprocess.estimate import estimate
from preprocess.stage import Preprocess, run
from preprocess.summary import describe


def main() -> None:
    settings = tyro.cli(Preprocess, prog="python -m preprocess", config=(tyro.conf.OmitArgPrefixes,))
    print(estimate(settings) if settings.dry_run else describe(run(settings)))
