"""python -m preprocess: videos to shards."""

from __future__ import annotations

from pathlib import Path

import tyro

from pipeline.errors import exit_with_message
from pipeline.shards import Index
from preprocess.stage import Preprocess, describe, run


def main() -> None:
    settings = tyro.cli(Preprocess, prog="python -m preprocess", config=(tyro.conf.OmitArgPrefixes,))
    summary = run(settings)
    destination = settings.destination or Path("data/shards") / settings.dataset
    print(describe(summary, destination, Index.open(destination)))


if __name__ == "__main__":
    exit_with_message(main)
