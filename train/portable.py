"""Models as safetensors files, whose metadata has all that is needed to use them.

The metadata is that of `record.TrainingRecord.to_plain`, each value as text: as it is, or as JSON. Parameters are named
as in `GDT`; the names tell the modalities.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdt.common.errors import Damaged
from gdt.train import tensors
from gdt.train.record import TrainingRecord
from gdt.train.trained import Trained

FORMAT = "gdt-model-2"
_AS_JSON = {"step", "statistics", "per_step", "origin", "fps"}
_ONLY_TO_RESUME = {"steps", "start"}
"""Values of a run that its exported model does not need."""


def write(path: Path, trained: Trained) -> None:
    """Write a model atomically. Raises OSError."""
    texts = {"format": FORMAT}
    for key, value in trained.record.to_plain().items():
        if key not in _ONLY_TO_RESUME:
            texts[key] = json.dumps(value) if key in _AS_JSON else value
    tensors.write(path, trained.model.state_dict(), texts)


def record_in(content: Mapping[str, Any], source: str) -> TrainingRecord:
    """The record in a file of `write`. Raises as `TrainingRecord.from_plain`."""
    values: dict[str, Any] = {"steps": 0}
    for key, text in content.items():
        key = "origin" if key == "foreign" else key  # its name in earlier versions
        try:
            values[key] = json.loads(text) if key in _AS_JSON else text
        except ValueError as error:
            raise Damaged(f"its metadata is invalid ({key} is '{text[:40]}')") from error
    return TrainingRecord.from_plain(values, source)
