"""python -m preprocess: videos to shards."""

from __future__ import annotations

import tyro

from pipeline.errors import exit_with_message
from preprocess.stage import Preprocess, describe, run


def main() -> None:
    settings = tyro.cli(Preprocess, prog="python -m preprocess", config=(tyro.conf.OmitArgPrefixes,))
    print(describe(run(settings), settings.shard_folder))


if __name__ == "__main__":
    exit_with_message(main)
