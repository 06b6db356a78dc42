"""Read caption files as streams and look captions up on disk: HowTo100M's take 10 GB."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import re
import reprlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from gdt.common.errors import UserError
from gdt.common.files import open_regular
from gdt.pipeline.word2vec import NEEDS_TEXT
from gdt.preprocess.datasets.listing import is_missing, walk
from gdt.preprocess.scratch import database
from gdt.preprocess.tables import Row, parse_rows

JSON_NAMES = ("caption.json", "raw_caption.json", "captions.json", "raw_caption_superclean.json")
"""Files with the captions of all videos; the first one there is read. The official caption.json has no stop words."""
FOLDERS = ("captions", "csv")
"""Folders with one file per video, <id>.csv or <id>.json at any depth; the first that holds any is read."""
COLUMNS = ("start", "end", "text")
EXPECTED = f"""\
source/{JSON_NAMES[0]} or {", ".join(JSON_NAMES[1:])}     {{id: {{start: [...], end: [...], text: [...]}}}}
source/{FOLDERS[0]}/<id>.csv or .json             one file per video, with the columns start,end,text
source/*.csv                              with the columns video_id,start,end,text
<id> is the id of the video, or its path below source without the suffix (cats/a for source/cats/a.mp4)"""
LAYOUT = "{start: [...], end: [...], text: [...]}"

_MAX_SECONDS = 1e6
"""Maximum time of a caption (eleven days)."""
_MAX_BYTES = 16 << 20
"""Maximum size of the captions of one video: four times the words of twelve hours."""
_MAX_VALUE_BYTES = 1 << 20
"""Maximum size of a JSON value; the parser restarts an unfinished value with every chunk."""
_MAX_DEPTH = 8
"""Maximum nesting in the JSON of one video; LAYOUT has two levels, but there may be other keys."""
_CHUNK = 1 << 15
_NESTING = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
_SHORT = reprlib.Repr()
_SHORT.maxstring = 200


class Caption(NamedTuple):
    """Text spoken from `start` to `end`, in seconds from the start of the video."""

    start: float
    end: float
    text: str


class Captions(ABC):
    """The captions of a data set by video id, read from disk when needed. A context manager."""

    @staticmethod
    def find(source: Path, scratch: Path) -> Captions | None:
        """The captions in the folder `source`, or None.

        Looks for the JSON files of HowTo100M (JSON_NAMES, {id: LAYOUT}), then for one csv or JSON file per video
        (FOLDERS), then for any csv with the columns video_id, start, end, text. A file of many videos is streamed into
        a compressed unlinked file in `scratch`, which is freed even if the process is killed.

        Raises UserError for a file that is damaged or empty, and if `scratch` cannot be written.
        """
        path = Captions.locate(source)
        if path is None:
            return None
        if path.name in FOLDERS:
            return _Folder(path)
        if path.name in JSON_NAMES:
            return _Database(_json_videos(path), scratch, path)
        tables = filter(_is_table, sorted(source.glob("*.csv")))
        return _Database(itertools.chain.from_iterable(map(_csv_videos, tables)), scratch, path)

    @staticmethod
    def locate(source: Path) -> Path | None:
        """The file or folder that `find` takes the captions from (of several tables the first), or None."""
        for name in JSON_NAMES:
            if not is_missing(path := source / name):
                return path
        for name in FOLDERS:
            if (source / name).is_dir() and any(_caption_files(source / name)):
                return source / name
        return next(filter(_is_table, sorted(source.glob("*.csv"))), None)

    @abstractmethod
    def get(self, id: str) -> list[Caption]:
        """The captions of a video, sorted by start time; empty for an unknown id.

        Captions without text, with times that are not finite, or that end before they start are dropped. Raises
        UserError if the video's own file is damaged.
        """

    @abstractmethod
    def __contains__(self, id: str) -> bool:
        """Whether there are captions of this id, usable or not."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of videos with captions."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - _Folder has nothing to close
        """Close the scratch file."""


class _Database(Captions):
    """Compressed captions of many videos; the captions of an id may come in several parts."""

    def __init__(self, videos: Iterable[tuple[str, list[Caption]]], scratch: Path, path: Path) -> None:
        """Store the captions of `videos`, which come from `path`."""
        blocks = ((id, zlib.compress(json.dumps(lines).encode(), level=1)) for id, lines in videos if lines)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self._tables = database(scratch, "CREATE TABLE captions (id, block); CREATE INDEX ids ON captions (id)")
            self._tables.executemany("INSERT INTO captions VALUES (?, ?)", blocks)
        except OSError as error:
            raise UserError(
                f"cannot store captions in {scratch}: {error.strerror or error}; they take about half the size of "
                "their file"
            ) from error
        if not len(self):
            raise UserError(f"{path} holds no captions; expected {{id: {LAYOUT}}}, or rows of captions in a csv")

    def get(self, id: str) -> list[Caption]:
        blocks = self._tables.execute("SELECT block FROM captions WHERE id = ? ORDER BY rowid", (id,))
        rows = itertools.chain.from_iterable(json.loads(zlib.decompress(block)) for (block,) in blocks)
        return sorted(itertools.starmap(Caption, rows), key=attrgetter("start"))

    def __contains__(self, id: str) -> bool:
        return self._tables.execute("SELECT 1 FROM captions WHERE id = ?", (id,)).fetchone() is not None

    def __len__(self) -> int:
        return int(self._tables.execute("SELECT COUNT(DISTINCT id) FROM captions").fetchone()[0])

    def __exit__(self, *_: object) -> None:
        self._tables.close()


class _Folder(Captions):
    """One file per video."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, id: str) -> list[Caption]:
        path = self._path(id)
        if path is None:
            return []
        with open_text(path) as file:
            if path.suffix == ".csv":
                return _captions(_by_column(parse_rows(file.text(), path, COLUMNS, dict)), str(path))
            return _captions(json.loads(file.read().decode("utf-8-sig")), str(path))

    def _path(self, id: str) -> Path | None:
        """The file of a video; None if there is none, or if the id would lead out of the folder."""
        if {"", ".", ".."} & set(id.split("/")):
            return None
        paths = (self._folder / f"{id}{suffix}" for suffix in (".csv", ".json"))
        return next((path for path in paths if not is_missing(path)), None)

    def __contains__(self, id: str) -> bool:
        return self._path(id) is not None

    def __len__(self) -> int:
        return sum(1 for _ in _caption_files(self._folder))


def _caption_files(folder: Path) -> Iterator[str]:
    """Names of the files at any depth, without those that macOS adds."""
    names = itertools.chain.from_iterable(names for _, _, names in walk(folder))
    return (name for name in names if name.endswith((".csv", ".json")) and not name.startswith("._"))


class _Source(io.RawIOBase):
    """A file that limits the bytes read per video, to bound memory; call `next_video` after each."""

    def __init__(self, path: Path, file: BinaryIO, content: str) -> None:
        self.path = path
        self.position = 0
        self.unfinished = -math.inf
        """Bytes read since the JSON parser last finished a value."""
        self._file = file
        self._content = content
        self._end = _MAX_BYTES

    def next_video(self) -> None:
        self._end = self.position + _MAX_BYTES

    def text(self, errors: str = "strict") -> io.TextIOWrapper:
        """The text with its line breaks unchanged; closing it closes this file."""
        return io.TextIOWrapper(io.BufferedReader(self, _CHUNK), encoding="utf-8-sig", errors=errors, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.position > self._end:
            raise UserError(
                f"{self.path} holds more than {_MAX_BYTES >> 20} MB of {self._content} (after reading {self.position} "
                "bytes); check that it is the right file"
            )
        if self.unfinished > _MAX_VALUE_BYTES:
            raise ValueError(
                f"a value is longer than {_MAX_VALUE_BYTES >> 20} MB (after reading {self.position} bytes)"
            )
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.position += len(chunk)
        self.unfinished += len(chunk)
        return len(chunk)

    def close(self) -> None:
        self._file.close()
        super().close()


def _json_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Yield the videos of a JSON file {id: LAYOUT}, one in memory at a time. Raises UserError without ijson."""
    try:
        import ijson
    except ImportError as error:
        raise UserError(NEEDS_TEXT) from error

    with open_text(path) as file:
        try:
            for id, columns in ijson.kvitems(_events(file), ""):
                yield id, _captions(columns, f"{path}, video {_SHORT.repr(id)}")
                file.next_video()
        except ijson.JSONError as error:
            reason = re.split(r"\n|\\n", str(error).removeprefix("b'"))[0].strip()  # without its ASCII drawing
            raise UserError(
                f"{path} is not valid JSON (error at or before byte {file.position}): {reason}; copy or download it "
                "again"
            ) from error


def _events(file: _Source) -> Iterator[tuple[str, str, Any]]:
    """The events of the JSON parser for ijson.kvitems.

    ijson prefixes each event with its full path, which fills memory for deeply nested lists; kvitems only needs to know
    whether the path is empty.
    """
    import ijson

    depth = 0
    for event, value in ijson.basic_parse(file, use_float=True, buf_size=_CHUNK):
        file.unfinished = 0
        if event in _NESTING:
            depth += _NESTING[event]
            if depth > _MAX_DEPTH + 1:
                raise RecursionError("lists within lists")  # as json.loads does
        yield ("" if depth == 1 else "within"), event, value


def _csv_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Yield each run of rows with the same video_id in a csv."""
    with open_text(path) as file:
        rows = parse_rows(file.text(), path, ("video_id", *COLUMNS), dict)
        for id, group in itertools.groupby(rows, key=itemgetter("video_id")):
            yield id, _captions(_by_column(group), f"{path}, video {_SHORT.repr(id)}")
            file.next_video()


def _is_table(path: Path) -> bool:
    with open_text(path, "header") as file:
        return {"video_id", *COLUMNS} <= set(next(csv.reader(file.text(errors="replace")), []))


def _by_column(rows: Iterable[Row]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name, values in columns.items():
            values.append(row[name])
    return columns


@contextlib.contextmanager
def open_text(path: Path, content: str = "captions of one video") -> Iterator[_Source]:
    """Open a file of captions or stop words. Raises UserError, naming the file, for errors inside the block."""
    try:
        with _Source(path, open_regular(path), content) as file:
            yield file
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot read {path}: {reason}; check its disk and permissions") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason}; convert it, or download it again") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}; copy or download it again") from error
    except RecursionError as error:
        raise UserError(f"{path} has lists nested too deeply for captions; expected {LAYOUT}") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"cannot parse {path}: {error}; copy or download it again") from error


def _captions(columns: Any, where: str) -> list[Caption]:
    """The usable captions of one video, sorted by start time. Raises UserError, naming `where`, unless in LAYOUT."""
    named = columns if isinstance(columns, dict) else {}
    if lacking := [name for name in COLUMNS if not isinstance(named.get(name), list)]:
        raise UserError(f"{where}: no list {', '.join(lacking)}; expected {LAYOUT}")
    lists = [named[name] for name in COLUMNS]
    if len({len(values) for values in lists}) > 1:
        counts = ", ".join(f"{len(values)} of {name}" for name, values in zip(COLUMNS, lists, strict=True))
        raise UserError(f"{where}: the lists differ in length, {counts}")
    starts, ends = ([_seconds(value, where) for value in values] for values in lists[:2])
    texts = [_text(value, where) for value in lists[2]]
    usable = [
        Caption(start, end, text)
        for start, end, text in zip(starts, ends, texts, strict=True)
        if text and -_MAX_SECONDS < start <= end < _MAX_SECONDS
    ]
    return sorted(usable, key=attrgetter("start"))


def _seconds(value: Any, where: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: the time {_SHORT.repr(value)} is not a number of seconds") from error


def _text(value: Any, where: str) -> str:
    if isinstance(value, list | dict):
        raise UserError(f"{where}: {_SHORT.repr(value)} is not text")
    return "" if value is None else str(value).strip()
