"""Features of videos, and the files that hold them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdt.common.errors import LeftOut, UserError, first_line
from gdt.common.files import DAMAGE, require_readable, writing
from gdt.common.folders import State, local_path, state_of
from gdt.common.wording import plural
from gdt.eval import parquet
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, text_array, texts

VERSION = "gdt-features-5"
_SAME = 0.99
"""Median cosine of different videos above which features say little; 0.997 to 1 in collapsed runs."""
_FEW = 5
_MANY = 256
"""The least number of videos of which that is said, and the most that are compared."""


@dataclass(frozen=True, repr=False)
class Features:
    """Features of n videos, or moments of videos."""

    id: np.ndarray
    """Path of the video file, or its id in the shards: str [n]."""
    features: dict[str, np.ndarray]
    """By modality, float32 [n, d]; NaN for videos where it is missing or shorter than a clip (see
    `pipeline.clips.usable`)."""
    metadata: dict[str, str]
    """Checkpoint, digest of its weights, kind, number and size of clips."""
    skipped: tuple[LeftOut, ...] = ()
    """Files that were left out, with reasons; not stored."""
    start: np.ndarray | None = None
    """With a row per moment, where it starts, seconds: float64 [n]."""
    content: np.ndarray | None = None
    """What tells whether a video has changed: size and time of its file, or a checksum of its shard: str [n]."""

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in self.features.items())
        return f"<gdt.Features of {self.count}: {shapes}; {len(self.skipped)} skipped>"

    @property
    def count(self) -> str:
        """The number of videos or moments, in words."""
        return plural(len(self.id), "video" if self.start is None else "moment")

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The arrays of numbers that files hold."""
        return ({} if self.start is None else {"start": self.start}) | self.features

    @property
    def contents(self) -> dict[str, str]:
        """The content of each video by its id, as far as known."""
        return {} if self.content is None else dict(zip(self.id.tolist(), self.content.tolist(), strict=True))


def sameness(features: Mapping[str, np.ndarray]) -> str:
    """What to say if features of different videos are nearly the same; empty if they are not.

    `features` are [n, d] by modality; rows of NaN do not count.
    """
    same = []
    for name, values in features.items():
        rows = values[~np.isnan(values[:, 0])]
        rows = rows[:: -(-len(rows) // _MANY) or 1]
        if len(rows) < _FEW:
            continue
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
        median = np.median((units @ units.T)[np.triu_indices(len(rows), 1)])
        if median > _SAME:
            same.append(f"{name} (median cosine {median:.4f})")
    if not same:
        return ""
    return (
        f"the {' and '.join(same)} features of different videos are nearly the same, so neighbours and "
        "accuracies mean little: the model has collapsed or is not trained; see how its run ended, or use other weights"
    )


def content_of(state: State) -> str:
    """The content of a row that is made of a file in this state."""
    return f"{state.size} {state.time}"


def is_changed(name: str, rows: Features) -> bool:
    """Whether a video is a file that has changed since its rows were made."""
    state = state_of(Path(name))
    now = content_of(state)
    return state.size >= 0 and not rows.metadata["shards"] and rows.contents.get(name, now) != now


def write(path: Path, rows: Features) -> None:
    """Write features as .npz, .parquet or .h5. Raises OSError."""
    is_hdf5 = path.suffix not in (".npz", ".parquet")
    text = {"id": rows.id} if rows.content is None else {"id": rows.id, "content": rows.content}
    written = {name: text_array(values.tolist()) if is_hdf5 else values.astype(str) for name, values in text.items()}
    arrays: dict[str, Any] = written | rows.columns
    if is_hdf5:
        container.write(path, arrays, rows.metadata)
    elif path.suffix == ".parquet":
        parquet.write(path, arrays, rows.metadata)
    else:
        with writing(path) as file:
            np.savez(file, **arrays, made=np.asarray(json.dumps(rows.metadata)))


def read(path: str | Path, instead: str = "write one with 'gdt embed'") -> Features:
    """Read features from .h5, .npz or .parquet; ~ is expanded. Raises UserError for any other or a damaged file."""
    path = local_path(path)
    if not path.is_file():
        raise UserError(f"no features file {path}; write one with 'gdt embed'")
    try:
        if path.suffix == ".npz":
            with np.load(path) as file:  # whose members have checksums
                arrays = dict(file)
            metadata = json.loads(str(arrays["made"]))
        elif path.suffix == ".parquet":
            arrays, metadata = parquet.read(path)
        else:
            arrays, attributes = container.read(path)
            arrays |= {name: texts(arrays[name]) for name in ("id", "content") if name in arrays}
            metadata = dict(attributes)
        if metadata["format"] != VERSION:
            raise ValueError(f"its format is {metadata['format']}, not {VERSION}")
        by_modality = {name: arrays[name] for name in MODALITIES if name in arrays}
        content = arrays["content"].astype(object) if "content" in arrays else None
        return Features(arrays["id"].astype(object), by_modality, metadata, start=arrays.get("start"), content=content)
    except (Damaged, OSError, *DAMAGE) as error:
        require_readable(path, error)
        raise UserError(
            f"{path} is damaged, or not a features file of this version ({first_line(error)}); {instead}"
        ) from error
