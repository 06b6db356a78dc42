"""The command line of pretraining."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import field, make_dataclass, replace
from typing import Annotated, Any

import tyro

from gdt.common.commandline import Options
from gdt.common.errors import UserError, exit_with_message
from gdt.common.variables import Option, Variables, options_of
from gdt.pipeline import notation, presets
from gdt.train import launch, submit
from gdt.train.launch import ranks, require_meeting
from gdt.train.settings import SIZES, Pretrain, require_one_name


def main(arguments: Sequence[str]) -> None:
    """In as many processes as the job has; where this is one of them, or there is one, here."""
    job, arguments = submit.parsed(arguments)
    status: Any = 0
    try:
        exit_with_message(lambda: _start(job, arguments))
    except SystemExit as end:
        status = end.code
    if "torch" in sys.modules:  # it is imported once there is something to compute, and not for --help
        import torch.distributed as dist

        from gdt.train.distributed import leave_without_teardown

        if dist.is_initialized():
            leave_without_teardown(status)
    sys.exit(status)


def options(_: Sequence[str]) -> Variables:
    return options_of(Pretrain) | options_of(submit.Job) | {"SIZE": Option("", str)}


def _start(job: submit.Job, arguments: Sequence[str]) -> None:
    if job == submit.Job():
        os.environ.update(ranks(os.environ))
    with launch.told_once():
        settings = settings_of(arguments)
        require_meeting(os.environ)
    if settings is None:
        return
    if job.nodes > 1 or job.scheduler or job.sbatch:
        submit.submit(job, settings, arguments)
    elif job.gpus > 1:
        launch.launch(job.gpus, settings, arguments)
    else:
        from gdt.train.pretrain import pretrain

        try:
            pretrain(settings)
        except KeyboardInterrupt:
            if os.environ.get("RANK", "0") != "0":  # the first rank says so
                sys.exit(130)
            raise


def settings_of(arguments: Sequence[str]) -> Pretrain | None:
    """The settings that a command line gives; None where it asks for help, which is printed."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in SIZES:
        raise UserError(f"there is no size '{arguments[0]}'; choose one of {', '.join(SIZES)}")
    require_one_name(arguments)
    options = Options(Pretrain)
    size = tyro.extras.subcommand_type_from_defaults(
        {name: options.of(_with_one_length(base, arguments)) for name, (_, base) in SIZES.items()},
        {name: text for name, (text, _) in SIZES.items()},
    )
    unnamed = tyro.conf.arg(name="")
    # the job's options stand here for --help: `submit.parsed` has taken them from the arguments
    job = ("job", Annotated[submit.Job, unnamed], field(default_factory=submit.Job))
    whole = make_dataclass("Command", [job, ("size", Annotated[size, unnamed])], kw_only=True)
    parsed: Any = tyro.cli(
        whole, prog="gdt pretrain", description="", args=arguments, config=(tyro.conf.AvoidSubcommands,)
    )  # fmt: skip
    settings = options.settings(parsed.size)
    if settings.preset == "help" or settings.factors == "help":
        print(presets.listing() if settings.preset == "help" else notation.listing(settings.transformations))
        return None
    return settings


def _with_one_length(base: Pretrain, arguments: Sequence[str]) -> Pretrain:
    """A size's default epochs give way to --steps on the command line, and its steps to --epochs."""
    given = {argument.split("=")[0] for argument in arguments} & {"--steps", "--epochs"}
    if given == {"--steps"}:
        return replace(base, epochs=0, steps=1)
    if given == {"--epochs"}:
        return replace(base, steps=0, epochs=1)
    return base
