"""The seal of an HDF5 file: checksums that are checked before HDF5 reads anything of it.

HDF5 follows whatever it finds in a file: a flipped bit becomes another value, an error of any kind, or an endless loop
inside the library. So what is written here begins with one line of text, in HDF5's user block (room at the start of a
file that HDF5 leaves to others): its own checksum, the length of the file, the checksum of all that HDF5 interprets,
and where the large datasets lie. Those carry checksums of their own, piece by piece (see layout.py), and are read past
HDF5. `head -1` shows the line; any HDF5 tool opens the file as if it were not there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from gdt.common.files import kind, writing

SCHEMA = 2
SEAL_BYTES = 4096
"""Length of the user block."""
_BLOCK = 1 << 22


class Damaged(Exception):
    """A file is not what was written; the message says what is wrong, and not which file."""


class OtherSchema(Damaged):
    """A file was written by another version of this program."""


@dataclass(frozen=True)
class Seal:
    """What the first line of a sealed file says."""

    bytes: int
    """Length of the file."""
    crc32: int
    """Of everything but the user block and the spans."""
    spans: Mapping[str, tuple[int, int]]
    """Dataset -> (position in the file, bytes), of those that are read past HDF5."""
    notes: Mapping[str, Any]
    """What else the writer wanted to be known without HDF5."""
    own: int
    """The line's own checksum, which stands for the whole file."""


@contextmanager
def writing_sealed(
    path: Path, spans: Sequence[str] = (), scratch: Path | None = None, **notes: Any
) -> Iterator[h5py.File]:
    """Write a sealed HDF5 file that appears whole or not at all, see `writing`; the seal is put on at the end.

    `spans` are datasets with checksums of their own, `notes` what is to be known without HDF5.
    """
    with writing(path, scratch) as whole:
        with h5py.File(whole.name, "w", libver=("earliest", "v110"), userblock_size=SEAL_BYTES) as file:
            yield file
        seal(Path(whole.name), spans, **notes)


def write_strings(file: h5py.File, name: str, values: Sequence[str | bytes] | np.ndarray) -> None:
    """Write a dataset of text."""
    file.create_dataset(name, (len(values),), h5py.string_dtype(), values if len(values) else None)


def seal(path: Path, spans: Sequence[str] = (), **notes: Any) -> None:
    """Seal a finished file, whatever seal it had before; `spans` are datasets with checksums of their own."""
    with h5py.File(path, "r") as file:
        places = {name: _place(file[name]) for name in spans}
    size = path.stat().st_size
    with path.open("r+b") as file:
        values = {"schema": SCHEMA, "bytes": size, "crc32": _structure(file, size, places), "spans": places}
        line = _line(json.dumps(values | {"notes": notes}).encode())
        if len(line) > SEAL_BYTES:
            raise ValueError(f"the seal of {path} takes {len(line)} bytes")
        file.seek(0)
        file.write(line.ljust(SEAL_BYTES, b"\0"))


def _line(text: bytes) -> bytes:
    return b"gdt %08x %b\n" % (zlib.crc32(text), text)


def _place(dataset: h5py.Dataset) -> tuple[int, int]:
    return (dataset.id.get_offset(), dataset.nbytes) if dataset.nbytes else (0, 0)


def read_seal(path: Path) -> Seal:
    """The seal of a file, of which nothing else is read. Raises Damaged, OtherSchema, or OSError."""
    with _open(path) as file:
        return _read(file)


def check_seal(path: Path) -> Seal:
    """The seal of a file whose structure is what was written. Raises Damaged, OtherSchema, or OSError."""
    with _open(path) as file:
        found = _read(file)
        if _structure(file, found.bytes, found.spans) != found.crc32:
            raise Damaged("its structure is not what was written (the checksum does not match)")
    return found


def open_sealed(path: Path) -> h5py.File:
    """Open a file for HDF5 once its seal is checked. Raises Damaged, OtherSchema, or OSError."""
    check_seal(path)
    return h5py.File(path, "r")


def _open(path: Path) -> BinaryIO:
    if (what := kind(path)) not in ("", "missing", "a broken link"):
        raise Damaged(f"it is {what}, not a file")
    return path.open("rb")


def _read(file: BinaryIO) -> Seal:
    head = file.read(SEAL_BYTES)
    if head.startswith(b"\x89HDF"):
        raise OtherSchema(f"it has schema 1 and this version reads schema {SCHEMA}")
    text = head.partition(b"\n")[0][len(_line(b"")) - 1 :]
    if head != _line(text).ljust(SEAL_BYTES, b"\0"):
        raise Damaged("its first line is not what was written")
    values = json.loads(text)
    if values["schema"] != SCHEMA:
        raise OtherSchema(f"it has schema {values['schema']} and this version reads schema {SCHEMA}")
    size = os.fstat(file.fileno()).st_size
    if size != values["bytes"]:
        raise Damaged(f"it has {size} bytes instead of {values['bytes']}: it was cut or changed")
    spans = {name: (begin, length) for name, (begin, length) in values["spans"].items()}
    return Seal(values["bytes"], values["crc32"], spans, values["notes"], own=zlib.crc32(text))


def _structure(file: BinaryIO, size: int, spans: Mapping[str, tuple[int, int]]) -> int:
    """CRC-32 of a file of that size without its user block and the spans."""
    value, position = 0, SEAL_BYTES
    for begin, length in [*sorted(span for span in spans.values() if span[1]), (size, 0)]:
        file.seek(position)
        remaining = begin - position
        while remaining > 0:
            block = file.read(min(remaining, _BLOCK))
            if not block:
                raise Damaged("it ends early")
            value = zlib.crc32(block, value)
            remaining -= len(block)
        position = begin + length
    return value
