"""The command line of evaluation."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any, Union

import tyro

from eval.settings.ablation import Ablation
from eval.settings.downstream import Downstream
from eval.settings.embed import Embed, Nearest
from eval.settings.export import Export
from eval.settings.factors import Factors
from eval.settings.figures import Figures
from eval.settings.pictures import ShowBatch, ShowTree
from eval.settings.report import Report
from eval.settings.search import Search
from eval.settings.theorem import Theorem
from pipeline import notation, presets
from pipeline.commandline import Options
from train.settings import require_one_name

COMMANDS: dict[str, Options[Any]] = {
    "downstream": Options(Downstream),
    "ablation": Options(Ablation),
    "search": Options(Search),
    "embed": Options(Embed),
    "nearest": Options(Nearest),
    "export": Options(Export),
    "factors": Options(Factors),
    "figures": Options(Figures),
    "report": Options(Report),
    "show-batch": Options(ShowBatch),
    "show-tree": Options(ShowTree),
    "theorem": Options(Theorem),
}


def main() -> None:
    command = settings_of(sys.argv[1:])
    if command is not None:
        print(_run(command))


def settings_of(arguments: list[str]) -> Any:
    """The settings of the command that a command line names; None where it asks for a list, which is printed."""
    require_one_name(arguments)
    subcommands = [Annotated[one.type, tyro.conf.subcommand(name, prefix_name=False)] for name, one in COMMANDS.items()]
    one_of_them: Any = Union[tuple(subcommands)]  # noqa: UP007
    parsed: Any = tyro.cli(one_of_them, prog="python -m eval", args=arguments)
    (command,) = (one.settings(parsed) for one in COMMANDS.values() if isinstance(parsed, one.type))
    if isinstance(command, ShowBatch | ShowTree) and "help" in (command.preset, command.factors):
        known = notation.with_own(command.factors_from) if command.factors_from else notation.TRANSFORMATIONS
        print(presets.listing() if command.preset == "help" else notation.listing(known))
        return None
    return command


def _run(command: Any) -> str:
    """Do it; returns what is to be said. torch and DALI are imported here: they take seconds, which --help need not."""
    if isinstance(command, Downstream):
        from eval.downstream import downstream

        return downstream(command)
    if isinstance(command, Ablation):
        from eval.ablation.runs import ablation

        return ablation(command)
    if isinstance(command, Search):
        from eval.search.study import search

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that trials leave checkpoints
        return search(command)
    if isinstance(command, Embed):
        from eval.embed import embed

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is half done is removed
        return embed(command)
    if isinstance(command, Nearest):
        from eval.nearest import nearest

        return nearest(command)
    if isinstance(command, Export):
        from eval.export import export

        return export(command)
    if isinstance(command, Factors):
        from eval.factors.report import factors

        return factors(command)
    if isinstance(command, Figures):
        from eval.figures.report import figures

        return figures(command)
    if isinstance(command, Report):
        from eval.page.page import report

        return f"the page is {report(command)}"
    if isinstance(command, ShowBatch):
        from eval.show_batch import show_batch

        return f"the picture is {show_batch(command)}"
    if isinstance(command, Theorem):
        from eval.theorem.report import theorem

        return theorem(command)
    from eval.show_tree import show_tree

    text, path = show_tree(command)
    return f"{text}\n\nthe picture is {path}"
