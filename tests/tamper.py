"""Change files, with or without updating their checksums."""

import contextlib
import json
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from gdt.common.folders import Folder
from gdt.pipeline.shards import container
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import INDEX, PIECES, ROWS, WORDS, table_checksum, words_checksum


def recheck(arrays: dict[str, np.ndarray]) -> None:
    """Update the checksums of frames, audio and words of a shard."""
    offset, jpeg = arrays["frames/offset"], arrays["frames/jpeg"]
    arrays["frames/crc32"] = np.array([zlib.crc32(jpeg[a:b].tobytes()) for a, b in pairwise(offset)], np.uint32)
    bank = arrays["audio/logmel"]
    sums = [zlib.crc32(bank[k : k + ROWS].tobytes()) for k in range(0, len(bank), ROWS)]
    arrays["audio/crc32"] = np.array(sums, np.uint32)
    words, bounds = [arrays[f"text/{name}"] for name in WORDS], pairwise(arrays["video/text"])
    sums = [words_checksum(*(column[a:b] for column in words)) for a, b in bounds]
    arrays["text/crc32"] = np.array(sums, np.uint32)


@contextlib.contextmanager
def changed(path: Path, hidden: bool = False) -> Iterator[h5py.File]:
    """Change a shard or an index; `hidden` updates all checksums."""
    with path.open("rb") as opened:
        header = container.Header.parse(opened.readline())
    with h5py.File(path, "a") as file:
        yield file
    if hidden:
        data, attributes = path.read_bytes(), dict(header.attributes)
        arrays = {name: at.array(data[at.begin : at.begin + at.nbytes]) for name, at in header.arrays.items()}
        if "table" in attributes:
            if np.all(np.diff(arrays["frames/offset"]) >= 0):
                recheck(arrays)
            table = {name: values for name, values in arrays.items() if not name.startswith(PIECES)}
            attributes["table"] = table_checksum(table)
        container.write(path, arrays, attributes)


def annotate(folder: Path, **columns: list[str]) -> None:
    """Replace annotations of the videos of an index, in its order."""
    index = Index.open(folder)
    said: dict[str, Mapping[str, str]] = {
        name: dict(zip(index.id, values, strict=True))
        for name, values in (
            {name: getattr(index, name) for name in ("label", "split", "folds")} | index.columns | columns
        ).items()
    }
    tables = gather_tables(Folder(folder), index.shard_names)
    annotations = {name: [values[each] for each in tables.ids] for name, values in said.items()}
    write_index(folder / INDEX, tables, json.dumps(index.settings), annotations)


def edit_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the object, or each object of the list, in a JSON file."""
    values = json.loads(path.read_text())
    path.write_text(json.dumps(list(map(change, values)) if isinstance(values, list) else change(values)))


def edit_record(
    content: Mapping[str, Any], settings: Mapping[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """The content of a file with changes of its record, and of the settings in it."""
    record = json.loads(content["record"])
    record |= {"settings": record["settings"] | (settings or {})} | changes
    return {**content, "record": json.dumps(record)}


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A new folder on a disk of this size; skips the test where none can be mounted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here (root is needed)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def interrupted(name: str) -> Iterator[None]:
    """A block that is interrupted where it calls this function."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(name, Mock(side_effect=KeyboardInterrupt))
        yield


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(place)
        (value,) = file.read(1)
        file.seek(place)
        file.write(bytes([value ^ 1 << bit]))
