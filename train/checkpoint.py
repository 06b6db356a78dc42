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
from gdt.train import weights
from gdt.train.experiment import Experiment
from gdt.train.models.backbone import load_weights
from gdt.train.models.gdt import GDT, modalities_of
from gdt.train.models.own import Makers, chosen
from gdt.train.published import fetch
from gdt.train.record import LENGTH, Record, differences, header, record_in
from gdt.train.run import CHECKPOINT, require_checkpoint
from gdt.train.schedule import Schedule
from gdt.train.tensors import load_checked, weights_in
from gdt.train.trained import MODEL, Trained

_FORMAT = "gdt-pretrain-3"
"""Kind and version of checkpoints."""
_USE = "use the checkpoint.pt of a run, or external weights (.pt, .pth, .safetensors)"


class RunState(NamedTuple):
    """All that the next step of a run, or `Trained`, depends on."""

    record: Record
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
    content = {**header(_FORMAT, state.record), "model": state.weights, "optimizer": state.optimizer}
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
    if not isinstance(content.get("optimizer"), dict):
        raise Damaged("it has no optimizer")
    return RunState(record_in(content, str(path)), weights_in(content), content["optimizer"])


def load_model(name: str | Path, given: Makers = MappingProxyType({})) -> Trained:
    """The model of a checkpoint, an exported file, finetuned or external weights (`train.weights`), or weights by name
    (`train.published`).

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
    metadata = getattr(content, "_metadata", {}).get("", {})  # of a state_dict
    stated = metadata if "format" in metadata else content
    kind = str(stated.get("format", ""))
    if not kind.startswith("gdt-"):
        return weights.model_of(content, path)
    if kind not in (MODEL, _FORMAT, weights.FINETUNED, weights.NETWORK):
        raise Damaged(f"it is a {kind}, which is not of this version")
    record = record_in(stated, str(path))
    if "network" in stated:
        return weights.of_network(content, record, str(stated["network"]), path, given)
    named = weights_in(content)
    network = record.settings.network
    modalities = modalities_of(named)
    model = GDT(network, modalities, chosen(network, modalities, given, str(path)))
    load_weights(model, named, str(path))
    return Trained(model.eval(), record)


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


def require_same_shards(record: Record, fingerprint: str, run: Path) -> None:
    """Raise UserError if the run in folder `run`, with this record, has other shards."""
    if record.fingerprint != fingerprint:
        raise UserError(
            f"{run} holds a run on different shards: they were rebuilt, or have different videos or splits; "
            "replace it with --overwrite, set --out to another folder, or restore the original shards"
        )


def require_same_run(then: Record, experiment: Experiment, path: Path) -> None:
    """Raise UserError if a run with the record `then`, from the checkpoint `path`, cannot be continued by this run.

    Another length is accepted if it does not change the learning rate of the steps that are done.
    """
    now = experiment.record
    different = differences(then.decisive(), now.decisive(), LENGTH)
    schedule = experiment.schedule
    planned = replace(schedule, optimization=then.settings.optimization, steps=then.steps)
    rates = _other_rates(planned, schedule, then.step)
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
