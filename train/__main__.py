"""python -m train {paper,tiny}: pretrain on shards."""

from __future__ import annotations

import os

import tyro

from pipeline.errors import exit_with_message
from train.pretrain import pretrain
from train.settings import SIZES


def main() -> None:
    settings = tyro.extras.overridable_config_cli(SIZES, prog="python -m train")
    path = pretrain(settings)
    if os.environ.get("RANK", "0") == "0":
        print(f"the trained model is in {path}")


if __name__ == "__main__":
    exit_with_message(main)
