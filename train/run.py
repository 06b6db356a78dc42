"""The settings of a run as text, in its files and on the command line, and what of them must not change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gdt.common import serialization
from gdt.common.commandline import arguments_of, parse
from gdt.common.errors import UserError, first_line, unknown
from gdt.common.files import write_text
from gdt.common.stores import as_place
from gdt.train.gpu import default_size
from gdt.train.hub import EXPORTED
from gdt.train.models.network import PAPER_NETWORKS, Architecture
from gdt.train.published import PUBLISHED
from gdt.train.settings import NOT_COMPARED, SIZES, Pretrain, RunSettings

CHECKPOINT = "checkpoint.pt"
SETTINGS = "settings.json"
METRICS = "metrics.jsonl"
"""A line per step."""
PROBES = "probe.jsonl"
"""A line per probe."""
VERDICT = "verdict.txt"
"""Whether the finished run has learned, in a sentence."""
WANDB = "wandb.id"
"""The id of the run's curves in Weights & Biases."""
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
        settings = serialization.from_dict(_StoredSettings, json.loads(text))
        return RunSettings.of(settings, factors_from=None, networks=PAPER_NETWORKS)
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds no settings of this version ({error}); use the version that wrote it"
        ) from error


def logged(path: Path) -> list[dict[str, Any]]:
    """The lines of METRICS or PROBES, without one that is not complete; none without the file."""
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def keep_until(path: Path, last: int) -> None:
    """Remove the lines of METRICS or PROBES after step `last`, which a resumed run repeats, and an incomplete one."""
    kept = "".join(json.dumps(row) + "\n" for row in logged(path) if row["step"] <= last)
    if not path.is_file() or path.read_text(errors="replace") != kept:
        write_text(path, kept)


def from_file(path: Path) -> RunSettings:
    """The settings in the file SETTINGS of a run. Raises UserError if it is missing or of another version."""
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
            if isinstance(setting, dict):  # a network of the user's own, which is recognised by what it computes
                setting = {key: entry for key, entry in setting.items() if key != "name"}
            values[f"{name}.{part}".strip(".")] = setting
    kinds = get_type_hints(Pretrain, include_extras=True)
    not_compared = {name for name, kind in kinds.items() if NOT_COMPARED in getattr(kind, "__metadata__", ())}
    return {name: value for name, value in values.items() if name.partition(".")[0] not in not_compared}


def require_checkpoint(path: Path) -> Path:
    """The checkpoint at a path, which may be the folder of a run or an export. Raises UserError if there is none."""
    if path.is_dir():
        exported = (path / EXPORTED).is_file() and not (path / CHECKPOINT).exists()
        path = path / (EXPORTED if exported else CHECKPOINT)
    if not path.is_file():
        raise UserError(
            f"there is no checkpoint {path}; make one with 'gdt pretrain', or give the path of yours, "
            f"hf://owner/name, or a name: {', '.join(PUBLISHED)}"
        )
    return path


def home_of(path: Path) -> Path:
    """The folder of a run, given its checkpoint; any other path stays."""
    return path.parent if path.name == CHECKPOINT else path


def verdict_of(checkpoint: str) -> list[str]:
    """What a finished run has said of its model, if this is one, as a line."""
    place = as_place(checkpoint)
    path = home_of(place) / VERDICT if isinstance(place, Path) else None
    return [f"of the model: {path.read_text().strip()}"] if path and path.is_file() else []


def latest_checkpoint() -> Path:
    """The checkpoint in runs/<run> that was written last. Raises UserError if there is none."""
    paths = sorted(Path("runs").glob(f"*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise UserError("there is no checkpoint in runs; make one with 'gdt pretrain', or set --ckpt")
    print(f"checkpoint: {paths[-1]}, the latest in runs (--ckpt takes another)", flush=True)
    return paths[-1]


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
