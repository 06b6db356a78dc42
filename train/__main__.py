"""python -m train {paper,tiny}: pretrain on shards."""

from __future__ import annotations

from pipeline.errors import quiet_until_ready
from pipeline.supervise import supervised


def main() -> None:
    from train.command import main as command  # torch and DALI, which the parent does not need

    command()


def console() -> None:
    quiet_until_ready()
    supervised(main, "the same command goes on from the last checkpoint")


if __name__ == "__main__":
    console()
