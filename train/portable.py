"""Models as safetensors files, whose metadata has all that is needed to use them.

Metadata: `settings` of the run (JSON; also the sizes of networks and clips), `statistics` (JSON of
`Statistics.to_numbers`), `step` (training steps), `data` (fingerprint of the training shards), and `foreign` (JSON of
`trained.Foreign`) for weights that are not from a run. Parameters are named as in `GDT`; the names tell the modalities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.pipeline.shards.statistics import Statistics
from gdt.train import tensors
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.run import from_json, to_json
from gdt.train.trained import Foreign, Trained

FORMAT = "gdt-model-2"


def write(path: Path, trained: Trained) -> None:
    """Write a model atomically. Raises OSError."""
    texts = {
        "format": FORMAT, "settings": to_json(trained.settings), "step": str(trained.step), "data": trained.data,
        "statistics": json.dumps(trained.statistics.to_numbers()), "words": trained.words,
    }  # fmt: skip
    if trained.foreign is not None:
        texts["foreign"] = serialization.to_json(trained.foreign)
    tensors.write(path, trained.model.state_dict(), texts)


def model_of(state: Mapping[str, Any], path: Path) -> Trained:
    """The model in the content of a file of `write`. Raises UserError if its metadata or weights do not fit."""
    try:
        weights = state["model"]
        settings = from_json(state["settings"], str(path))
        foreign = serialization.from_dict(Foreign, json.loads(state["foreign"])) if "foreign" in state else None
        statistics = Statistics.from_numbers(json.loads(state["statistics"]), str(path))
        model = GDT(settings.network, modalities_of(weights)).eval()
        load_weights(model, weights, str(path))
        return Trained(model, settings, int(state["step"]), statistics, foreign, state["data"], words=state["words"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} has invalid metadata ({error}); export it again") from error
