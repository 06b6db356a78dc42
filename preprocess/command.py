"""The command line of preprocessing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from gdt.common.commandline import Options, gdt_command
from gdt.common.errors import as_typed, is_make
from gdt.common.variables import Variables, options_of
from gdt.pipeline.shards.layout import shard_folder
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.summary import Summary, describe

_TARGETS = {"ucf101": "eval-ucf", "hmdb51": "eval-hmdb"}
"""Make targets that evaluate on a data set."""


def main(arguments: Sequence[str]) -> None:
    settings = Options(Preprocess).parse("gdt preprocess", arguments)
    if settings.dry_run:
        from gdt.preprocess.estimate import estimate

        print(estimate(settings))
    else:
        summary = run(settings)
        print(as_typed(describe(summary)))
        print(f"next: {_next_command(settings, summary)}")
        if any(summary.index.folds):
            print("or, to evaluate pretrained models by the official folds: " + _evaluation(settings))


def options(_: Sequence[str]) -> Variables:
    return options_of(Preprocess, prefixed=False)


def _next_command(settings: Preprocess, summary: Summary) -> str:
    """The command that pretrains on the shards, for make or the shell."""
    folder = settings.shard_folder
    usual = folder == shard_folder(folder.name)
    options = {"dataset": folder.name} if usual else {"shards": str(folder)}  # also names the data set
    if summary.without_sound == summary.kept:
        options["preset"] = "d"
    return _typed("pretrain", ("pretrain",), options)


def _evaluation(settings: Preprocess) -> str:
    """The command that evaluates a checkpoint on the data set."""
    target = _TARGETS.get(settings.dataset, "eval")
    options = {} if is_make() and target != "eval" else {"dataset": settings.dataset}
    if (folder := settings.shard_folder) != shard_folder(settings.dataset):
        options["shards"] = str(folder)
    return _typed(target, ("eval", "downstream"), options) + (" CKPT=" if is_make() else " --ckpt ") + "<checkpoint>"


def _typed(target: str, command: Sequence[str], options: Mapping[str, str]) -> str:
    """A make target with variables if make runs this command, else a gdt command with options."""
    if is_make():
        return " ".join([f"make {target}", *(f"{name.upper()}={shlex.quote(v)}" for name, v in options.items())])
    return shlex.join(gdt_command(*command, *(w for name, v in options.items() for w in (f"--{name}", v))))
