"""HDF5 files that begin with a line of text, from which they are checked and read without the HDF5 library.

HDF5 does not verify what it reads, and may hang on damaged metadata. So the user block, which HDF5 ignores, holds one
line (`head -1` shows it): its own checksum, and JSON of the file's length, the checksum of all that follows, and the
position, type and shape of every array. Any HDF5 tool reads the rest.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from gdt.common.errors import Damaged
from gdt.common.files import writing
from gdt.common.folders import Folder

SCHEMA = 3
_READS = (1 << 16, 1 << 20)
"""Bytes to read for the first line: mostly enough, and the most."""
_BLOCK = 1 << 24
"""Bytes of files that are read at once."""


class OtherSchema(Damaged):
    """A file was written by another version of this program."""


class ArrayPlace(NamedTuple):
    begin: int
    dtype: str
    shape: list[int]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self, data: bytes) -> np.ndarray:
        """The array, from its bytes. Raises Damaged if there are fewer."""
        if len(data) != self.nbytes:
            raise Damaged("it is truncated")
        return np.frombuffer(data, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Files:
    """An array that is in files, one after another, as it may be larger than memory."""

    paths: Sequence[Path]
    dtype: type
    row: tuple[int, ...] = ()

    @property
    def shape(self) -> list[int]:
        size = sum(path.stat().st_size for path in self.paths)
        return [size // (np.dtype(self.dtype).itemsize * prod(self.row)), *self.row]

    def blocks(self) -> Iterator[bytes]:
        """The content, a part at a time."""
        for path in self.paths:
            yield from _read_blocks(path)


@dataclass(frozen=True)
class Header:
    """The first line of a file."""

    line: bytes
    """The line, which identifies the file."""
    size: int
    """Length of the file, bytes."""
    crc32: str
    """CRC-32 of all that follows the line, in hexadecimal."""
    attributes: Mapping[str, str]
    """Text about the file, also stored as HDF5 attributes."""
    arrays: Mapping[str, ArrayPlace]

    @staticmethod
    def parse(line: bytes) -> Header:
        """Raises Damaged or OtherSchema."""
        text = line[len(_line(b"")) - 1 : -1]
        if line != _line(text):
            raise Damaged("checksum mismatch in its first line")
        values = json.loads(text)
        schema = values["schema"]
        if schema != SCHEMA:
            raise OtherSchema(f"it has schema {schema} but this version reads schema {SCHEMA}")
        places = {name: ArrayPlace(*place) for name, place in values["arrays"].items()}
        return Header(line, values["size"], values["crc32"], values["notes"], places)

    @staticmethod
    def read(path: Path) -> Header:
        """The header of a file of the right length. Raises Damaged, OtherSchema or OSError."""
        return Header.read_in(Folder(path.parent), path.name, path.stat().st_size)

    @staticmethod
    def read_in(folder: Folder, name: str, size: int) -> Header:
        """The header of a file of `size` bytes. Raises Damaged, OtherSchema, OSError, and UserError for a store."""
        for end in _READS:
            line, newline, _ = folder.read(name, 0, min(end, size)).partition(b"\n")
            if newline:
                break
        header = Header.parse(line + newline)
        if size != header.size:
            raise Damaged(f"it has {size} bytes instead of {header.size}: truncated or changed")
        return header


def check_shard(path: Path) -> Header:
    """The header of a file, all of whose bytes are as they were written. Raises Damaged, OtherSchema or OSError."""
    header = Header.read(path)
    checksum = 0
    for block in _read_blocks(path, len(header.line)):
        checksum = zlib.crc32(block, checksum)
    if f"{checksum:08x}" != header.crc32:
        raise Damaged(f"checksum mismatch ({checksum:08x}, not {header.crc32})")
    return header


def read(path: Path) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """All arrays and attributes of a file that fits into memory, checked. Raises Damaged, OtherSchema or OSError."""
    header = Header.read(path)
    data = path.read_bytes()
    if f"{zlib.crc32(memoryview(data)[len(header.line) :]):08x}" != header.crc32:
        raise Damaged("checksum mismatch")
    arrays = {name: at.array(data[at.begin : at.begin + at.nbytes]) for name, at in header.arrays.items()}
    return arrays, header.attributes


def _read_blocks(path: Path, begin: int = 0) -> Iterator[bytes]:
    """A file from a position on, a part at a time."""
    with path.open("rb") as file:
        file.seek(begin)
        yield from iter(partial(file.read, _BLOCK), b"")


def text_array(values: Sequence[str]) -> np.ndarray:
    """Text as an array for `write`: UTF-8 of one length."""
    return np.array([value.encode() for value in values], "S")


def texts(array: np.ndarray) -> np.ndarray:
    """The inverse of `text_array`: an array of str."""
    decoded = lru_cache(1 << 12)(bytes.decode)  # millions of videos share few labels
    return np.asarray(list(map(decoded, array.tolist())), object)


def write(
    path: Path, arrays: Mapping[str, np.ndarray | Files], attributes: Mapping[str, str], scratch: Path | None = None
) -> str:
    """Write a file atomically, see `writing`; equal contents give equal bytes. Returns `Header.crc32`.

    Raises OSError for a full disk.
    """
    longest = len(json.dumps(dict(attributes))) + sum(len(name) + 100 for name in arrays) + 200
    user_block = 4096  # HDF5 takes powers of two
    while user_block < longest:
        user_block *= 2
    # HDF5 does not report a full disk that it finds as it closes a file, so it writes only its metadata, into memory
    with os.fdopen(os.memfd_create("hdf5"), "r+b", buffering=0) as memory, writing(path, scratch) as file:
        places = _lay_out(memory, arrays, attributes, user_block)
        size = os.fstat(memory.fileno()).st_size
        header = {"schema": SCHEMA, "size": size, "crc32": f"{0:08x}", "notes": dict(attributes), "arrays": places}
        first = len(_encoded(header))
        checksum = 0
        for part in _content(memory, arrays, places, first, size):
            checksum = zlib.crc32(part, checksum)
        # read twice, as a disk may take files only from their beginning to their end
        crc32 = f"{checksum:08x}"
        at = file.write(_encoded(header | {"crc32": crc32}))
        for part in _content(memory, arrays, places, first, size):
            at += file.write(part)
        if at != size:
            raise RuntimeError(f"{path} has {at} bytes instead of {size}")
    return crc32


def _content(
    memory: FileIO, arrays: Mapping[str, np.ndarray | Files], places: Mapping[str, ArrayPlace], at: int, size: int
) -> Iterator[Any]:
    """All bytes of a file from a place on: arrays, and between them HDF5's metadata, which are in memory."""
    end = ArrayPlace(size, "u1", [0])  # so that the metadata after the last array come, too
    for name, place in sorted([*places.items(), ("", end)], key=lambda item: item[1].begin):
        metadata = os.pread(memory.fileno(), max(place.begin - at, 0), at)
        at += len(metadata)
        yield metadata
        for part in _blocks(arrays[name]) if name else ():
            at += len(part)
            yield part


def _line(text: bytes) -> bytes:
    return b"gdt %08x %b\n" % (zlib.crc32(text), text)


def _encoded(header: Mapping[str, Any]) -> bytes:
    return _line(json.dumps(header).encode())


def _lay_out(
    memory: FileIO, arrays: Mapping[str, np.ndarray | Files], attributes: Mapping[str, str], user_block: int
) -> dict[str, ArrayPlace]:
    """Write HDF5's metadata, and leave holes for the arrays, whose places are returned."""
    places = {}
    unwritten = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    unwritten.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    unwritten.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(memory, "w", libver=("earliest", "v110"), userblock_size=user_block) as file:
        for name, values in arrays.items():
            dtype = np.dtype(values.dtype)
            shape = list(values.shape)
            kind = h5py.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype
            dataset = file.create_dataset(name, shape, kind, dcpl=unwritten)
            places[name] = ArrayPlace(dataset.id.get_offset() if all(shape) else 0, dtype.str, shape)
        file.attrs.update(attributes)
    return places


def _blocks(values: np.ndarray | Files) -> Iterator[Any]:
    if isinstance(values, Files):
        return values.blocks()
    return iter([np.ascontiguousarray(values).reshape(-1).view(np.uint8).data])
