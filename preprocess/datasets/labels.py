"""labels.csv: what people say about videos in a folder, beside what its subfolders say."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular
from gdt.preprocess.datasets.listing import SPLITS, Missing, Video
from gdt.preprocess.scratch import database

LABELS = "labels.csv"
NAMES = ("path", "id", "file", "filename", "video", "name")
"""What the first column may be called, which names the videos."""


class Labels:
    """The rows of labels.csv, by the video they name, in a table on disk. A context manager."""

    def __init__(self, source: Path) -> None:
        """Read the file, if it is there. Raises UserError, with the number of the line, where it is not understood."""
        self._path = source / LABELS
        self._columns: list[str] = []
        self._table = database(None, "CREATE TABLE labels (name BLOB PRIMARY KEY, line, said, found DEFAULT FALSE)")
        for line, name, *said in () if kind(self._path) == "missing" else self._read():
            row = _key(name), line, json.dumps(said)
            if not self._table.execute("INSERT OR IGNORE INTO labels VALUES (?, ?, ?, FALSE)", row).rowcount:
                raise self._twice(name, self._find(name)[0][0], line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def applied(self, video: Video, path: str) -> Video:
        """The video, known by its id and by its path below the source, with what its row says of it.

        Raises UserError where it has a row for each.
        """
        rows = [row for name in {video.id, path} for row in self._find(name)]
        if not rows:
            return video
        if len(rows) > 1:
            raise self._twice(path, *sorted(line for line, _ in rows))
        label, split, values = json.loads(rows[0][1])
        columns = tuple(zip(self._columns, values, strict=True))
        return replace(video, label=label or video.label, split=split or video.split, columns=columns)

    def knows(self, name: str) -> None:
        """Take note that there is something of this name, though no video."""
        self._find(name)

    def unused(self) -> Iterator[Missing]:
        """The rows that name no video so far, in their order."""
        for (name,) in self._table.execute("SELECT name FROM labels WHERE NOT found ORDER BY line"):
            yield Missing(name.decode(), f"named in {LABELS}, but there is no such file")

    def _find(self, name: str) -> list[tuple[int, str]]:
        """Line and what is said in the row with this name, if there is one, which is found with it."""
        query = "UPDATE labels SET found = TRUE WHERE name = ? RETURNING line, said"
        return self._table.execute(query, (_key(name),)).fetchall()

    def _read(self) -> Iterator[list[Any]]:
        """Line, name, label, split, and the values of further columns of every row."""
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

    def _twice(self, name: str, first: int, second: int) -> UserError:
        return self._wrong(second, f"'{name}' is named again, as in line {first}; keep one of the two")

    def _wrong(self, line: int, what: str) -> UserError:
        return UserError(f"line {line} of {self._path}: {what}")


def _key(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _text(line: bytes) -> str:
    try:
        text = line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason}); save the table as UTF-8") from error
    if "\0" in text:
        raise ValueError("it holds a NUL character, which no text does")
    return text
