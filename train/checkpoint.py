"""Checkpoints: written atomically, read without unpickling objects, and checked against the run that resumes."""

from __future__ import annotations

import os
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gdt.common.errors import UserError, first_line
from gdt.common.files import is_disk_full, require_readable, writing
from gdt.pipeline.shards.index import Statistics
from gdt.train import portable
from gdt.train.locate import PREVIOUS, require_checkpoint, suggest_other
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.settings import CHECKPOINT, LENGTH, Pretrain, differences, from_json, to_json
from gdt.train.trained import Trained
from gdt.train.weights import damaged_part, read_foreign

NAME = CHECKPOINT
DAMAGED = "checkpoint.damaged.pt"
FORMAT = "gdt-pretrain-2"


@dataclass(frozen=True)
class Data:
    """Data of a run."""

    fingerprint: str
    """Fingerprint of the shards."""
    statistics: Statistics
    """Normalisation of the inputs; whoever uses the model needs it."""
    words: str = ""
    """Checksum of captions and word vectors; empty without text."""


def make_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: str, data: Data, steps: int = 0
) -> dict[str, Any]:
    """Content of a checkpoint after `step` of `steps` steps: everything that the next step depends on."""
    return {
        "format": FORMAT, "settings": settings, "data": data.fingerprint, "words": data.words, "step": step,
        "steps": steps,
        "statistics": data.statistics.to_numbers(), "model": model.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state atomically, keeping the previous checkpoint as PREVIOUS. Raises UserError if that fails."""
    try:
        with writing(path) as file:
            torch.save(dict(state), file)
            file.flush()
            if path.is_file():
                _keep_previous(path)
    except OSError as error:
        advice = "free some space" if is_disk_full(error) else "check the disk and the permissions"
        raise UserError(
            f"the checkpoint of step {state['step']} cannot be written to {path.parent} ({error.strerror}); {advice}, "
            "then run again to resume from the previous checkpoint, if any"
        ) from error


def _keep_previous(path: Path) -> None:
    """Rename the newest checkpoint to PREVIOUS, so that there is a checkpoint at every moment."""
    link = path.with_name(PREVIOUS + ".partial")
    try:
        link.unlink(missing_ok=True)
        os.link(path, link)
        link.rename(path.with_name(PREVIOUS))
    except OSError:  # a file system without hard links
        path.rename(path.with_name(PREVIOUS))


def read_newest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The newest intact checkpoint of a run, or None; and a message if a newer one is damaged, or an empty text.

    Raises UserError if all checkpoints are damaged.
    """
    problems = ""
    for name in (NAME, PREVIOUS):
        if not (folder / name).is_file():
            continue
        try:
            return read(folder / name), problems
        except Damaged as damage:
            problems += f"{folder / name} cannot be read as a checkpoint: {damage}; "
    if problems:
        them = "them" if problems.count("cannot be read") > 1 else "it"
        raise UserError(f"{problems}delete {them} to start again, or set --out to another folder")
    return None, ""


def set_aside(folder: Path) -> None:
    """Rename a damaged newest checkpoint, so that it does not become PREVIOUS."""
    if (folder / NAME).is_file():
        (folder / NAME).rename(folder / DAMAGED)


class Damaged(Exception):
    """A file is not an intact checkpoint; the message does not name the file."""


def load_checked(path: Path) -> Any:
    """Load a torch file after verifying its checksums; refuses pickled objects. Raises Damaged."""
    try:
        if (part := damaged_part(path)) is not None:
            raise Damaged(f"checksum mismatch in its part {part}")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, Damaged):
        raise
    except zipfile.BadZipFile as error:
        raise Damaged("it is damaged, truncated or not a torch file") from error
    except OSError as error:
        require_readable(path, error)  # a readable file has damaged bytes that led to a bad offset
        raise Damaged(f"it is damaged or not a torch file ({first_line(error)})") from error
    except Exception as error:  # damaged bytes raise anything
        # torch's message suggests weights_only=False, which would run the file's code
        if named := re.search(r"GLOBAL `?([\w.]+)", str(error)):
            raise Damaged(
                f"it holds a Python object ({named[1]}), which was not loaded; save the state_dict of a model, not the "
                "model"
            ) from error
        raise Damaged("it is damaged or not a torch file") from error


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint, as from `make_state`. Raises Damaged."""
    state = load_checked(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise Damaged(f"it is not a checkpoint of this program (format {FORMAT} expected)")
    return state


def load_model(path: Path) -> Trained:
    """The model of a checkpoint, an exported file (`train.portable`) or external weights (`train.weights`).

    Raises UserError if the file is of another kind or version, or does not fit.
    """
    path = require_checkpoint(path)
    try:
        state = read(path)
    except Damaged as damage:
        if (other := portable.read(path)) is not None or (other := read_foreign(path)) is not None:
            return other
        raise UserError(f"{path} cannot be read as a checkpoint: {damage}; {suggest_other(path)}") from damage
    settings = from_json(state["settings"], str(path))
    model = GDT(settings.network, modalities_of(state["model"]))
    load_weights(model, state["model"], str(path))
    statistics = Statistics.from_numbers(state["statistics"], str(path))
    steps = state.get("steps") or settings.steps  # unknown for older checkpoints of a run in epochs
    return Trained(
        model.eval(), settings, state["step"], statistics, data=state["data"], steps=steps, words=state["words"]
    )


def load_trained(path: Path) -> Trained:
    """`load_model`, with a warning if the run of the model has not finished."""
    trained = load_model(path)
    if trained.step < trained.steps:
        print(
            f"warning: {path} is from step {trained.step} of {trained.steps}: its run has not finished; repeat the "
            "command of the run to resume it",
            file=sys.stderr,
        )
    return trained


class Saver:
    """Writes checkpoints in the background, one at a time; a context manager that waits for the last."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self._write = write
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None:
            self._thread.join()

    def start(self, state: Any) -> None:
        """Write a copy of the state once the previous write is done. Raises the error of a failed write."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(copy_to_cpu(state),), name="checkpoint")
        self._thread.start()

    def _run(self, state: Any) -> None:
        try:
            self._write(state)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of a failed write."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the newest checkpoint is written. Raises the error of a failed write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()


def copy_to_cpu(state: Any) -> Any:
    """A copy of the state with all tensors in CPU memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copy_to_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copy_to_cpu(value) for value in state)
    return state


def require_same_shards(state: Mapping[str, Any], fingerprint: str, run: Path) -> None:
    """Raise UserError if the run in folder `run`, with this state, has other shards."""
    if state["data"] != fingerprint:
        raise UserError(
            f"{run} holds a run on different shards: they were rebuilt, or have different videos or splits; remove "
            f"{run} to train anew, set --out to another folder, or restore the original shards"
        )


def require_same_run(
    state: Mapping[str, Any], settings: Pretrain, data: Data, batches_per_epoch: int, path: Path
) -> None:
    """Raise UserError if `state`, from the checkpoint `path`, has other settings, words or statistics."""
    run, now = path.parent, to_json(settings)
    if state["words"] != data.words:
        raise UserError(
            f"{run} holds a run with different words: the word vectors or captions have changed; set --out to another "
            "folder, or --word2vec to the original file"
        )
    if different := differences(state["settings"], now, ignored=LENGTH):
        raise UserError(
            f"{run} holds a run with different settings ({'; '.join(different)}); "
            "set --out to another folder, or resume with the same settings"
        )
    if state["statistics"] != data.statistics.to_numbers():
        raise UserError(
            f"{run} holds a run with a different normalisation of its inputs: --init {settings.init} has changed; "
            "set --out to another folder, or restore the original file"
        )
    require_same_rates(from_json(state["settings"], str(path)), settings, batches_per_epoch, int(state["step"]), path)


def require_same_rates(before: Pretrain, settings: Pretrain, batches_per_epoch: int, done: int, path: Path) -> None:
    """Raise UserError if the settings `before`, which may differ in length, gave the first `done` steps another lr."""
    then, now = before.schedule(batches_per_epoch), settings.schedule(batches_per_epoch)
    if done > now.steps:
        raise UserError(
            f"{path.parent} has done {done} steps, more than the requested {now.steps}; raise --steps or --epochs, or "
            "set --out to another folder"
        )
    other = next((step for step in range(done) if then.lr(step) != now.lr(step)), None)
    if other is not None:
        raise UserError(
            f"{path.parent} holds a run of {then.steps} steps; with {now.steps}, the learning rate would differ from "
            f"step {other} on, so it cannot be extended. Start one from its weights: --init {path} and another --out; "
            f"or start over: delete {path.parent}"
        )
