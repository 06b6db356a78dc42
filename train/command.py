"""The command line of pretraining."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import tyro

from pipeline import notation, presets
from pipeline.commandline import Options
from pipeline.errors import UserError, exit_with_message
from train.launchers import ranks, require_meeting
from train.local import told_once
from train.settings import SIZES, Pretrain, require_one_name


def main() -> None:
    status: Any = 0
    try:
        exit_with_message(_pretrain)
    except SystemExit as end:
        status = end.code
    if "torch" in sys.modules:  # it is imported once there is something to compute, and not for --help
        import torch.distributed as dist

        from train.run import leave_without_teardown

        if dist.is_initialized():
            leave_without_teardown(status)
    sys.exit(status)


def _pretrain() -> None:
    os.environ.update(ranks(os.environ))
    with told_once():
        settings = settings_of(sys.argv[1:])
        require_meeting(os.environ)
    if settings is None:
        return
    try:
        from train.pretrain import pretrain

        pretrain(settings)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") != "0":  # the first rank says so
            sys.exit(130)
        raise


def settings_of(arguments: list[str]) -> Pretrain | None:
    """The settings that a command line gives; None where it asks for help, which is printed."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in SIZES:
        raise UserError(f"there is no size '{arguments[0]}'; choose one of {', '.join(SIZES)}")
    require_one_name(arguments)
    sizes = {name: (text, _with_one_length(base, arguments)) for name, (text, base) in SIZES.items()}
    options = Options(Pretrain)
    defaults = {name: (text, options.of(base)) for name, (text, base) in sizes.items()}
    settings = options.settings(tyro.extras.overridable_config_cli(defaults, prog="python -m train", args=arguments))
    if settings.preset == "help" or settings.factors == "help":
        print(presets.listing() if settings.preset == "help" else notation.listing(settings.transformations))
        return None
    return settings


def _with_one_length(base: Pretrain, arguments: list[str]) -> Pretrain:
    """A size's default epochs give way to --steps on the command line, and its steps to --epochs."""
    given = {argument.split("=")[0] for argument in arguments} & {"--steps", "--epochs"}
    if given == {"--steps"}:
        return replace(base, epochs=0, steps=1)
    if given == {"--epochs"}:
        return replace(base, steps=0, epochs=1)
    return base
