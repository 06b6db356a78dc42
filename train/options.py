"""The settings of a run on the command line."""

import argparse
from collections.abc import Sequence

from gdt.common.commandline import arguments_of, parse
from gdt.common.errors import unknown
from gdt.train.gpu import default_size
from gdt.train.settings import SIZES, Pretrain


def parse_arguments(arguments: Sequence[str]) -> Pretrain:
    """The settings of a command line. Exits like `common.commandline.parse`."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # of what decides the defaults of the others
    early.add_argument("--size", nargs="?")
    early.add_argument("--device", nargs="?")
    given, _ = early.parse_known_args(arguments)
    return parse(Pretrain, "gdt pretrain", arguments, defaults(given.size or "", given.device == "cpu"))


def command_of(settings: Pretrain) -> list[str]:
    """The command line of settings, after `gdt`; the reverse of `parse_arguments`."""
    return ["pretrain", f"--size={settings.size}", *arguments_of(settings, SIZES[settings.size])]


def defaults(size: str = "", on_cpu: bool = False) -> Pretrain:
    """The settings of a size, by default of that of the machine."""
    size = size or default_size(on_cpu)
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    return SIZES[size]
