"""The command line of evaluation."""

from __future__ import annotations

from typing import Annotated

import tyro

from eval.ablation import Ablation, ablation
from eval.frozen import Frozen, frozen, table
from eval.show_batch import ShowBatch, show_batch

Command = (
    Annotated[Frozen, tyro.conf.subcommand("frozen")]
    | Annotated[Ablation, tyro.conf.subcommand("ablation")]
    | Annotated[ShowBatch, tyro.conf.subcommand("show-batch")]
)


def main() -> None:
    command: Frozen | Ablation | ShowBatch = tyro.cli(Command, prog="python -m eval")
    if isinstance(command, Frozen):
        result = frozen(command)
        print(table([result], [result["preset"]]))
        print(f"numbers: {result['written']} (checkpoint {result['checkpoint']}, step {result['step']})")
    elif isinstance(command, Ablation):
        print(ablation(command))
    else:
        print(f"the picture is {show_batch(command)}")
