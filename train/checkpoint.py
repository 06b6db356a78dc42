"""Checkpoints: written atomically, checked and read without unpickling objects, refused where they do not fit."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gdt.common.errors import UserError, first_line
from gdt.common.files import partial_of, publish, require_readable
from gdt.pipeline import presets
from gdt.pipeline.shards.index import Index, Statistics
from gdt.train import portable
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.settings import CHECKPOINT, Pretrain, from_json
from gdt.train.weights import Foreign, damaged_part, read_foreign

NAME = CHECKPOINT
PREVIOUS = "checkpoint.previous.pt"
"""The one before, for the case that the newest is damaged."""
DAMAGED = "checkpoint.damaged.pt"
FORMAT = "gdt-pretrain-2"
BEFORE_STATISTICS = "gdt-pretrain-1"
"""Checkpoints without the statistics, and with other names in the heads."""
_HEADS = {"1": "2", "2": "4", "5": "8"}


@dataclass(frozen=True)
class Data:
    """What a run learns from."""

    fingerprint: str
    """Of the shards."""
    statistics: Statistics
    """With which its inputs are normalised, there and wherever the model is used."""
    words: str = ""
    """Digest of the words and of their vectors; empty where words are no modality."""


def save(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: str, data: Data
) -> None:
    """Write everything that the next step depends on, as `write` does."""
    write(path, state_of(model, optimizer, step, settings, data))


def state_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: str, data: Data
) -> dict[str, Any]:
    """Everything that the next step depends on."""
    return {
        "format": FORMAT, "settings": settings, "data": data.fingerprint, "words": data.words, "step": step,
        "statistics": data.statistics.to_numbers(), "model": model.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state, under a temporary name first; the checkpoint before is kept as PREVIOUS.

    Raises UserError where the disk has no room for it; what is there stays.
    """
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            torch.save(dict(state), file)
        if path.is_file():
            _keep(path)
        publish(partial, path)
    except (OSError, RuntimeError) as error:  # RuntimeError is how torch's writer tells of a full disk
        partial.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(
            f"the checkpoint of step {state['step']} cannot be written to {path.parent} ({reason}); see that there is "
            "room, then run the same command again, which goes on from the checkpoint before"
        ) from error


def _keep(path: Path) -> None:
    """Give the newest checkpoint the name of the one before, without a moment in which there is none."""
    link = path.with_name(PREVIOUS + ".partial")
    try:
        link.unlink(missing_ok=True)
        os.link(path, link)
        link.rename(path.with_name(PREVIOUS))
    except OSError:  # a file system without hard links
        path.rename(path.with_name(PREVIOUS))


def read(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint. Raises UserError if it is missing, damaged or not one of ours."""
    path = _existing(path)
    try:
        return _read(path)
    except Damaged as damage:
        raise _unreadable(path, damage) from damage


def _existing(path: Path) -> Path:
    """The file that a path names, in its folder where it is one. Raises UserError where there is none."""
    if path.is_dir():
        path = path / NAME
    if not path.is_file():
        previous = path.with_name(PREVIOUS)
        if previous.is_file() and path.name == NAME:
            raise UserError(f"there is no checkpoint {path}, but the one before it: name {previous}")
        there = sorted(Path("runs").glob(f"*/{NAME}"), key=lambda known: -known.stat().st_mtime)[:3]
        yours = f"one that there is ({', '.join(map(str, there))})" if there else "yours"
        raise UserError(f"there is no checkpoint {path}; {_how_to_make(path)}, or set CKPT to {yours}")
    return path


def _how_to_make(path: Path) -> str:
    """The command whose checkpoint has this path, as it can be typed, where the path is one that runs have."""
    run = path.parent.name if path.parent.parent == Path("runs") else ""
    for preset in sorted(presets.PRESETS, key=len, reverse=True):
        if dataset := re.fullmatch(f"(.+)-{preset}", run):
            words = " WORD2VEC=<file of word vectors>" if "text" in presets.modalities(preset) else ""
            return f"make it with 'make pretrain DATASET={dataset[1]} PRESET={preset}{words}'"
    if dataset := re.fullmatch("(.+)-own", run):
        return f"make it with 'make pretrain DATASET={dataset[1]} FACTORS=\"<its factors>\"'"
    if run:
        return f"'make pretrain' makes runs/<dataset>-<preset>, and the presets are {', '.join(presets.PRESETS)}"
    return "make one with 'make pretrain'"


def _unreadable(path: Path, damage: Damaged) -> UserError:
    previous = path.with_name(PREVIOUS)
    instead = f"name the one before it, {previous}" if previous.is_file() and path.name == NAME else "name another"
    return UserError(f"{path} cannot be read as a checkpoint: {damage}; {instead}")


def read_newest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The newest checkpoint of a run that is whole, None where there is none, and what is wrong with a newer one.

    Raises UserError where there are checkpoints and none is whole.
    """
    wrong = ""
    for name in (NAME, PREVIOUS):
        if not (folder / name).is_file():
            continue
        try:
            return _read(folder / name), wrong
        except Damaged as damage:
            wrong += f"{folder / name} cannot be read as a checkpoint: {damage}; "
    if wrong:
        raise UserError(f"{wrong}delete them to begin anew, or set --out to another folder")
    return None, ""


def set_aside(folder: Path) -> None:
    """Give a damaged newest checkpoint another name, so that it does not become the one before."""
    if (folder / NAME).is_file():
        (folder / NAME).rename(folder / DAMAGED)


class Damaged(Exception):
    """A file is no whole checkpoint; the message says what is wrong, and not which file."""


def contents(path: Path) -> Any:
    """What torch saved, checked, without any object built. Raises Damaged."""
    try:
        if (part := damaged_part(path)) is not None:
            raise Damaged(f"the checksum of its part {part} does not match, it is damaged")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, Damaged):
        raise
    except zipfile.BadZipFile as error:
        raise Damaged("it is damaged or something else (no file of torch's, or not the whole of one)") from error
    except OSError as error:
        require_readable(path, error)  # or strange bytes made the readers ask for strange places
        raise Damaged(f"it is damaged or something else ({first_line(error)})") from error
    except Exception as error:  # whatever strange bytes make the readers raise
        # what torch says of objects is advice to build them, which would run whatever the file's author wrote
        if named := re.search(r"GLOBAL `?([\w.]+)", str(error)):
            raise Damaged(
                f"it holds an object of Python ({named[1]}) where numbers are expected, and nothing of it was run; "
                "save the state_dict of a model, not the model"
            ) from error
        raise Damaged("it is damaged or something else") from error


def _read(path: Path) -> dict[str, Any]:
    state = contents(path)
    if not isinstance(state, dict) or state.get("format") not in (FORMAT, BEFORE_STATISTICS):
        raise Damaged(f"it is not a checkpoint of this program (format {FORMAT} expected)")
    if state["format"] == BEFORE_STATISTICS:
        state["model"] = {_HEAD.sub(_renamed, name): value for name, value in state["model"].items()}
        state["statistics"] = None
    if "words" not in state:  # they came after the shards' fingerprint, which is of 64 digits
        state["data"], state["words"] = state["data"][:64], state["data"][64:]
    return state


_HEAD = re.compile(r"(?<=^mlp_[vat]\.block_forward\.)\d")


def _renamed(number: re.Match[str]) -> str:
    return _HEADS[number[0]]


@dataclass(frozen=True)
class Trained:
    """A model on the CPU and in evaluation mode, with the settings of the run that it is of."""

    model: GDT
    settings: Pretrain
    """The paper's, where the weights are from elsewhere and bring none."""
    step: int
    """Steps it was trained for; 0 where that is not known."""
    statistics: Statistics | None
    """With which its inputs are normalised; None where the checkpoint is too old to say."""
    foreign: Foreign | None = None
    """What was read, where it is no checkpoint of this program."""
    data: str = ""
    """Fingerprint of the shards that it was trained on; empty where that is not known."""

    @property
    def name(self) -> str:
        """Of the composition, or of the kind of weights."""
        return self.foreign.kind if self.foreign else self.settings.factors or self.settings.preset

    def untrained(self) -> Trained:
        """A model of the same sizes and modalities, with the weights that its run began with."""
        torch.manual_seed(0 if self.foreign else self.settings.seed)
        model = GDT(self.model.network, modalities_of(self.model.state_dict())).eval()
        return replace(self, model=model, step=0, data="")

    def normalised(self, index: Index) -> Index:
        """An index whose inputs are normalised as the model has learned it; its own way where nothing else is known."""
        return index if self.statistics is None else replace(index, statistics=self.statistics)


def load_model(path: Path) -> Trained:
    """The trained model of a checkpoint of ours, of one that was exported, or of weights from elsewhere.

    What these may be is told in `train.portable` and `train.weights`.

    Raises UserError if it is neither, of another version, or does not fit.
    """
    found = _found(path)
    if isinstance(found, Foreign):
        return Trained(found.model, found.settings, 0, found.statistics, found)
    settings = from_json(found["settings"], str(path))
    model = GDT(settings.network, modalities_of(found["model"]))
    load_weights(model, found["model"], str(path))
    return Trained(model.eval(), settings, found["step"], _statistics(found), data=str(found.get("data", "")))


def _found(path: Path) -> dict[str, Any] | Foreign:
    """The contents of a checkpoint of ours, also of an exported one, or weights from elsewhere.

    Raises UserError where the file is neither.
    """
    path = _existing(path)
    try:
        return _read(path)
    except Damaged as damage:
        if (other := portable.read(path)) is not None or (other := read_foreign(path)) is not None:
            return other
        raise _unreadable(path, damage) from damage


def _statistics(state: Mapping[str, Any]) -> Statistics | None:
    return None if state["statistics"] is None else Statistics.from_numbers(state["statistics"])
