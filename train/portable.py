"""Models as safetensors files, with the metadata needed to use them.

Metadata: `network` and `clip` (JSON of these settings), `statistics` (JSON of `Statistics.to_numbers`), `short_side`
(pixels of the shorter side of evaluated frames), `step` (training steps), `data` (fingerprint of the training shards),
`settings` (of the run). Foreign weights add `kind`, `dropped`, `fresh` and `learned` (see
`trained.Foreign`). Parameters are named as in `GDT`; the names tell the modalities.
"""

from __future__ import annotations

import json
from pathlib import Path

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.pipeline.shards.statistics import Statistics
from gdt.train import tensors
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.models.network import Network
from gdt.train.run import from_json, to_json
from gdt.train.trained import Foreign, Trained

FORMAT, VERSION = "gdt-model", "1"


def write(path: Path, trained: Trained) -> None:
    """Write a model atomically. Raises OSError."""
    texts = {
        "format": FORMAT, "version": VERSION,
        "network": serialization.to_json(trained.model.network),
        "clip": serialization.to_json(trained.settings.clip),
        "short_side": str(trained.settings.augmentation.scale[0]),
        "statistics": json.dumps(trained.statistics.to_numbers()), "step": str(trained.step), "data": trained.data,
        "settings": to_json(trained.settings),
    }  # fmt: skip
    if (foreign := trained.foreign) is not None:
        names = {"dropped": foreign.dropped, "fresh": foreign.fresh, "learned": foreign.finetuned_on}
        texts |= {"kind": foreign.kind} | {name: json.dumps(value) for name, value in names.items()}
    tensors.write(path, trained.model.state_dict(), texts)


def read(path: Path) -> Trained | None:
    """The model in a file of `write`; None for other files.

    Raises UserError if the file is cut or of another version, or its weights do not fit.
    """
    found = tensors.read(path)
    if found is None or found[1].get("format") != FORMAT:
        return None
    weights, texts = found
    if texts.get("version") != VERSION:
        raise UserError(f"{path} is of version {texts.get('version')} of {FORMAT}; use the program that wrote it")
    try:
        settings = from_json(texts["settings"], str(path))
        model = GDT(serialization.from_dict(Network, json.loads(texts["network"])), modalities_of(weights)).eval()
        load_weights(model, weights, str(path))
        foreign = None
        if "kind" in texts:
            dropped, fresh, finetuned_on = (json.loads(texts[name]) for name in ("dropped", "fresh", "learned"))
            foreign = Foreign.of(model, texts["kind"], dropped, fresh, tuple(finetuned_on) if finetuned_on else None)
        statistics = Statistics.from_numbers(json.loads(texts["statistics"]), str(path))
        return Trained(model, settings, int(texts["step"]), statistics, foreign, texts["data"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path} has invalid metadata ({error}); export it again") from error
