"""Models of any size as safetensors: every parameter, and beside them, as texts, all that using them takes.

`network` and `clip` are JSON of the settings of those names, `statistics` is JSON of `Statistics.to_numbers` or null,
`short_side` the pixels to which the shorter side of evaluated frames is resized, `step` the steps of training, `data`
the fingerprint of the shards that it learned from, `settings` those of the run. Weights from elsewhere have their
`kind`, which parts were `dropped` and which are `fresh`, and finetuned ones what they `learned`. Names of the
parameters are those of `GDT`, which say what the modalities are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Statistics
from gdt.train import tensors
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.models.network import Network
from gdt.train.settings import Pretrain, from_json, to_json
from gdt.train.weights import Foreign

if TYPE_CHECKING:
    from gdt.train.checkpoint import Trained

FORMAT, VERSION = "gdt-model", "1"


def write(path: Path, trained: Trained) -> None:
    """Write a model whole or not at all. Raises OSError."""
    numbers = trained.statistics.to_numbers() if trained.statistics else None
    texts = {
        "format": FORMAT, "version": VERSION,
        "network": serialization.to_json(trained.model.network),
        "clip": serialization.to_json(trained.settings.clip),
        "short_side": str(trained.settings.augmentation.scale[0]),
        "statistics": json.dumps(numbers), "step": str(trained.step), "data": trained.data,
    }  # fmt: skip
    texts["settings"] = to_json(trained.settings)
    if trained.foreign is not None:
        names = {
            "dropped": trained.foreign.dropped, "fresh": trained.foreign.fresh, "learned": trained.foreign.learned,
        }  # fmt: skip
        texts |= {"kind": trained.foreign.kind} | {name: json.dumps(parts) for name, parts in names.items()}
    tensors.write(path, trained.model.state_dict(), texts)


def read(path: Path) -> dict[str, Any] | Foreign | None:
    """What `write` wrote: settings, step, statistics and model as a checkpoint holds them, or weights from elsewhere.

    None where the file is no such one. Raises UserError where it is damaged, of another version, or does not fit.
    """
    found = tensors.read(path)
    if found is None or found[1].get("format") != FORMAT:
        return None
    weights, texts = found
    if tensors.CHECKSUM not in texts:
        raise UserError(f"{path} is damaged: it has no {tensors.CHECKSUM}, which {FORMAT} has; name another")
    if texts.get("version") != VERSION:
        raise UserError(f"{path} is of version {texts.get('version')} of {FORMAT}; use the program that wrote it")
    try:
        return _foreign(weights, texts, str(path)) if "kind" in texts else _ours(weights, texts)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path} holds other texts than {FORMAT} has ({error}); write it anew") from error


def _ours(weights: dict[str, Tensor], texts: dict[str, str]) -> dict[str, Any]:
    return {
        "settings": texts["settings"], "step": int(texts["step"]), "statistics": json.loads(texts["statistics"]),
        "model": weights, "data": texts.get("data", ""),
    }  # fmt: skip


def _foreign(weights: dict[str, Tensor], texts: dict[str, str], source: str) -> Foreign:
    network = serialization.rebuilt(Network, json.loads(texts["network"]))
    statistics = Statistics.from_numbers(json.loads(texts["statistics"]))
    dropped, fresh = (tuple(json.loads(texts[name])) for name in ("dropped", "fresh"))
    # files of before held neither
    settings = from_json(texts["settings"], source) if "settings" in texts else Pretrain()
    learned = json.loads(texts.get("learned", "null"))
    model = GDT(network, modalities_of(weights))
    load_weights(model, weights, source)
    return Foreign(
        model.eval(), texts["kind"], statistics, dropped, fresh, settings, tuple(learned) if learned else None
    )
