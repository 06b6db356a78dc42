"""Settings of features in a file, and of what is searched in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from gdt.common.errors import UserError
from gdt.common.files import kind

Modality = Literal["video", "audio"]
Kind = Literal["embeddings", "features"]
Per = Literal["video", "clip"]
FORMATS = (".h5", ".npz", ".parquet")


@dataclass(frozen=True)
class Embed:
    """Write features of videos, of one's own or of a preprocessed data set, to a file."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("ckpt",),
        "videos": ("source", "dataset", "shards", "workers"),
        "features": ("of", "kind", "per", "clips"),
        "file": ("out", "overwrite"),
    }
    """Of `--help`, and the settings below them."""

    ckpt: Path
    """Checkpoint of a pretrained model, or weights from elsewhere."""
    source: tuple[Path, ...] = ()
    """Folders of videos, and video files; they are preprocessed into a folder that is removed at the end."""
    dataset: str = ""
    """Preprocessed data set, in place of --source."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    out: Path = Path("features.h5")
    """The file to write: .h5, .npz or, with pyarrow installed, .parquet."""
    of: tuple[Modality, ...] = ()
    """What features are of; default picture and sound, as far as the model has networks for them."""
    kind: Kind = "embeddings"
    """Embeddings of length 1, in which picture and sound can be compared, or average-pooled features of the trunks,
    which are better for classifiers."""
    per: Per = "video"
    """A row per video, the mean over its clips, or a row per clip with the second at which it starts."""
    clips: int = 10
    """Uniform clips per video."""
    workers: int = 0
    """Worker processes that decode videos; 0 takes one per core."""
    overwrite: bool = False
    """Replace the file where there is one."""

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.dataset or self.shards):
            raise UserError("set --source to videos, or --dataset to preprocessed ones")
        for name, given, known in (
            ("kind", (self.kind,), get_args(Kind)), ("per", (self.per,), get_args(Per)),
            ("of", self.of, get_args(Modality)),
        ):  # fmt: skip
            if unknown := [value for value in given if value not in known]:
                raise UserError(f"--{name} is '{unknown[0]}'; it must be {' or '.join(known)}")
        if self.clips < 1:
            raise UserError(f"--clips is {self.clips}; it must be 1 or more")
        if self.out.suffix not in FORMATS:
            raise UserError(f"--out is {self.out}; its name must end in {', '.join(FORMATS)}")
        if (what := kind(self.out)) not in ("", "missing"):
            raise UserError(f"{self.out} is {what}, not a file; set --out to a file")
        if self.out.exists() and not self.overwrite:
            raise UserError(f"{self.out} is there already; set --out to another file, or --overwrite to replace it")
        if not self.out.absolute().parent.is_dir():
            raise UserError(f"there is no folder {self.out.parent} to write to; set --out to a file in one there is")


@dataclass(frozen=True)
class Nearest:
    """Find the videos that are most like one."""

    query: str
    """Id of a video in the file of features, or a video file."""
    features: Path = Path("features.h5")
    """File that `gdt eval embed` wrote, .h5 or .npz."""
    by: Modality = "video"
    """What of the query is compared: its picture or its sound."""
    among: Modality | None = None
    """With what of the others; default the same. Another one needs embeddings."""
    k: int = 5
    """How many to find."""
    ckpt: Path | None = None
    """For a query that is a video file: the checkpoint that the features are of; default the one they name."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"--k is {self.k}; it must be 1 or more")
