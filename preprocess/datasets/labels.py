"""labels.csv: labels, splits and further columns of the videos in a folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Self

from gdt.common.errors import UserError
from gdt.common.files import open_regular
from gdt.preprocess.datasets.listing import SPLITS, Missing, Video, is_missing
from gdt.preprocess.scratch import database

LABELS = "labels.csv"
NO_FILE = f"named in {LABELS}, but there is no such file"
NAMES = ("path", "id", "file", "filename", "video", "name")
"""Accepted names of the first column, which identifies the videos."""


class Labels:
    """The rows of labels.csv by the video they name, in a table on disk. A context manager."""

    def __init__(self, source: Path) -> None:
        """Read the file if it is there. Raises UserError, with the line, if it cannot be parsed."""
        self._path = source / LABELS
        self._columns: list[str] = []
        self._table = database(None, "CREATE TABLE labels (name BLOB PRIMARY KEY, line, row, used DEFAULT FALSE)")
        for line, name, *row in () if is_missing(self._path) else self._read():
            values = _key(name), line, json.dumps(row)
            if not self._table.execute("INSERT OR IGNORE INTO labels VALUES (?, ?, ?, FALSE)", values).rowcount:
                raise self._duplicate(name, self._find(name)[0][0], line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def apply(self, video: Video, path: str) -> Video:
        """The video with the values of its row, found by its id or its path below the source, with or without suffix.

        Raises UserError if there are several.
        """
        names = {video.id, path} | {str(PurePath(name).with_suffix("")) for name in (video.id, path)}
        rows = [row for name in names for row in self._find(name)]
        if not rows:
            return video
        if len(rows) > 1:
            raise self._duplicate(path, *sorted(line for line, _ in rows))
        label, split, values = json.loads(rows[0][1])
        columns = tuple(zip(self._columns, values, strict=True))
        return replace(video, label=label or video.label, split=split or video.split, columns=columns)

    def mark_used(self, name: str) -> None:
        """Mark the row of this name as used, if there is one."""
        self._find(name)

    def unused(self) -> Iterator[Missing]:
        """The rows not used so far, in order."""
        for (name,) in self._table.execute("SELECT name FROM labels WHERE NOT used ORDER BY line"):
            yield Missing(name.decode(), NO_FILE)

    def _find(self, name: str) -> list[tuple[int, str]]:
        """Line and values of the row of this name, if any; marks it as used."""
        query = "UPDATE labels SET used = TRUE WHERE name = ? RETURNING line, row"
        return self._table.execute(query, (_key(name),)).fetchall()

    def _read(self) -> Iterator[list[Any]]:
        """Yield line, name, label, split and the further values of every row."""
        done = 0  # lines of complete rows
        with open_regular(self._path) as file:
            head = file.readline()
            file.seek(0)
            delimiter = next((each for each in ";\t" if each.encode() in head and b"," not in head), ",")
            rows = csv.reader(map(_decode, file), delimiter=delimiter, strict=True)
            try:
                header = [name.strip() for name in next(rows, [])]
                done = rows.line_num
                self._require_header(header)
                lowered = [name.lower() for name in header]
                known = {name: k for k, name in enumerate(lowered) if k and name in ("label", "split")}
                if other := next((name for name in ("class", "labels", "classes") if name in lowered[1:]), ""):
                    known.setdefault("label", lowered.index(other, 1))
                others = [k for k in range(1, len(header)) if k not in known.values()]
                self._columns = [header[k] for k in others]
                for row in filter(None, rows):
                    if len(row) != len(header):
                        raise self._error(rows.line_num, f"{len(row)} fields, but {len(header)} in the header")
                    label, word = (row[known[name]].strip() if name in known else "" for name in ("label", "split"))
                    if word and word.lower() not in SPLITS:
                        available = f"available: {', '.join(SPLITS)}, or nothing"
                        raise self._error(rows.line_num, f"unknown split '{word}'; {available}")
                    if not (name := row[0].strip().removeprefix(f"{self._path.parent}/").removeprefix("./")):
                        raise self._error(rows.line_num, "the name of the video is empty")
                    split = SPLITS[word.lower()] if word else ""
                    done = rows.line_num
                    yield [done, name, label, split, [row[k].strip() for k in others]]
            except csv.Error as error:
                if "unexpected end" in str(error):
                    raise self._error(done + 1, "this row, or one after it, has a quote that is not closed") from error
                raise self._error(rows.line_num, str(error)) from error
            except ValueError as error:  # raised for the line that the csv reader requested next
                raise self._error(rows.line_num + 1, str(error)) from error

    def _require_header(self, header: list[str]) -> None:
        if not header or header[0].lower() not in NAMES:
            first = f"its first column is '{header[0]}'" if header else "there is no header"
            expected = f"expected one of {', '.join(NAMES)}, with paths below the source or ids, as in path,label,split"
            raise self._error(1, f"{first}; {expected}")
        if "" in header:
            raise self._error(1, f"column {header.index('') + 1} has no name")
        names = [name.lower() if name.lower() in ("label", "split") else name for name in header[1:]]
        if duplicate := next((name for name in names if names.count(name) > 1), ""):
            raise self._error(1, f"there are two columns '{duplicate}'")

    def _duplicate(self, name: str, first: int, second: int) -> UserError:
        return self._error(second, f"'{name}' is already on line {first}; remove one of the two")

    def _error(self, line: int, what: str) -> UserError:
        return UserError(f"line {line} of {self._path}: {what}")


def _key(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _decode(line: bytes) -> str:
    try:
        text = line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason}); save the table as UTF-8") from error
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    return text
