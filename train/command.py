"""The command line of pretraining."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import field, make_dataclass, replace
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import tyro

from gdt.common.commandline import Options
from gdt.common.errors import UserError, exit_with_message
from gdt.common.gpu import default_size, driver
from gdt.common.variables import Option, Variables, options_of
from gdt.pipeline import notation, presets
from gdt.pipeline.shards.index import Index
from gdt.train import launch, submit
from gdt.train.launch import rank_variables, require_master_address
from gdt.train.models.network import BACKBONES, VIDEO_OPTIONS, Network
from gdt.train.settings import SIZES, Pretrain, require_one_composition

COMMANDS = SIZES


def main(arguments: Sequence[str]) -> None:
    """Pretrain, in this process or in the processes of the job."""
    job, arguments = submit.parse_job(arguments)
    status: Any = 0
    try:
        exit_with_message(lambda: _start(job, arguments))
    except SystemExit as end:
        status = end.code
    if "torch" in sys.modules:  # --help does not import it
        import torch.distributed as dist

        from gdt.train.distributed import leave_without_teardown

        if dist.is_initialized():
            leave_without_teardown(status)
    sys.exit(status)


def options(_: Sequence[str]) -> Variables:
    return options_of(Pretrain) | options_of(submit.Job) | {"SIZE": Option("", str)}


def _start(job: submit.Job, arguments: Sequence[str]) -> None:
    arguments = with_size(arguments)
    if job == submit.Job():
        os.environ.update(rank_variables(os.environ))
    with launch.silence_other_ranks():
        settings = settings_of(arguments)
        require_master_address(os.environ)
        submitted = job.nodes > 1 or bool(job.scheduler or job.sbatch)  # `submit` checks the data after its options
        if settings is not None and "RANK" not in os.environ and not submitted:
            _require_data(settings)
    if settings is None:
        return
    if submitted:
        submit.submit(job, settings, arguments)
    elif job.gpus > 1:
        launch.launch(job.gpus, settings, arguments)
    else:
        from gdt.train.pretrain import pretrain

        try:
            pretrain(settings)
        except KeyboardInterrupt:
            if os.environ.get("RANK", "0") != "0":  # rank 0 prints it
                sys.exit(130)
            raise


def _require_data(settings: Pretrain) -> None:
    """Raise UserError if the composition is invalid, or the shards are missing or do not suit it.

    The run checks this, too, but only after seconds of imports.
    """
    _ = settings.composition  # raises UserError
    index = Index.open(settings.shard_folder)
    notes: list[str] = []
    try:
        settings.with_batch_size(index).tree(index, notes.append)
    except UserError:
        print(*notes, sep="\n", end="\n" * len(notes))  # such as the number of videos that are too short
        raise


def with_size(arguments: Sequence[str]) -> list[str]:
    """Insert the default size if the arguments have none and do not ask for help."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", HELP_ALL)):
        return [default_size(arguments), *arguments]
    return list(arguments)


def settings_of(arguments: Sequence[str]) -> Pretrain | None:
    """The settings of a command line; with --preset help or --factors help, prints the list and returns None."""
    require_one_composition(arguments)
    options = Options(Pretrain)
    shown = None if HELP_ALL in arguments or not {"-h", "--help"} & set(arguments) else _COMMON
    sizes = {
        name: _for_help(options.defaults(_with_one_length(base, arguments)), shown) for name, (_, base) in SIZES.items()
    }
    more = f"; {HELP_ALL} lists more options" if shown and arguments[0] in SIZES else ""
    texts = {name: text + more for name, (text, _) in SIZES.items()}
    size = tyro.extras.subcommand_type_from_defaults(sizes, texts)
    default = field(default=sizes["paper" if driver() else "tiny"])  # only --help comes without a size
    whole = make_dataclass("Command", [_JOB, ("size", Annotated[size, tyro.conf.arg(name="")], default)], kw_only=True)
    arguments = ["--help" if word == HELP_ALL else word for word in arguments]
    parsed: Any = tyro.cli(whole, prog="gdt pretrain", description=_DESCRIPTION, args=arguments)
    settings = options.settings(SimpleNamespace(**{k: v for k, v in vars(parsed.size).items() if k != "job"}))
    if settings.preset == "help" or settings.factors == "help":
        print(presets.listing() if settings.preset == "help" else notation.listing(settings.transformations))
        return None
    _require_network_options_used(settings.network, arguments)
    return settings


# for --help only, since `submit.parse_job` has removed the options of the job from the arguments
_MACHINES = Options(submit.Job).type
_JOB = ("job", Annotated[_MACHINES, tyro.conf.arg(name="")], field(default_factory=_MACHINES))
HELP_ALL = "--help-all"
_DESCRIPTION = (
    "Pretrain a model on shards. Without a size: paper if there is a GPU, else tiny.\n"
    f"'gdt pretrain tiny --help' lists the common options of tiny, {HELP_ALL} all of them."
)
_COMMON = ("main", "optimization", "data", "probe")
"""Groups of options that --help shows."""


def _for_help(defaults: Any, shown: Collection[str] | None) -> Any:
    """Insert the options of the job after the first group, and hide the groups that are not in `shown`."""
    types = get_type_hints(type(defaults), include_extras=True)
    members: list[Any] = [
        (name, types[name] if shown is None or name in shown else Annotated[types[name], tyro.conf.Suppress],
         field(default=value))
        for name, value in vars(defaults).items()
    ]  # fmt: skip
    return make_dataclass("Size", [members[0], _JOB, *members[1:]], frozen=True, kw_only=True)()


def _require_network_options_used(network: Network, arguments: Sequence[str]) -> None:
    """Raise UserError if the command line sets an option of another video network."""
    typed = {word.split("=")[0].replace("--no-", "--").replace("-", "_") for word in arguments if word.startswith("--")}
    names = [name for name in VIDEO_OPTIONS if {f"__network.{name}", f"__network.no_{name}"} & typed]
    if not names or network.backbone == Network.backbone:
        return
    used = resolve_name(BACKBONES[network.backbone]).options
    if unused := [name for name in names if name not in used]:
        raise UserError(
            f"--network.{unused[0].replace('_', '-')} has no effect on the video network "
            f"'{network.backbone}'; leave it out"
        )


def _with_one_length(base: Pretrain, arguments: Sequence[str]) -> Pretrain:
    """Drop the default epochs if --steps is given, and the default steps if --epochs is given."""
    given = {argument.split("=")[0] for argument in arguments} & {"--steps", "--epochs"}
    if given == {"--steps"}:
        return replace(base, epochs=0, steps=1)
    if given == {"--epochs"}:
        return replace(base, steps=0, epochs=1)
    return base
