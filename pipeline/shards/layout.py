"""What is in a shard, schema 2: the one table of its datasets, by which it is written, indexed, read and verified.

A shard is one plain HDF5 file of contiguous datasets (see SHARD), so that any clip is one slice of the file. Every byte
of it is under a checksum: what is read in pieces (PIECES) piece by piece, all else by the file's seal. Beside the
shards lie `index.h5` (one row per video of all shards, classes, statistics; the one file opened at start, sealed too)
and `rejected.jsonl` (every video left out, and why).

A new column of the video table is a line of `VideoTable`, and one of the columns of a VideoRecord where it is filled
(preprocess/worker.py); raise SCHEMA (seal.py) with it, since the shards that there are lack the column.
"""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from gdt.common.files import require_readable
from gdt.pipeline.shards.seal import Damaged, check_seal, open_sealed

INDEX = "index.h5"
REJECTED = "rejected.jsonl"
MEL_FLOOR = float(np.log(np.finfo(np.float64).eps))
"""The log-mel value of an energy of exactly zero, as in digital silence."""

GENERATED = ("synthetic", "synthetic-hard")
DATASETS = ("audioset", "folder", "hmdb51", "howto100m", "ig65m", "kinetics", *GENERATED, "ucf101", "vggsound")
"""What can be preprocessed; preprocess/datasets says how."""


class Stored(NamedTuple):
    """A dataset of a shard."""

    dtype: type
    """Of NumPy, or str."""
    holds: str
    default: Any = MISSING
    """Of a column of the video table: what it holds of a video of which nothing is said."""


@dataclass(kw_only=True)
class VideoTable:
    """The columns that shards and index have of every video, [n_videos] each; shards hold them in this order."""

    height: Annotated[np.ndarray, Stored(np.int32, "of the stored frames, pixels")]
    width: Annotated[np.ndarray, Stored(np.int32, "of the stored frames, pixels")]
    silence: Annotated[np.ndarray, Stored(np.float32, "seconds of the sound that are silent", 0.0)]
    id: Annotated[np.ndarray, Stored(str, "the name of the video, by which the index is sorted")]
    label: Annotated[np.ndarray, Stored(str, "name of the class, empty where there is none", "")]
    split: Annotated[np.ndarray, Stored(str, "train, val or test", "")]
    folds: Annotated[np.ndarray, Stored(str, "the split in each official fold, as in train,test,unused; or empty", "")]
    note: Annotated[np.ndarray, Stored(str, "what the decoder complained about, empty where it did not", "")]


COLUMNS: dict[str, Stored] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(VideoTable, include_extras=True).items()
}
LABELS = ("video/label", "video/split", "video/folds")
"""In a shard as they were when it was made; what counts is in the index, where they may be said anew."""

SHARD: dict[str, Stored] = {
    "frames/jpeg": Stored(np.uint8, "[bytes]: all frames of all videos, baseline 4:2:0 JPEG, one after another"),
    "frames/offset": Stored(np.int64, "[n_frames + 1]: where each frame starts in frames/jpeg"),
    "frames/crc32": Stored(np.uint32, "[n_frames]: CRC-32 of each frame's bytes"),
    "audio/logmel": Stored(np.float32, "[n_mel, bands]: log-mel bank at 100 frames/s, not normalised"),
    "audio/crc32": Stored(np.uint32, "[n_mel / 100, rounded up]: CRC-32 of the bytes of rows 100 k to 100 k + 99"),
    "text/token": Stored(np.int32, "[n_words]: rows of the word2vec file; no words where there are no captions"),
    "text/start": Stored(np.float32, "[n_words]: seconds from the start of the video"),
    "text/end": Stored(np.float32, "[n_words]: the same"),
    "text/crc32": Stored(np.uint32, "[n_videos]: CRC-32 of each video's tokens, starts and ends, one after another"),
    "video/frame": Stored(np.int64, "[n_videos + 1]: where each video's frames start in frames/offset"),
    "video/mel": Stored(np.int64, "[n_videos + 1]: where each video's rows start in audio/logmel"),
    "video/text": Stored(np.int64, "[n_videos + 1]: where each video's words start in text/token"),
    **{f"video/{name}": stored for name, stored in COLUMNS.items()},
    "rejected": Stored(str, "[n_rejected]: JSON of id, path and reason of the videos that were left out"),
}
PARTS = {"frame": "frames/crc32", "mel": "audio/logmel", "text": "text/token"}
"""What a video has a run of, and a dataset with a row for each: those of video/frame, video/mel and video/text."""
WORDS = ("token", "start", "end")
"""The columns of text/, in the order of their checksum."""
PIECES = tuple(name for name in SHARD if name.startswith(("frames/", "audio/", "text/")))
"""What is read a piece at a time, while training. An offset or a checksum that is wrong makes a piece wrong, too."""
ROWS = 100
"""Rows of audio/logmel under one checksum."""


def shard_folder(dataset: str, named: Path | None = None) -> Path:
    """Where the shards of a data set lie unless another folder is `named`."""
    return named or Path("data/shards") / dataset


def preprocess_command(folder: Path) -> str:
    """The command that makes the shards of a folder, as it can be typed but for where the videos are."""
    if folder == shard_folder("demo"):
        return "make demo"
    dataset = folder.name if folder.name in DATASETS else "folder"
    source = "" if dataset in GENERATED else " SOURCE=<your videos>"
    elsewhere = "" if folder == shard_folder(dataset) else f' ARGS="--destination {shlex.quote(str(folder))}"'
    return f"make preprocess DATASET={dataset}{source}{elsewhere}"


def remove_command(folder: Path, full: bool = False) -> str:
    """The command that removes what is damaged in a folder, as it can be typed."""
    return f"`gdt verify --shards {shlex.quote(str(folder))}{' --full' if full else ''} --remove`"


def repair_hint(folder: Path) -> str:
    """What to do about a damaged shard in a folder."""
    return f"{remove_command(folder)} removes it; then run the same 'make preprocess' command again to rebuild it"


def words_checksum(*columns: np.ndarray) -> int:
    """CRC-32 of the words of one video, of which WORDS are the columns."""
    return zlib.crc32(b"".join(column.tobytes() for column in columns))


def shard_content(path: Path) -> str | None:
    """What the shard was made of, as its plan called it; None where it is absent, damaged or of another schema.

    Damage in the frames, the sound and the words is left to those who read them. Raises UserError where the disk, and
    not what is on it, keeps the shard from being read.
    """
    try:
        return str(check_seal(path).notes["content"])
    except Damaged:
        return None
    except OSError as error:
        require_readable(f"shard {path}", error)
        return None


def shard_rejected(path: Path) -> list[dict[str, str]]:
    """The videos of a shard that were left out: id, path below the source folder, reason."""
    with open_sealed(path) as file:
        return [json.loads(row) for row in file["rejected"][:]]


def read_rejected(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of rejected.jsonl, one at a time: id, path, reason."""
    path = folder / REJECTED
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
