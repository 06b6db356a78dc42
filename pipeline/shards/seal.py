"""The seal of an HDF5 file: checksums that are verified before HDF5 reads the file.

HDF5 does not verify what it reads: a flipped bit becomes another value, an arbitrary error, or an endless loop in the
library. So a sealed file begins with a line of text in HDF5's user block: the line's checksum, the length of the file,
the checksum of all that HDF5 interprets, and the position of the large datasets, which have their own checksums per
piece (layout.py) and are read without HDF5. `head -1` shows the line; HDF5 tools ignore it.
"""

from __future__ import annotations

import io
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
_METADATA = 1 << 16
"""Maximum bytes of a write that HDF5 may read back while it writes; larger writes are datasets."""


class Damaged(Exception):
    """A file differs from what was written; the message does not name the file."""


class OtherSchema(Damaged):
    """A file was written by another version of this program."""


@dataclass(frozen=True)
class Seal:
    """The content of a seal."""

    bytes: int
    """Length of the file."""
    crc32: int
    """Checksum of all but the user block and the spans."""
    spans: Mapping[str, tuple[int, int]]
    """Dataset -> (position in the file, bytes), for those that are read without HDF5."""
    notes: Mapping[str, Any]
    """Further values to read without HDF5."""
    own: int
    """Checksum of the line, which identifies the file."""


@contextmanager
def writing_sealed(
    path: Path, spans: Sequence[str] = (), scratch: Path | None = None, **notes: Any
) -> Iterator[h5py.File]:
    """Write a sealed HDF5 file atomically, see `writing`; arguments as for `seal`. Raises OSError for a full disk."""
    with writing(path, scratch) as whole, _Unfailing(whole.name, "r+") as disk:
        try:
            with h5py.File(disk, "w", libver=("earliest", "v110"), userblock_size=SEAL_BYTES) as file:
                yield file
        finally:
            if disk.error:
                raise disk.error
        seal(Path(whole.name), spans, **notes)


class _Unfailing(io.FileIO):
    """A file whose writes never raise: it keeps the first error in `error` and pretends to have written.

    HDF5 does not report a full disk that it finds while it closes a file, and then crashes as the process ends.
    """

    error: OSError | None = None

    def __init__(self, name: str, mode: str) -> None:
        super().__init__(name, mode)
        self._unwritten: list[tuple[int, bytes]] = []
        """Position and content of small writes since the error: metadata, which HDF5 reads back."""

    def write(self, data: Any) -> int:
        begin, rest = self.tell(), memoryview(data)
        with self._keeping_error():
            while len(rest):
                rest = rest[super().write(rest) :]
        if self.error and len(data) <= _METADATA:
            self._unwritten.append((begin, bytes(data)))
        return len(data)

    def readinto(self, buffer: Any) -> int:
        begin, view = self.tell(), memoryview(buffer)
        length = super().readinto(view)
        if self.error:
            view[length:] = bytes(len(view) - length)
            length = len(view)
        for start, data in self._unwritten:
            first, last = max(start, begin), min(start + len(data), begin + length)
            if first < last:
                view[first - begin : last - begin] = data[first - start : last - start]
        return length

    def truncate(self, size: int | None = None) -> int:
        with self._keeping_error():
            super().truncate(size)
        return size or 0

    @contextmanager
    def _keeping_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


def write_strings(file: h5py.File, name: str, values: Sequence[str | bytes] | np.ndarray) -> None:
    """Write a dataset of text."""
    file.create_dataset(name, (len(values),), h5py.string_dtype(), values if len(values) else None)


def seal(path: Path, spans: Sequence[str] = (), **notes: Any) -> None:
    """Seal a finished file, replacing any seal. `spans` are datasets with their own checksums, `notes` as in Seal."""
    with h5py.File(path, "r") as file:
        positions = {name: _position(file[name]) for name in spans}
    size = path.stat().st_size
    with path.open("r+b") as file:
        values = {"schema": SCHEMA, "bytes": size, "crc32": _structure_crc32(file, size, positions), "spans": positions}
        line = _line(json.dumps(values | {"notes": notes}).encode())
        if len(line) > SEAL_BYTES:
            raise ValueError(f"the seal of {path} takes {len(line)} bytes of {SEAL_BYTES}")
        file.seek(0)
        file.write(line.ljust(SEAL_BYTES, b"\0"))


def _line(text: bytes) -> bytes:
    return b"gdt %08x %b\n" % (zlib.crc32(text), text)


def _position(dataset: h5py.Dataset) -> tuple[int, int]:
    return (dataset.id.get_offset(), dataset.nbytes) if dataset.nbytes else (0, 0)


def read_seal(path: Path) -> Seal:
    """Read only the seal of a file. Raises Damaged, OtherSchema or OSError."""
    with _open(path) as file:
        return _parse(file)


def check_seal(path: Path) -> Seal:
    """Verify the checksum of a file and return its seal. Raises Damaged, OtherSchema or OSError."""
    with _open(path) as file:
        seal = _parse(file)
        if _structure_crc32(file, seal.bytes, seal.spans) != seal.crc32:
            raise Damaged("checksum mismatch")
    return seal


def open_sealed(path: Path) -> h5py.File:
    """Check the seal of a file and open it with HDF5. Raises Damaged, OtherSchema or OSError."""
    check_seal(path)
    return h5py.File(path, "r")


def _open(path: Path) -> BinaryIO:
    if (found := kind(path)) not in ("", "missing", "a broken link"):
        raise Damaged(f"it is {found}, not a file")
    return path.open("rb")


def _parse(file: BinaryIO) -> Seal:
    head = file.read(SEAL_BYTES)
    if head.startswith(b"\x89HDF"):
        raise OtherSchema(f"it has schema 1 but this version reads schema {SCHEMA}")
    text = head.partition(b"\n")[0][len(_line(b"")) - 1 :]
    if head != _line(text).ljust(SEAL_BYTES, b"\0"):
        raise Damaged("checksum mismatch in its first line")
    values = json.loads(text)
    if values["schema"] != SCHEMA:
        raise OtherSchema(f"it has schema {values['schema']} but this version reads schema {SCHEMA}")
    size = os.fstat(file.fileno()).st_size
    if size != values["bytes"]:
        raise Damaged(f"it has {size} bytes instead of {values['bytes']}: truncated or changed")
    spans = {name: (begin, length) for name, (begin, length) in values["spans"].items()}
    return Seal(values["bytes"], values["crc32"], spans, values["notes"], own=zlib.crc32(text))


def _structure_crc32(file: BinaryIO, size: int, spans: Mapping[str, tuple[int, int]]) -> int:
    """CRC-32 of the first `size` bytes of a file, without user block and spans."""
    value, position = 0, SEAL_BYTES
    for begin, length in [*sorted(span for span in spans.values() if span[1]), (size, 0)]:
        file.seek(position)
        remaining = begin - position
        while remaining > 0:
            block = file.read(min(remaining, _BLOCK))
            if not block:
                raise Damaged("it is truncated")
            value = zlib.crc32(block, value)
            remaining -= len(block)
        position = begin + length
    return value
