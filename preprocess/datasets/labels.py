"""labels.csv: what people say about videos in a folder, beside what its subfolders say."""

from __future__ import annotations

import csv
import json
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular
from gdt.preprocess.datasets.listing import SPLITS, Missing, Video, find_key, key_of

LABELS = "labels.csv"
NAMES = ("path", "id", "file", "filename", "video", "name")
"""What the first column may be called, which names the videos."""
_MEMORY = 1 << 26
"""Bytes of rows beyond which they lie on disk."""


class Labels(AbstractContextManager["Labels"]):
    """The rows of labels.csv, by the video they name. 17 bytes of memory per row, and 64 MiB at most of their text."""

    def __init__(self, source: Path) -> None:
        """Read the file, if it is there. Raises UserError, with the number of the line, where it is not understood."""
        self._path = source / LABELS
        self._columns: list[str] = []
        self._file = tempfile.SpooledTemporaryFile(_MEMORY)  # noqa: SIM115 (closed by __exit__)
        keys, offsets, position = array("Q"), array("q"), 0
        for row in () if kind(self._path) == "missing" else self._read():
            line = (json.dumps(row) + "\n").encode()
            self._file.write(line)
            keys.append(key_of(row[1]))
            offsets.append(position)
            position += len(line)
        unsorted = np.frombuffer(keys, np.uint64)
        order = np.argsort(unsorted, kind="stable")
        self._keys, self._offsets = unsorted[order], np.frombuffer(offsets, np.int64)[order]
        self._found = np.zeros(len(order), bool)
        if len(twice := np.flatnonzero(self._keys[1:] == self._keys[:-1])):
            (first, name, *_), (second, *_) = (self._row(int(twice[0]) + k) for k in (0, 1))
            raise self._wrong(second, f"'{name}' is named again, as in line {first}; keep one of the two")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def applied(self, video: Video, path: str) -> Video:
        """The video, known by its id and by its path below the source, with what its row says of it.

        Raises UserError where it has a row for each.
        """
        places = [place for name in {video.id, path} if (place := self._find(name)) is not None]
        if not places:
            return video
        if len(places) > 1:
            lines = sorted(self._row(place)[0] for place in places)
            raise self._wrong(lines[1], f"'{path}' is named again, as in line {lines[0]}; keep one of the two")
        _, _, label, split, values = self._row(places[0])
        columns = tuple(zip(self._columns, values, strict=True))
        return replace(video, label=label or video.label, split=split or video.split, columns=columns)

    def knows(self, name: str) -> None:
        """Take note that there is something of this name, though no video."""
        self._find(name)

    def unused(self) -> Iterator[Missing]:
        """The rows that name no video so far, in their order."""
        places = np.flatnonzero(~self._found)
        for place in places[np.argsort(self._offsets[places])].tolist():
            yield Missing(self._row(place)[1], f"named in {LABELS}, but there is no such file")

    def _find(self, name: str) -> int | None:
        """The place of the row with this name, which is found with it."""
        place = find_key(self._keys, name)
        if place is not None:
            self._found[place] = True
        return place

    def _row(self, place: int) -> list[Any]:
        """Line, name, label, split, and the values of further columns."""
        self._file.seek(int(self._offsets[place]))
        row: list[Any] = json.loads(self._file.readline())
        return row

    def _read(self) -> Iterator[list[Any]]:
        """The rows, as `_row` has them."""
        with open_regular(self._path) as file:
            head = file.readline()
            file.seek(0)
            delimiter = ";" if b";" in head and b"," not in head else ","
            rows = csv.reader(map(_text, file), delimiter=delimiter, strict=True)
            try:
                header = [name.strip() for name in next(rows, [])]
                self._require_header(header)
                places = {name.lower(): k for k, name in enumerate(header) if k and name.lower() in ("label", "split")}
                others = [k for k in range(1, len(header)) if k not in places.values()]
                self._columns = [header[k] for k in others]
                for row in filter(None, rows):
                    if len(row) != len(header):
                        raise self._wrong(rows.line_num, f"{len(row)} fields, but {len(header)} in the header")
                    label, word = (row[places[name]].strip() if name in places else "" for name in ("label", "split"))
                    if word and word.lower() not in SPLITS:
                        raise self._wrong(rows.line_num, f"'{word}' is no split; write {', '.join(SPLITS)}, or nothing")
                    if not (name := row[0].strip().removeprefix("./")):
                        raise self._wrong(rows.line_num, "it names no video")
                    split = SPLITS[word.lower()] if word else ""
                    yield [rows.line_num, name, label, split, [row[k].strip() for k in others]]
            except csv.Error as error:
                raise self._wrong(rows.line_num, str(error)) from error
            except ValueError as error:  # of a line that is none of the csv's yet
                raise self._wrong(rows.line_num + 1, str(error)) from error

    def _require_header(self, header: list[str]) -> None:
        if not header or header[0].lower() not in NAMES:
            begins = f"'{header[0]}'" if header else "nothing"
            raise self._wrong(
                1,
                f"the header begins with {begins}; its first column must be one of {', '.join(NAMES)}, and hold the "
                "path of a video below the source or its id, as in path,label,split",
            )
        if "" in header:
            raise self._wrong(1, f"column {header.index('') + 1} has no name")
        names = [name.lower() if name.lower() in ("label", "split") else name for name in header[1:]]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise self._wrong(1, f"there are two columns '{twice}'")

    def _wrong(self, line: int, what: str) -> UserError:
        return UserError(f"line {line} of {self._path}: {what}")


def _text(line: bytes) -> str:
    try:
        text = line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason}); save the table as UTF-8") from error
    if "\0" in text:
        raise ValueError("it holds a NUL character, which no text does")
    return text
