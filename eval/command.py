"""The command line of evaluation."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from eval.ablation import Ablation, ablation
from eval.downstream import downstream
from eval.embed import Embed, embed
from eval.export import Export, export
from eval.nearest import Nearest, nearest
from eval.settings import Downstream
from eval.show_batch import ShowBatch, show_batch
from eval.show_tree import ShowTree, show_tree
from pipeline import notation, presets
from train.settings import require_one_name

Command = (
    Annotated[Downstream, tyro.conf.subcommand("downstream")]
    | Annotated[Ablation, tyro.conf.subcommand("ablation")]
    | Annotated[Embed, tyro.conf.subcommand("embed")]
    | Annotated[Nearest, tyro.conf.subcommand("nearest")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[ShowBatch, tyro.conf.subcommand("show-batch")]
    | Annotated[ShowTree, tyro.conf.subcommand("show-tree")]
)


def main() -> None:
    require_one_name(sys.argv[1:])
    command: Downstream | Ablation | Embed | Nearest | Export | ShowBatch | ShowTree = tyro.cli(
        Command, prog="python -m eval"
    )
    if isinstance(command, ShowBatch | ShowTree) and "help" in (command.preset, command.factors):
        known = notation.with_own(command.factors_from) if command.factors_from else notation.TRANSFORMATIONS
        print(presets.listing() if command.preset == "help" else notation.listing(known))
    elif isinstance(command, Downstream):
        print(downstream(command))
    elif isinstance(command, Ablation):
        print(ablation(command))
    elif isinstance(command, Embed):
        print(embed(command))
    elif isinstance(command, Nearest):
        print(nearest(command))
    elif isinstance(command, Export):
        print(export(command))
    elif isinstance(command, ShowBatch):
        print(f"the picture is {show_batch(command)}")
    else:
        text, path = show_tree(command)
        print(f"{text}\n\nthe picture is {path}")
