"""The command line of preprocessing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gdt.common.commandline import Options, gdt_command
from gdt.common.errors import as_typed, is_make
from gdt.common.variables import Variables, options_of
from gdt.pipeline.shards.layout import shard_folder
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.summary import Summary, describe

_TARGETS = {"ucf101": "eval-ucf", "hmdb51": "eval-hmdb"}
"""Targets of make that evaluate on a data set."""


def main(arguments: Sequence[str]) -> None:
    settings = settings_of(arguments)
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
    """The command that pretrains on the shards, as it is typed here."""
    folder = settings.shard_folder
    options = {"dataset": folder.name if folder == shard_folder(folder.name) else settings.dataset}
    if folder != shard_folder(options["dataset"]):
        options["shards"] = str(folder)
    if summary.without_sound == summary.kept:
        options["preset"] = "d"
    if is_make():
        return " ".join(["make pretrain", *(f"{name.upper()}={shlex.quote(v)}" for name, v in options.items())])
    return shlex.join(gdt_command("pretrain", *(w for name, v in options.items() for w in (f"--{name}", v))))


def _evaluation(settings: Preprocess) -> str:
    if is_make() and settings.dataset in _TARGETS:
        return f"make {_TARGETS[settings.dataset]} CKPT=<checkpoint>"
    shards = ("--shards", settings.destination) if settings.destination else ()
    command = gdt_command("eval", "downstream", "--dataset", settings.dataset, *shards)
    return f"{shlex.join(command)} --ckpt <checkpoint>"


def settings_of(arguments: Sequence[str]) -> Preprocess:
    """The settings of a command line."""
    return Options(Preprocess).parse("gdt preprocess", arguments)
