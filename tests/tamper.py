"""Change files, with or without updating their checksums."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gdt.common.serialization import add_checksum, require_checksum
from gdt.pipeline.shards.index import write_index
from gdt.pipeline.shards.layout import PIECES, ROWS, WORDS, words_checksum
from gdt.pipeline.shards.seal import seal


def reseal(path: Path) -> None:
    """Update the seal of a shard or an index."""
    notes = json.loads(path.read_bytes().split(b"\n")[0][13:])["notes"]
    with h5py.File(path, "r") as file:
        pieces = PIECES if "frames/jpeg" in file else ()
    seal(path, pieces, **notes)


def recheck(file: h5py.File) -> None:
    """Update the checksums of frames, audio and words of a shard."""
    offset, jpeg = file["frames/offset"][:], file["frames/jpeg"][:]
    file["frames/crc32"][:] = [zlib.crc32(jpeg[a:b].tobytes()) for a, b in pairwise(offset)]
    bank = file["audio/logmel"][:]
    file["audio/crc32"][:] = [zlib.crc32(bank[k : k + ROWS].tobytes()) for k in range(0, len(bank), ROWS)]
    words = [file[f"text/{name}"][:] for name in WORDS]
    bounds = pairwise(file["video/text"][:])
    file["text/crc32"][:] = [words_checksum(*(column[a:b] for column in words)) for a, b in bounds]


@contextlib.contextmanager
def changed(path: Path, hidden: bool = False) -> Iterator[h5py.File]:
    """Change a shard or an index; `hidden` updates all checksums."""
    with h5py.File(path, "a") as file:
        yield file
        if hidden and "frames/jpeg" in file and np.all(np.diff(file["frames/offset"][:]) >= 0):
            recheck(file)
    if hidden:
        reseal(path)


def reindex(folder: Path) -> None:
    """Rebuild the index of the shards."""
    with h5py.File(folder / "index.h5", "r") as file:
        names, settings = file["shard/name"].asstr()[:], file.attrs["settings"]
    write_index(folder, [folder / name for name in names], {"settings": settings})


def edit_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the object, or each object of the list, in a JSON file, and update the checksums."""
    values = json.loads(path.read_text())
    rows = [add_checksum(change(require_checksum(row))) for row in (values if isinstance(values, list) else [values])]
    path.write_text(json.dumps(rows if isinstance(values, list) else rows[0]))


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(place)
        (value,) = file.read(1)
        file.seek(place)
        file.write(bytes([value ^ 1 << bit]))
