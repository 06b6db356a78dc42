"""The settings of a run as text, in its files and on the command line, and what of them must not change."""

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gdt.common import serialization
from gdt.common.commandline import arguments_of, parse
from gdt.common.errors import UserError, first_line, unknown
from gdt.train.gpu import default_size
from gdt.train.models.network import PAPER_NETWORKS, Architecture
from gdt.train.settings import NOT_COMPARED, SIZES, Pretrain, RunSettings

LENGTH = ("epochs", "steps")
"""The length of a run, which affects results only through the learning rate."""


@dataclass(frozen=True)
class _StoredSettings(Pretrain):
    """Settings in a file; earlier versions left defaults open in those of external weights."""

    network: Architecture = field(kw_only=True)


def from_json(text: str, source: str = "this text") -> RunSettings:
    """The settings in JSON, without the Python files that they name: what a file names is never run.

    Needs neither a GPU nor the other files. Raises UserError with `source` and the settings that are missing, unknown
    or out of range.
    """
    try:
        values = json.loads(text)
        if isinstance(values, dict):
            values.pop("networks", None)  # the name in earlier versions
            values["own_networks"] = json.loads(serialization.to_json(PAPER_NETWORKS))
        settings = serialization.from_dict(_StoredSettings, values)
        return RunSettings.of(settings, factors_from=None)
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds no settings of this version ({error}); use the version that wrote it"
        ) from error


def from_file(path: Path) -> RunSettings:
    """The settings in the file SETTINGS_FILE of a run. Raises UserError if it is missing or of another version."""
    try:
        return from_json(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read settings from {path} ({first_line(error)})") from error


def differences(before: str, now: str, ignored: Collection[str] = ()) -> list[str]:
    """Descriptions of the differences that affect results, between two texts of settings."""
    old = decisive(json.loads(before))
    new = decisive(json.loads(now))
    return [
        f"{name} was {old.get(name)}, now {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in ignored
    ]


def decisive(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that affect results, by dotted name, from their dictionary."""
    values: dict[str, Any] = {}
    composition = {"composition": settings["factors"] or settings["preset"]}
    for name, value in (settings | composition).items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, setting in parts.items():
            values[f"{name}.{part}".strip(".")] = setting
    kinds = get_type_hints(Pretrain, include_extras=True)
    not_compared = {name for name, kind in kinds.items() if NOT_COMPARED in getattr(kind, "__metadata__", ())}
    return {name: value for name, value in values.items() if name.partition(".")[0] not in not_compared}


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
