"""Checkpoints: written atomically, read without unpickling objects, and checked against the run that resumes."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from gdt.common.errors import Damaged, UserError
from gdt.common.files import writing
from gdt.common.serialization import to_json
from gdt.train import portable, weights
from gdt.train.experiment import Experiment, schedule_of
from gdt.train.models.backbone import load_weights
from gdt.train.models.foreign import chosen
from gdt.train.models.gdt import GDT, modalities_of
from gdt.train.models.given import Makers
from gdt.train.published import fetch
from gdt.train.record import TrainingRecord, require_keys
from gdt.train.run import CHECKPOINT, require_checkpoint
from gdt.train.schedule import Schedule
from gdt.train.settings_text import LENGTH, differences
from gdt.train.tensors import load_checked
from gdt.train.trained import Trained

_FORMAT = "gdt-pretrain-2"
_USE = "use the checkpoint.pt of a run, or external weights (.pt, .pth, .safetensors)"


class RunState(NamedTuple):
    """All that the next step of a run, or `Trained`, depends on."""

    record: TrainingRecord
    weights: Mapping[str, Any]
    optimizer: Mapping[str, Any]


def write(path: Path, state: RunState) -> None:
    """Write a state; the file is replaced when the new one is complete.

    Raises OSError, and UserError if weights or moments are not finite, since no run could go on from them.
    """
    for part in (state.weights, *state.optimizer["state"].values()):
        for name, value in part.items():
            if isinstance(value, torch.Tensor) and not value.isfinite().all():
                raise UserError(f"{name} is not finite after step {state.record.step}, so it is not saved; lower --lr")
    content = {"format": _FORMAT, **state.record.to_plain()}
    content |= {"model": state.weights, "optimizer": state.optimizer}
    with writing(path) as file:
        torch.save(content, file)


def read_run(folder: Path) -> RunState | None:
    """The state in the checkpoint of a run; None if there is none.

    Raises UserError if it is damaged, or its settings are of another version.
    """
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
    except UserError as error:
        raise UserError(f"{error}, or replace the run with --overwrite") from error


def read(path: Path) -> RunState:
    """The state in a checkpoint. Raises Damaged, and UserError if its settings are of another version."""
    content = load_checked(path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise Damaged(f"it is not a checkpoint of this version ({_FORMAT})")
    require_keys(content, "model", "optimizer")
    return RunState(TrainingRecord.from_plain(content, str(path)), content["model"], content["optimizer"])


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


def _model_of(content: Mapping[str, Any], path: Path, given: Makers) -> Trained:
    form = str(content.get("format", ""))
    if not form.startswith("gdt-"):
        return weights.model_of(content, path, given)
    if form not in (portable.FORMAT, _FORMAT):
        raise Damaged(f"it is not one of this version ({_FORMAT})")
    record_in = portable.record_in if form == portable.FORMAT else TrainingRecord.from_plain
    record = record_in(content, str(path))
    require_keys(content, "model")
    network = record.settings.network
    modalities = modalities_of(content["model"])
    builders = chosen(network, modalities, given, str(path))
    model = GDT(network, modalities, builders)
    load_weights(model, content["model"], str(path))
    return Trained(model.eval(), record, builders)


def load_trained(name: str | Path, given: Makers = MappingProxyType({})) -> Trained:
    """`load_model`, with warnings if a given network has no effect, or if the run of the model has not finished."""
    trained = load_model(name, given)
    for modality in sorted(given.keys() - trained.model.network.own.keys()):
        print(
            f"warning: --{modality}-network has no effect on {name}, which was not trained with one of your own",
            file=sys.stderr,
        )
    steps = trained.record.steps
    if trained.step < steps:
        print(
            f"warning: {name} is from step {trained.step} of {steps}: its run has not finished; repeat the "
            "command of the run to resume it",
            file=sys.stderr,
        )
    return trained


def require_same_shards(record: TrainingRecord, fingerprint: str, run: Path) -> None:
    """Raise UserError if the run in folder `run`, with this record, has other shards."""
    if record.data.fingerprint != fingerprint:
        raise UserError(
            f"{run} holds a run on different shards: they were rebuilt, or have different videos or splits; "
            "replace it with --overwrite, set --out to another folder, or restore the original shards"
        )


def require_same_run(then: TrainingRecord, experiment: Experiment, path: Path) -> None:
    """Raise UserError if a run with the record `then`, from the checkpoint `path`, cannot be continued by this run.

    Another length is accepted if it does not change the learning rate of the steps that are done.
    """
    data = experiment.data
    different = differences(to_json(then.settings), to_json(experiment.settings), ignored=LENGTH)
    if then.data.words_checksum != data.words_checksum:
        different.append("the word vectors")
    if then.data.factors_checksum != data.factors_checksum:
        different.append("the file of --factors-from")
    same_path = then.settings.init == experiment.settings.init
    same_start = same_path if then.data.start_digest is None else then.data.start_digest == data.start_digest
    if not same_start:
        different.append("the weights of --init")
    elif then.statistics.to_numbers() != experiment.inputs.statistics.to_numbers():
        different.append("the normalisation of --init")
    planned = replace(schedule_of(then.settings, experiment.tree.batches_per_epoch), steps=then.steps)
    rates = _other_rates(planned, experiment.schedule, then.step)
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
