"""Checkpoints: written atomically, read without unpickling objects, and checked against the run that resumes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from gdt.common.errors import Damaged, UserError
from gdt.common.files import writing
from gdt.common.serialization import to_json
from gdt.pipeline.shards.statistics import Statistics
from gdt.train import portable, weights
from gdt.train.experiment import Experiment, RunData, schedule_of
from gdt.train.models.backbone import load_weights
from gdt.train.models.foreign import recognise
from gdt.train.models.gdt import GDT, modalities_of
from gdt.train.models.given import Makers
from gdt.train.published import fetch
from gdt.train.run import CHECKPOINT, LENGTH, differences, from_json, require_checkpoint
from gdt.train.schedule import Schedule
from gdt.train.settings import Pretrain
from gdt.train.tensors import load_checked
from gdt.train.trained import Trained

_FORMAT = "gdt-pretrain-2"
_USE = "use the checkpoint.pt of a run, or external weights (.pt, .pth, .safetensors)"


def make_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    settings: str,
    data: RunData,
    steps: int = 0,
    per_step: tuple[int, float] | None = None,
    outputs: Mapping[str, list[list[float]]] = {},
) -> dict[str, Any]:
    """Content of a checkpoint after `step` of `steps` steps: all that the next step, or `Trained`, depends on."""
    state: dict[str, Any] = {"format": _FORMAT, "settings": settings}
    state |= {"data": data.fingerprint, "words": data.words_checksum, "factors": data.factors_checksum}
    state |= {"start": data.start, "step": step, "steps": steps, "per_step": per_step, "outputs": dict(outputs)}
    state["statistics"] = data.statistics.to_numbers()
    return state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state; the file is replaced when the new one is complete.

    Raises OSError, and UserError if weights or moments are not finite, since no run could go on from them.
    """
    for part in (state["model"], *state["optimizer"]["state"].values()):
        for name, value in part.items():
            if isinstance(value, torch.Tensor) and not value.isfinite().all():
                raise UserError(f"{name} is not finite after step {state['step']}, so it is not saved; lower --lr")
    with writing(path) as file:
        torch.save(dict(state), file)


def read_run(folder: Path) -> dict[str, Any] | None:
    """The state in the checkpoint of a run; None if there is none. Raises UserError if it is damaged."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        return read(path)
    except Damaged as damage:
        raise UserError(
            f"{path} cannot be read as a checkpoint: {damage}; start again with --overwrite, or set --out to "
            "another folder"
        ) from damage


def settings_of(state: Mapping[str, Any], run: Path) -> Pretrain:
    """The settings of the run in a folder, from its state. Raises UserError if they are of another version."""
    try:
        return from_json(state["settings"], str(run / CHECKPOINT))
    except UserError as error:
        raise UserError(f"{error}, or replace the run with --overwrite") from error


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint, as from `make_state`. Raises Damaged."""
    state = load_checked(path)
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise Damaged(f"it is not a checkpoint of this version ({_FORMAT})")
    return state


def load_model(name: str | Path, given: Makers = MappingProxyType({})) -> Trained:
    """The model of a checkpoint, an exported file (`train.portable`), external weights (`train.weights`), or weights
    by name (`train.published`).

    `given` are the networks of the user's own that it may have been trained with. Raises UserError if the file is of
    another kind or version, or does not fit.
    """
    path = require_checkpoint(fetch(str(name)))
    try:
        content = load_checked(path)
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)  # heads that the file lacks are random, and the same in every call
            return _model_of(content if isinstance(content, Mapping) else {}, path, given)
    except Damaged as damage:
        raise UserError(f"{path} cannot be read as a checkpoint: {damage}; {_USE}") from damage


def _model_of(state: Mapping[str, Any], path: Path, given: Makers) -> Trained:
    form = str(state.get("format", ""))
    if not form.startswith("gdt-"):
        return weights.model_of(state, path, given)
    if form == portable.FORMAT:
        state = portable.state_in(state)
    elif form != _FORMAT:
        raise Damaged(f"it is not one of this version ({_FORMAT})")
    missing = {"settings", "model", "statistics", "step", "data", "steps", "words"} - state.keys()
    if missing:
        raise Damaged(f"it has no {', '.join(sorted(missing))}")
    settings = from_json(state["settings"], str(path))
    outputs = state.get("outputs", {})
    builders = recognise(settings, state["model"], outputs, given, str(path))
    model = GDT(settings.network, modalities_of(state["model"]), builders)
    load_weights(model, state["model"], str(path))
    statistics = Statistics.from_numbers(state["statistics"], str(path))
    per_step = state.get("per_step")
    return Trained(
        model.eval(),
        settings,
        state["step"],
        statistics,
        state.get("origin"),
        fingerprint=state["data"],
        steps=state["steps"],
        words_checksum=state["words"],
        factors_checksum=state.get("factors", ""),
        outputs=outputs,
        builders=builders,
        per_step=tuple(per_step) if per_step else None,
    )


def load_trained(name: str | Path, given: Makers = MappingProxyType({})) -> Trained:
    """`load_model`, with a warning if the run of the model has not finished."""
    trained = load_model(name, given)
    if trained.step < trained.steps:
        print(
            f"warning: {name} is from step {trained.step} of {trained.steps}: its run has not finished; repeat the "
            "command of the run to resume it",
            file=sys.stderr,
        )
    return trained


def require_same_shards(state: Mapping[str, Any], fingerprint: str, run: Path) -> None:
    """Raise UserError if the run in folder `run`, with this state, has other shards."""
    if state["data"] != fingerprint:
        raise UserError(
            f"{run} holds a run on different shards: they were rebuilt, or have different videos or splits; "
            "replace it with --overwrite, set --out to another folder, or restore the original shards"
        )


def require_same_run(state: Mapping[str, Any], experiment: Experiment, path: Path) -> None:
    """Raise UserError if `state`, from the checkpoint `path`, cannot be continued by this run.

    Another length is accepted if it does not change the learning rate of the steps that are done.
    """
    data = experiment.data
    different = differences(state["settings"], to_json(experiment.settings), ignored=LENGTH)
    if state["words"] != data.words_checksum:
        different.append("the word vectors")
    if state.get("factors", "") != data.factors_checksum:
        different.append("the file of --factors-from")
    then = settings_of(state, path.parent)
    same_path = then.init == experiment.settings.init  # which counts only where an earlier version kept no digest
    if state.get("start", data.start if same_path else None) != data.start:
        different.append("the weights of --init")
    elif state["statistics"] != data.statistics.to_numbers():
        different.append("the normalisation of --init")
    planned = schedule_of(then, experiment.tree.batches_per_epoch)
    rates = _other_rates(planned, experiment.schedule, int(state["step"]))
    if rates:
        different.append(f"{rates}; --init {path} starts a new run from its weights")
    if different:
        raise UserError(
            f"{path.parent} holds a run with different settings ({'; '.join(different)}); set --out to another "
            "folder, resume with the same settings, or replace it with --overwrite"
        )


def _other_rates(then: Schedule, now: Schedule, done: int) -> str:
    """How the learning rates of the first `done` steps differ between two lengths of a run; empty if they do not."""
    if done > now.steps:
        return f"{done} steps are done, more than the requested {now.steps}"
    if any(then.lr(step) != now.lr(step) for step in range(done)):
        return f"with {now.steps} instead of {then.steps} steps the learning rates so far would differ"
    return ""
