"""Models as safetensors files, whose metadata has all that is needed to use them.

Metadata: `settings` of the run (JSON; also the sizes of networks and clips), `statistics` (JSON of
`Statistics.to_numbers`), `step` (training steps), `per_step` (JSON of `Trained.per_step`), `data` (fingerprint of the
training shards), `words` and `factors` (checksums of their files), `outputs` (JSON of `Trained.outputs`), and `origin`
(JSON of `trained.Origin`) for weights that are not from a run. Parameters are named as in `GDT`; the names tell the
modalities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdt.common import serialization
from gdt.common.errors import Damaged
from gdt.train import tensors
from gdt.train.trained import Origin, Trained

FORMAT = "gdt-model-2"


def write(path: Path, trained: Trained) -> None:
    """Write a model atomically. Raises OSError."""
    texts = {"format": FORMAT, "settings": serialization.to_json(trained.settings), "step": str(trained.step)}
    texts |= {"data": trained.fingerprint, "words": trained.words_checksum, "factors": trained.factors_checksum}
    texts["statistics"] = json.dumps(trained.statistics.to_numbers())
    texts["outputs"] = json.dumps(trained.outputs)
    texts["per_step"] = json.dumps(trained.per_step)
    if trained.origin is not None:
        texts["origin"] = serialization.to_json(trained.origin)
    tensors.write(path, trained.model.state_dict(), texts)


def state_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file of `write` as the state of a run. Raises Damaged if its metadata does not fit."""
    try:
        state = {**content, "step": int(content["step"]), "steps": 0}
        state["statistics"] = json.loads(content["statistics"])
        state["per_step"] = json.loads(content.get("per_step", "null"))
        state["outputs"] = json.loads(content.get("outputs", "{}"))
        origin = content.get("origin", content.get("foreign"))  # its name in earlier versions
        if origin:
            state["origin"] = serialization.from_dict(Origin, json.loads(origin))
        return state
    except (ValueError, KeyError) as error:
        raise Damaged(f"its metadata is invalid ({error})") from error
