"""Files of captions: which are there, and what they say of each video.

HowTo100M comes with about 10 GB of them, so they are read as a stream and looked up on disk.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import re
import reprlib
import sqlite3
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular
from gdt.preprocess.datasets.listing import walk
from gdt.preprocess.scratch import database

JSON_NAMES = ("caption.json", "raw_caption.json", "captions.json", "raw_caption_superclean.json")
"""One file for all videos, the first that is there; the official caption.json has lost its stop words already."""
FOLDERS = ("captions", "csv")
"""One file per video, <id>.csv or <id>.json, in the first of these folders that holds any, at any depth."""
COLUMNS = ("start", "end", "text")
EXPECTED = f"""\
source/{JSON_NAMES[0]} or {", ".join(JSON_NAMES[1:])}     {{id: {{start: [...], end: [...], text: [...]}}}}
source/{FOLDERS[0]}/<id>.csv or .json             one file per video, with the columns start,end,text
source/*.csv                              with the columns video_id,start,end,text
where an <id> is the video's, or its path below source without the suffix (cats/a for source/cats/a.mp4)"""
LAYOUT = "{start: [...], end: [...], text: [...]}"

_LONGEST = 1e6
"""Seconds that no video lasts (eleven days)."""
_MOST = 16 << 20
"""Bytes of captions that no video has: four times what is said in twelve hours, word by word."""
_LONGEST_VALUE = 1 << 20
"""Bytes of JSON without the end of a value in them that are not read on: the parser begins such a value anew with
every chunk."""
_DEEPEST = 8
"""Lists and objects in one another, in what is said of a video; LAYOUT has two, and others may stand beside it."""
_CHUNK = 1 << 15
_NESTING = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
_SHORT = reprlib.Repr()
_SHORT.maxstring = 200


class Caption(NamedTuple):
    """What is said from `start` to `end`, in seconds from the start of the video."""

    start: float
    end: float
    text: str


class Captions(ABC):
    """The captions of a data set by the id of the video, read from disk when asked for. A context manager."""

    @staticmethod
    def find(source: Path, scratch: Path) -> Captions | None:
        """The captions in the folder `source`, or None where there are none.

        Looks for the JSON files of HowTo100M (JSON_NAMES, {id: LAYOUT}), then for one csv or JSON file per video
        (FOLDERS), then for any csv with the columns video_id, start, end, text. One file of many videos is read once,
        as a stream, into a compressed file in `scratch` that vanishes when it is closed, even if the process is killed.

        Raises UserError for a file that is damaged or empty, and where `scratch` cannot be written.
        """
        for name in JSON_NAMES:
            if kind(path := source / name) != "missing":
                return _Spool(_json_videos(path), scratch, path)
        for name in FOLDERS:
            if (source / name).is_dir() and any(_caption_files(source / name)):
                return _Folder(source / name)
        if tables := [path for path in sorted(source.glob("*.csv")) if _is_table(path)]:
            return _Spool(itertools.chain.from_iterable(map(_csv_videos, tables)), scratch, tables[0])
        return None

    @abstractmethod
    def get(self, id: str) -> list[Caption]:
        """Captions of one video by start time; none for an unknown id.

        Those without text, with times that are not finite, or that end before they start are left out.
        Raises UserError for a damaged file, where every video has its own.
        """

    @abstractmethod
    def __contains__(self, id: str) -> bool:
        """Whether there are captions by this name, usable or not."""

    @abstractmethod
    def __len__(self) -> int:
        """Videos that have captions."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - only some have anything to close
        """Give back what is held, the scratch file too."""


class _Spool(Captions):
    """Compressed captions of many videos in a nameless database; an id may come again, with more captions."""

    def __init__(self, videos: Iterable[tuple[str, list[Caption]]], scratch: Path, path: Path) -> None:
        """All of `videos`, which come from `path`."""
        blocks = ((id, zlib.compress(json.dumps(said).encode(), level=1)) for id, said in videos if said)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self._said = database(scratch, "CREATE TABLE said (id, block); CREATE INDEX ids ON said (id)")
            self._said.executemany("INSERT INTO said VALUES (?, ?)", blocks)
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"cannot set captions aside in {scratch}: {getattr(error, 'strerror', error)}; they take about half "
                "of the size of the file they come from"
            ) from error
        if not len(self):
            raise UserError(f"{path} holds no captions; expected {{id: {LAYOUT}}}, or rows of captions in a csv")

    def get(self, id: str) -> list[Caption]:
        blocks = self._said.execute("SELECT block FROM said WHERE id = ? ORDER BY rowid", (id,))
        rows = itertools.chain.from_iterable(json.loads(zlib.decompress(block)) for (block,) in blocks)
        return sorted(itertools.starmap(Caption, rows), key=attrgetter("start"))

    def __contains__(self, id: str) -> bool:
        return self._said.execute("SELECT 1 FROM said WHERE id = ?", (id,)).fetchone() is not None

    def __len__(self) -> int:
        return int(self._said.execute("SELECT COUNT(DISTINCT id) FROM said").fetchone()[0])

    def __exit__(self, *_: object) -> None:
        self._said.close()


class _Folder(Captions):
    """One file per video, opened when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, id: str) -> list[Caption]:
        path = self._path(id)
        if path is None:
            return []
        with reading(path) as file:
            if path.suffix == ".csv":
                return _captions(_columns(_rows(file, COLUMNS)), str(path))
            return _captions(json.loads(file.read().decode("utf-8-sig")), str(path))

    def _path(self, id: str) -> Path | None:
        """The file of a video, None where there is none, or its id would lead out of the folder."""
        if {"", ".", ".."} & set(id.split("/")):
            return None
        paths = (self._folder / f"{id}{suffix}" for suffix in (".csv", ".json"))
        return next((path for path in paths if kind(path) != "missing"), None)

    def __contains__(self, id: str) -> bool:
        return self._path(id) is not None

    def __len__(self) -> int:
        return sum(1 for _ in _caption_files(self._folder))


def _caption_files(folder: Path) -> Iterator[str]:
    """Names of the files at any depth, but for those that macOS leaves."""
    names = itertools.chain.from_iterable(names for _, _, names in walk(folder))
    return (name for name in names if name.endswith((".csv", ".json")) and not name.startswith("._"))


class _Source(io.RawIOBase):
    """A file of captions, read as far as one video may take, and on once that video is done with.

    So what is held stays small, whatever the file holds.
    """

    def __init__(self, path: Path, file: BinaryIO, holds: str) -> None:
        self.path = path
        self.position = 0
        self.silent = -math.inf
        """Bytes since a parser has last come to the end of a value."""
        self._file = file
        self._holds = holds
        self._end = _MOST

    def next_video(self) -> None:
        self._end = self.position + _MOST

    def text(self, errors: str = "strict") -> io.TextIOWrapper:
        """Its text, with line breaks as they are; closes this too."""
        return io.TextIOWrapper(io.BufferedReader(self, _CHUNK), encoding="utf-8-sig", errors=errors, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.position > self._end:
            raise UserError(
                f"{self.path} holds more than {_MOST >> 20} MB of {self._holds}, up to byte {self.position}; "
                "is it the right file?"
            )
        if self.silent > _LONGEST_VALUE:
            raise ValueError(f"a value is longer than {_LONGEST_VALUE >> 20} MB, up to byte {self.position}")
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.position += len(chunk)
        self.silent += len(chunk)
        return len(chunk)

    def close(self) -> None:
        self._file.close()
        super().close()


def _json_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Every video of a JSON file {id: LAYOUT}, one in memory at a time."""
    import ijson

    with reading(path) as file:
        try:
            for id, columns in ijson.kvitems(_events(file), ""):
                yield id, _captions(columns, f"{path}, video {_SHORT.repr(id)}")
                file.next_video()
        except ijson.JSONError as error:
            what = re.split(r"\n|\\n", str(error).removeprefix("b'"))[0].strip()  # the parser goes on with a drawing
            raise UserError(
                f"{path} is damaged or no JSON, up to byte {file.position}: {what}; copy or download it again"
            ) from error


def _events(file: _Source) -> Iterator[tuple[str, str, Any]]:
    """What the parser finds in a JSON file.

    The path to each, by which ijson.kvitems tells the names of videos, is only whether it is one: where lists are
    nested deep, the whole paths of a small file fill the memory.
    """
    import ijson

    depth = 0
    for event, value in ijson.basic_parse(file, use_float=True, buf_size=_CHUNK):
        file.silent = 0
        if event in _NESTING:
            depth += _NESTING[event]
            if depth > _DEEPEST + 1:
                raise RecursionError("lists within lists")  # as json.loads does where it has no room
        yield ("" if depth == 1 else "within"), event, value


def _csv_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Every run of rows with one video_id in a csv."""
    with reading(path) as file:
        for id, rows in itertools.groupby(_rows(file, ("video_id", *COLUMNS)), key=itemgetter("video_id")):
            yield id, _captions(_columns(rows), f"{path}, video {_SHORT.repr(id)}")
            file.next_video()


def _is_table(path: Path) -> bool:
    with reading(path, "header") as file:
        return {"video_id", *COLUMNS} <= set(next(csv.reader(file.text(errors="replace")), []))


def _columns(rows: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name, values in columns.items():
            values.append(row[name])
    return columns


def _rows(file: _Source, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Rows of a csv that must have these columns, and may have others."""
    reader = csv.DictReader(file.text(), strict=True)
    if absent := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise UserError(f"{file.path} has no column {' and no column '.join(absent)}; expected {','.join(columns)}")
    for row in reader:
        if None in row or None in row.values():  # how DictReader marks what is over and what lacks
            raise UserError(f"{file.path}, line {reader.line_num}: not as many fields as the header has")
        yield row


@contextlib.contextmanager
def reading(path: Path, holds: str = "captions of one video") -> Iterator[_Source]:
    """A file to read. What can go wrong with it is the user's to mend, and told with the file's name."""
    try:
        with _Source(path, open_regular(path), holds) as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: {error.reason}; convert it, or copy or download it again"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged or no JSON: {error}; copy or download it again") from error
    except RecursionError as error:
        raise UserError(f"{path} has lists within lists, deeper than any captions; expected {LAYOUT}") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be understood: {error}; copy or download it again") from error
    except csv.Error as error:
        raise UserError(f"{path} is damaged or no csv: {error}; copy or download it again") from error


def _captions(columns: Any, where: str) -> list[Caption]:
    """Usable captions of one video by start time. Raises UserError, which tells `where`, for any other LAYOUT."""
    named = columns if isinstance(columns, dict) else {}
    lists = [values for name in COLUMNS if isinstance(values := named.get(name), list)]
    if len(lists) < len(COLUMNS):
        raise UserError(f"{where}: expected {LAYOUT}")
    if len({len(values) for values in lists}) > 1:
        counts = ", ".join(f"{len(values)} of {name}" for name, values in zip(COLUMNS, lists, strict=True))
        raise UserError(f"{where}: the lists differ in length, {counts}")
    starts, ends, texts = lists
    said = [text.strip() if isinstance(text, str) else _text(text, where) for text in texts]
    times = ([_seconds(value, where) for value in values] for values in (starts, ends))
    usable = [
        Caption(start, end, text)
        for start, end, text in zip(*times, said, strict=True)
        if text and -_LONGEST < start <= end < _LONGEST
    ]
    return sorted(usable, key=attrgetter("start"))


def _seconds(value: Any, where: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: the time {_SHORT.repr(value)} is no number of seconds") from error


def _text(value: Any, where: str) -> str:
    if isinstance(value, list | dict):
        raise UserError(f"{where}: {_SHORT.repr(value)} is no text")
    return "" if value is None else str(value).strip()
