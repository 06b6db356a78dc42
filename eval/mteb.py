"""A model that MTEB evaluates on its tasks on video and sound, as in MVEB and MAEB; needs the package mteb."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction

from gdt.common.errors import LeftOut, Unusable, UserError
from gdt.common.files import open_regular, scratch
from gdt.eval.embed import features
from gdt.eval.extract import require_network
from gdt.eval.settings import Embed, FeatureModality, Kind
from gdt.eval.subjects import name_of
from gdt.train.trained import Trained

_AT_ONCE = 256
"""Files whose frames are on the disk at the same time."""
_COLUMNS: dict[FeatureModality, tuple[Any, str]] = {
    "video": (datasets.Video, ".mp4"),
    "audio": (datasets.Audio, ".wav"),
}
"""Type of the columns, and suffix of files; ffmpeg recognises the content."""


class Encoder(AbsEncoder):
    """Embeds the files of a task as `gdt embed` does."""

    def __init__(self, path: str, trained: Trained, kind: Kind, clips: int) -> None:
        self._trained = trained
        self._kind = kind
        self._embed = partial(Embed, path, kind=kind, clips=clips)
        meta = {
            "name": f"gdt/{name_of(path)}",
            "revision": trained.digest()[:16],
            "framework": ["PyTorch"],
            "modalities": [name for name in trained.model.modalities if name in _COLUMNS],
            "n_parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
            "similarity_fn_name": ScoringFunction.COSINE,
            "experiment_kwargs": {"kind": kind, "clips": clips},
        }
        self.mteb_model_meta = ModelMeta.create_empty(meta)

    def encode(self, inputs: Any, *, task_metadata: Any, **_: Any) -> np.ndarray:
        """Float32 [n, d]: embeddings summed over the modalities of a row, or trunk features side by side.

        Rows without a usable file are 0, whose cosine to all rows is 0 (MTEB refuses NaN), and named on stderr. Raises
        UserError for text and images, and where the machine is at fault, not a file.
        """
        columns = inputs.dataset.column_names
        others = {"text", "image"}.intersection(columns)
        if others:
            raise UserError(f"{task_metadata.name} has {' and '.join(others)}; the model embeds only video and audio")
        parts = [self._column(inputs.dataset, name, task_metadata.name) for name in _COLUMNS if name in columns]
        return np.sum(parts, 0) if self._kind == "embeddings" else np.concatenate(parts, 1)

    def _column(self, dataset: datasets.Dataset, name: FeatureModality, task: str) -> np.ndarray:
        require_network(self._trained, name)
        kind, suffix = _COLUMNS[name]
        undecoded = dataset.select_columns([name]).cast_column(name, kind(decode=False))
        model = self._trained.model
        embedded = self._kind == "embeddings"
        dim = model.network.embedding if embedded else model.backbone(name).dim
        rows = np.full((len(dataset), dim), np.nan, np.float32)
        skipped: dict[int, LeftOut] = {}
        for first in range(0, len(dataset), _AT_ONCE):
            items = undecoded[first : first + _AT_ONCE][name]
            with scratch() as folder:
                files = [_write(folder / str(n), item, suffix) for n, item in enumerate(items, first) if item]
                if not files:
                    continue
                try:
                    found = features(self._embed(source=tuple(files), modalities=(name,)), self._trained)
                    rows[[int(Path(path).stem) for path in found.id]] = found.features[name]
                    unused = found.skipped
                except Unusable as error:  # not every UserError, which may be a full disk
                    unused = error.skipped
            skipped |= {int(Path(file.path).stem): file for file in unused}
        lines = []
        for n in np.flatnonzero(np.isnan(rows[:, 0])).tolist():
            path = (undecoded[n][name] or {}).get("path") or "its bytes"
            file = skipped.get(n, LeftOut(str(n), f"no {name}, or too little", path))
            lines.append(f"row {n}, {path}: {file.reason}")
            if file.fault:
                raise UserError(f"{task}: {lines[-1]}")
        if lines:
            lines.insert(0, f"warning: {task}: {len(lines)} of {len(rows)} rows have no usable {name} and are 0:")
            print("\n  ".join(lines), file=sys.stderr)
        return np.nan_to_num(rows)


def _write(path: Path, item: dict[str, Any], suffix: str) -> Path:
    """A file of a dataset, whose bytes may be in the row. Raises UserError if it cannot be read."""
    path = path.with_suffix(suffix)  # ffmpeg goes by the content
    if item["bytes"] is None:
        open_regular(Path(item["path"])).close()
        path.symlink_to(Path(item["path"]).absolute())
    else:
        path.write_bytes(item["bytes"])
    return path
