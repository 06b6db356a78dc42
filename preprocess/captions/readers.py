"""The captions of all videos, compressed in memory: HowTo100M's files take 10 GB."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from gdt.common.errors import UserError, first_line
from gdt.common.files import open_regular
from gdt.pipeline.word2vec import NEEDS_TEXT
from gdt.preprocess.datasets.listing import is_missing, is_shown, walk
from gdt.preprocess.tables import composed, open_text, read_csv

JSON_NAMES = ("caption.json", "raw_caption.json", "captions.json", "raw_caption_superclean.json")
"""Files with the captions of all videos; the first one there is read. The official caption.json has no stop words."""
FOLDERS = ("captions", "csv")
"""Folders with one file per video at any depth; the first that holds any is read."""
COLUMNS = ("start", "end", "text")
EXPECTED = f"""\
source/{JSON_NAMES[0]} or {", ".join(JSON_NAMES[1:])}     {{id: {{start: [...], end: [...], text: [...]}}}}
source/{FOLDERS[0]}/<id>.csv, .json, .srt or .vtt  one file per video; a csv has the columns start,end,text
source/*.csv                              with the columns video_id,start,end,text
<id> is the id of the video, or its path below source without the suffix (cats/a for source/cats/a.mp4)"""

_MAX_SECONDS = 1e6
"""Maximum time of a caption (eleven days)."""


class Caption(NamedTuple):
    """Text spoken from `start` to `end`, in seconds from the start of the video."""

    start: float
    end: float
    text: str


class Captions:
    """The captions of a data set by video id."""

    def __init__(self, videos: Iterable[tuple[str, list[Caption]]]) -> None:
        """Keep the captions of `videos`; those of an id may come in several parts."""
        self._parts: dict[str, list[bytes]] = {}
        for id, lines in videos:
            if lines:
                self._parts.setdefault(composed(id), []).append(zlib.compress(json.dumps(lines).encode(), level=1))

    @staticmethod
    def find(source: Path) -> Captions | None:
        """The captions in the folder `source`, as in EXPECTED, or None. Raises UserError if they are damaged or none.

        Captions without text, with times that are not finite, or that end before they start are dropped.
        """
        path, videos = next(_found(source), (None, iter(())))
        if path is None:
            return None
        captions = Captions(videos)
        if not len(captions):
            raise UserError(f"{path} holds no captions; expected:\n{EXPECTED}")
        return captions

    def get(self, id: str) -> list[Caption]:
        """The captions of a video, sorted by start time; empty for an unknown id."""
        rows = itertools.chain.from_iterable(json.loads(zlib.decompress(part)) for part in self._parts.get(id, ()))
        return sorted(itertools.starmap(Caption, rows), key=attrgetter("start"))

    def __contains__(self, id: str) -> bool:
        return id in self._parts

    def __len__(self) -> int:
        """Number of videos with captions."""
        return len(self._parts)


def opened(names: Iterable[str]) -> list[str]:
    """Of the paths of the files below a source, those that `Captions.find` opens."""
    shown = [name for name in names if all(map(is_shown, name.split("/")))]
    single = [name for name in shown if Path(name).suffix in _READERS]
    choices = [[name] for name in JSON_NAMES if name in shown]
    choices += [[name for name in single if name.startswith(f"{folder}/")] for folder in FOLDERS]
    choices.append([name for name in shown if "/" not in name and name.endswith(".csv")])
    return next(filter(None, choices), [])


def _found(source: Path) -> Iterator[tuple[Path, Iterator[tuple[str, list[Caption]]]]]:
    """The files or folders of captions, the preferred one first, each with its videos; of several tables the first."""
    for path in (source / name for name in JSON_NAMES):
        if not is_missing(path):
            yield path, _json_videos(path)
    for path in (source / name for name in FOLDERS):
        if path.is_dir() and any(_caption_files(path)):
            yield path, _folder_videos(path)
    if tables := list(filter(_is_table, sorted(source.glob("[!.]*.csv")))):
        yield tables[0], itertools.chain.from_iterable(map(_csv_videos, tables))


def _json_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """The videos of a JSON file {id: {start, end, text}}, one in memory at a time. Raises UserError without ijson."""
    try:
        import ijson
    except ImportError as error:
        raise UserError(NEEDS_TEXT) from error
    with open_regular(path) as file:
        try:
            for id, columns in ijson.kvitems(file, "", use_float=True):
                yield id, _usable(_rows(columns), f"video '{id}' of {path}")
        except ijson.JSONError as error:
            raise UserError(f"{path} is not valid JSON: {first_line(error)}; copy or download it again") from error


def _csv_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Each run of rows with the same video_id in a csv."""
    rows = read_csv(path, ("video_id", *COLUMNS), dict)
    for id, group in itertools.groupby(rows, key=itemgetter("video_id")):
        yield id, _usable(map(_ROW, group), f"video '{id}' of {path}")


def _folder_videos(folder: Path) -> Iterator[tuple[str, list[Caption]]]:
    for path in _caption_files(folder):
        yield str(path.relative_to(folder).with_suffix("")), _usable(_READERS[path.suffix](path), str(path))


def _caption_files(folder: Path) -> Iterator[Path]:
    """The files at any depth that are not hidden."""
    paths = (Path(parent, name) for parent, names, _ in walk(folder) for name in names)
    return (path for path in paths if path.suffix in _READERS)


def _is_table(path: Path) -> bool:
    with open_text(path, errors="replace") as file:
        header = file.readline(1 << 16)
    return {"video_id", *COLUMNS} <= set(next(csv.reader([header]), []))


_Rows = Iterable[tuple[Any, Any, Any]]
"""COLUMNS of captions."""
_ROW = itemgetter(*COLUMNS)


def _rows(columns: Any) -> _Rows:
    yield from zip(*_ROW(columns), strict=True)


def _read_json(path: Path) -> _Rows:
    with open_regular(path) as file:
        yield from _rows(json.loads(file.read()))


def _read_subtitles(path: Path) -> _Rows:
    """The captions of an .srt or .vtt file: a line of times, then lines of text up to an empty one."""
    with open_text(path, errors="replace") as file:
        text = file.read().replace("\r\n", "\n")
    for block in re.split(r"\n\s*\n", text):
        if found := re.search(r"([\d:.,]+) *--> *([\d:.,]+).*\n", f"{block}\n"):
            start, end = (sum(60**k * float(part) for k, part in enumerate(time.replace(",", ".").split(":")[::-1]))
                          for time in found.groups())  # fmt: skip
            yield start, end, re.sub(r"<[^>]*>", "", block[found.end() :])


_READERS: dict[str, Callable[[Path], _Rows]] = {
    ".csv": lambda path: map(_ROW, read_csv(path, COLUMNS, dict)), ".json": _read_json,
    ".srt": _read_subtitles, ".vtt": _read_subtitles,
}  # fmt: skip
"""Readers of the file of one video, by suffix."""


def _usable(rows: _Rows, where: str) -> list[Caption]:
    """The usable captions of one video. Raises UserError, naming `where`, for what cannot be read."""
    try:
        found = [Caption(_seconds(start), _seconds(end), _text(text)) for start, end, text in rows]
    except (TypeError, LookupError, ValueError, OverflowError, RecursionError) as error:
        expected = "{start: [...], end: [...], text: [...]}, with times in seconds"
        raise UserError(f"cannot read the captions of {where}: {error}; expected {expected}") from error
    return [each for each in found if each.text and -_MAX_SECONDS < each.start <= each.end < _MAX_SECONDS]


def _seconds(value: Any) -> float:
    return math.nan if value in (None, "") else float(value)


def _text(value: Any) -> str:
    """Text; empty for missing values, which are NaN where pandas wrote them."""
    return "" if value is None or value != value else str(value).strip()
