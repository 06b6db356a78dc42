"""The command line of pretraining."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import field, make_dataclass, replace
from pkgutil import resolve_name
from typing import Annotated, Any, get_type_hints

import tyro

from gdt.common.commandline import Options
from gdt.common.errors import UserError, exit_with_message
from gdt.common.gpu import default_size, driver
from gdt.common.variables import Option, Variables, options_of
from gdt.pipeline import notation, presets
from gdt.pipeline.shards.index import Index
from gdt.train.models.network import BACKBONES, VIDEO_OPTIONS, Network
from gdt.train.settings import SIZES, Pretrain, require_one_composition

COMMANDS = SIZES


def main(arguments: Sequence[str]) -> None:
    """Pretrain, as one process or as a rank that torchrun started."""
    status: Any = 0
    try:
        exit_with_message(lambda: _start(arguments))
    except SystemExit as end:
        status = end.code
    if "torch" in sys.modules:  # --help does not import it
        import torch.distributed as dist

        from gdt.train.distributed import leave_without_teardown

        if dist.is_initialized():
            leave_without_teardown(status)
    sys.exit(status)


def options(_: Sequence[str]) -> Variables:
    return options_of(Pretrain) | {"SIZE": Option("", str)}


def _start(arguments: Sequence[str]) -> None:
    """Pretrain; rank 0 reports an error that all ranks have: torchrun ends the others while they wait."""
    first = os.environ.get("RANK", "0") == "0"
    try:
        with contextlib.nullcontext() if first else contextlib.redirect_stderr(io.StringIO()):  # tyro prints its errors
            settings = settings_of(with_size(arguments))
            if settings is not None and "RANK" not in os.environ:
                _require_data(settings)
        if settings is not None:
            from gdt.train.pretrain import pretrain

            pretrain(settings)
    except (UserError, SystemExit) as error:
        if not first and getattr(error, "code", 2) == 2:
            time.sleep(10.0)
        raise
    except KeyboardInterrupt:
        if not first:
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
    whole = make_dataclass("Command", [("size", Annotated[size, tyro.conf.arg(name="")], default)], kw_only=True)
    arguments = ["--help" if word == HELP_ALL else word for word in arguments]
    parsed: Any = tyro.cli(whole, prog="gdt pretrain", description=_DESCRIPTION, args=arguments)
    settings = options.settings(parsed.size)
    if settings.preset == "help" or settings.factors == "help":
        print(presets.listing() if settings.preset == "help" else notation.listing(settings.transformations))
        return None
    _require_network_options_used(settings.network, arguments)
    return settings


HELP_ALL = "--help-all"
_DESCRIPTION = (
    "Pretrain a model on shards. Without a size: paper if there is a GPU, else tiny.\n"
    f"'gdt pretrain tiny --help' lists the common options of tiny, {HELP_ALL} all of them."
)
_COMMON = ("main", "optimization", "data", "probe")
"""Groups of options that --help shows."""


def _for_help(defaults: Any, shown: Collection[str] | None) -> Any:
    """Hide the groups of options that are not in `shown`."""
    types = get_type_hints(type(defaults), include_extras=True)
    members: list[Any] = [
        (name, types[name] if shown is None or name in shown else Annotated[types[name], tyro.conf.Suppress],
         field(default=value))
        for name, value in vars(defaults).items()
    ]  # fmt: skip
    return make_dataclass("Size", members, frozen=True, kw_only=True)()


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
