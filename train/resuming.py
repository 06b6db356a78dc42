"""Whether a run goes on as the one that it was, with the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdt.common.errors import UserError
from gdt.train.checkpoint import Data
from gdt.train.settings import LENGTH, Pretrain, differences, from_json, to_json


def require_same_run(
    state: Mapping[str, Any], settings: Pretrain, data: Data, batches_per_epoch: int, path: Path
) -> None:
    """Raise UserError unless a run with these settings, on these data, would have come to this state as it is.

    `state` is what `path` holds.
    """
    run, now = path.parent, to_json(settings)
    if state["data"] == data.fingerprint and state["words"] != data.words:
        raise UserError(
            f"{run} holds a run with other words: other vectors, or captions that were changed since; "
            "set --out to another folder, or --word2vec to the file of then"
        )
    if state["data"] != data.fingerprint:
        raise UserError(
            f"{run} holds a run on other shards: they were made anew since, or hold other videos or "
            "splits, and a run ends with the shards it began with; set --out to another folder"
        )
    if differences(state["settings"], now, but=LENGTH):
        raise UserError(
            f"{run} holds a run with other settings ({'; '.join(differences(state['settings'], now))}); "
            "set --out to another folder, or go on with the same settings"
        )
    if state["statistics"] != data.statistics.to_numbers():
        raise UserError(
            f"{run} holds a run whose inputs are normalised otherwise: {settings.init}, from "
            "which it began, has changed since; set --out to another folder, or put the file of then there"
        )
    _require_same_rates(from_json(state["settings"], str(path)), settings, batches_per_epoch, int(state["step"]), path)


def _require_same_rates(before: Pretrain, settings: Pretrain, batches_per_epoch: int, done: int, path: Path) -> None:
    """A run of another length has the same plans and dropout at each step, and may have other rates."""
    then, now = before.schedule(batches_per_epoch), settings.schedule(batches_per_epoch)
    if done > now.steps:
        raise UserError(
            f"{path.parent} has done {done} steps, more than the {now.steps} asked for; set --steps or --epochs to "
            "more, or --out to another folder"
        )
    other = next((step for step in range(done) if then.lr(step) != now.lr(step)), None)
    if other is not None:
        raise UserError(
            f"{path.parent} holds a run of {then.steps} steps, whose learning rate falls (--optimization.decay "
            f"{then.optimization.decay:g}) and would have been another from step {other} on in one of {now.steps}, so "
            f"it cannot become that; start from its weights with --init {path} --out <another folder>"
        )
