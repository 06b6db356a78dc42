"""The captions of all videos, compressed in memory: HowTo100M's files take 10 GB."""

from __future__ import annotations

import csv
import html
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from operator import attrgetter, itemgetter
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from gdt.common.errors import UserError, first_line
from gdt.common.folders import File, Folder
from gdt.pipeline.word2vec import NEEDS_TEXT
from gdt.preprocess.datasets.listing import titled_id, walk
from gdt.preprocess.textfiles import composed, open_text, read_csv

JSON_NAMES = ("caption.json", "raw_caption.json", "captions.json", "raw_caption_superclean.json")
"""Files with the captions of all videos; the first one there is read. The official caption.json has no stop words."""
FOLDERS = ("captions", "csv")
"""Folders with one file per video at any depth; the first that holds any is read."""
CAPTION_COLUMNS = ("start", "end", "text")
EXPECTED = f"""\
source/{JSON_NAMES[0]} or {", ".join(JSON_NAMES[1:])}     {{id: {{start: [...], end: [...], text: [...]}}}}
source/{FOLDERS[0]}/<id>.csv, .json, .srt or .vtt  one file per video, or <id>.en.vtt; a csv has start,end,text,
                                              JSON the same lists, or Whisper's segments
source/*.csv                              with the columns video_id,start,end,text
<id> is the id of the video, or its path below source without the suffix (cats/a for source/cats/a.mp4)"""

_MAX_SECONDS = 1e6
"""Maximum time of a caption (eleven days)."""
_LANGUAGE = re.compile(r"\.[a-z]{2,3}(?:[-_][\w-]+)?$", re.I | re.ASCII)
"""What downloaders add to a name: .en, .en-US, .zh-Hans, .en-orig."""
_ENGLISH = re.compile(r"\.en(?:[-_][\w-]+)?$", re.I | re.ASCII)
_TAG = re.compile(r"<[/\w][^<>]*>|\{\\[^{}]*\}")
"""<i>, </c.yellow>, <00:00:01.000>, {\\an8}."""
_ARROW = re.compile(r"\s*[\d:.,]+\s*-->")
_WORD_TIME = re.compile(r"<((?:\d{2,9}:)?[0-5]\d:[0-5]\d\.\d{3})>")


class _NoCaptions(Exception):
    """A file beside captions holds none."""


class Caption(NamedTuple):
    """Text spoken from `start` to `end`, in seconds from the start of the video."""

    start: float
    end: float
    text: str


class Captions:
    """The captions of a data set by video id."""

    def __init__(self, videos: Iterable[tuple[str, list[Caption] | None]]) -> None:
        """Keep the captions of `videos`; those of an id may come in several parts. None: the file holds none."""
        self._parts: dict[str, list[bytes]] = {}
        self._named: dict[str, str] = {}
        self.others: list[str] = []
        """Names of files in the folder of captions that hold none."""
        for id, lines in videos:
            if lines is None:
                self.others.append(id)
            elif lines:
                self._parts.setdefault(composed(id), []).append(zlib.compress(json.dumps(lines).encode(), level=1))
        for id in sorted(self._parts, key=lambda id: (not _ENGLISH.search(id), id)):  # English before others
            name = without_language(id)
            for short in (name, titled_id(name)):
                self._named.setdefault(short, id)

    @staticmethod
    def find(source: Folder) -> Captions | None:
        """The captions in the folder `source`, as in EXPECTED, or None. Raises UserError if they are damaged or none.

        Captions without text, with times that are not finite, or that end before they start are dropped.
        """
        name, videos = next(_locations(source), ("", iter(())))
        if not name:
            return None
        try:
            captions = Captions(videos)
        except ImportError as error:
            raise UserError(NEEDS_TEXT) from error
        if not len(captions):
            raise UserError(f"{name} holds no captions; expected:\n{EXPECTED}")
        return captions

    def get(self, name: str) -> list[Caption]:
        """The captions of exactly this name, sorted by start time; none for an unknown one."""
        parts = self._parts.get(name, ())
        rows = itertools.chain.from_iterable(json.loads(zlib.decompress(part)) for part in parts)
        return sorted(itertools.starmap(Caption, rows), key=attrgetter("start"))

    def named(self, ids: Sequence[str]) -> str:
        """The first of these that is the name of captions, else the name of one with a language or title, or empty."""
        with_more = filter(None, map(self._named.get, filter(None, ids)))
        return next((id for id in ids if id in self._parts), "") or next(with_more, "")

    def unused(self, used: Set[str]) -> list[str]:
        """The names of captions that are not `used`, in any language."""
        names = set(map(without_language, used))
        return sorted(name for name in self._parts if name not in used and without_language(name) not in names)

    def __len__(self) -> int:
        """Number of videos with captions."""
        return len(self._parts)


def without_language(name: str) -> str:
    """A name of captions without .en, .en-US or the like."""
    return _LANGUAGE.sub("", name)


def _locations(source: Folder) -> Iterator[tuple[str, Iterator[tuple[str, list[Caption] | None]]]]:
    """The names of files or folders of captions, the preferred one first, with its videos; of tables the first."""
    for name in JSON_NAMES:
        file = File(source, PurePath(name))
        if file.present:
            yield str(file), _json_videos(file)
    for name in FOLDERS:
        if source.kind(name) == "a folder" and any(_caption_files(source.below(name))):
            folder = source.below(name)
            yield str(folder), _folder_videos(folder)
    csv_files = [File(source, path) for path in source.glob("[!.]*.csv")]
    tables = [file for file in csv_files if {"video_id", *CAPTION_COLUMNS} <= _header(file)]
    if tables:
        yield str(tables[0]), itertools.chain.from_iterable(map(_csv_videos, tables))


def _json_videos(path: File) -> Iterator[tuple[str, list[Caption]]]:
    """The videos of a JSON file {id: {start, end, text}}, one in memory at a time."""
    import ijson

    with path.open() as file:
        try:
            for id, columns in ijson.kvitems(file, "", use_float=True):
                yield id, _valid(_rows(columns), f"video '{id}' of {path}")
        except ijson.JSONError as error:
            raise UserError(f"{path} is not valid JSON: {first_line(error)}; copy or download it again") from error


def _csv_videos(path: File) -> Iterator[tuple[str, list[Caption]]]:
    """Each run of rows with the same video_id in a csv."""
    rows = read_csv(path, ("video_id", *CAPTION_COLUMNS), dict)
    for id, group in itertools.groupby(rows, key=itemgetter("video_id")):
        yield id, _valid(map(_ROW, group), f"video '{id}' of {path}")


def _folder_videos(folder: Folder) -> Iterator[tuple[str, list[Caption] | None]]:
    """The video of each file; of several formats the last that holds captions counts, as .vtt may have times of words.

    Downloaders put other files beside captions, such as .info.json; these come with None.
    """
    by_video: dict[Path, list[Path]] = {}
    for path in _caption_files(folder):
        by_video.setdefault(path.with_suffix(""), []).append(path)
    for name, paths in by_video.items():
        for path in reversed(paths):
            file = File(folder, path)
            try:
                yield str(name), _valid(_READERS[path.suffix.lower()](file), str(file))
                break
            except _NoCaptions:
                yield path.name, None


def _caption_files(folder: Folder) -> Iterator[Path]:
    """The files at any depth that are not hidden."""
    paths = (Path(parent, name) for parent, names, _ in walk(folder) for name in names)
    return (path for path in paths if path.suffix.lower() in _READERS)


def _header(path: File) -> set[str]:
    """The names of the columns of a csv."""
    with open_text(path, errors="replace") as file:
        return {*next(csv.reader([file.readline(1 << 16)]), [])}


_Rows = Iterable[tuple[Any, Any, Any]]
"""CAPTION_COLUMNS of each caption."""
_ROW = itemgetter(*CAPTION_COLUMNS)


def _rows(columns: Any) -> _Rows:
    kinds = {type(column).__name__ for column in _ROW(columns)} - {"list"}
    if kinds:
        raise TypeError(f"a column is not a list but {' and '.join(sorted(kinds))}")
    yield from zip(*_ROW(columns), strict=True)


def _read_json(path: File) -> _Rows:
    """Of columns, or of segments as Whisper writes them, also alone. Raises _NoCaptions for other JSON."""
    with path.open() as file:
        text = file.read()
    if not text.strip():
        raise _NoCaptions
    try:
        content = json.loads(text)
    except ValueError:
        with suppress(ValueError):
            json.loads(text.partition(b"\n")[0])
            raise _NoCaptions from None
        raise
    rows = content.get("segments") if isinstance(content, dict) else content
    if isinstance(rows, list) and rows and all(map(_is_like_captions, rows)):
        yield from map(_ROW, rows)
    elif _is_like_captions(content):
        yield from _rows(content)
    else:
        raise _NoCaptions


def _is_like_captions(values: Any) -> bool:
    """Whether a table has at least two of the columns of captions: with one more, it may be damaged."""
    return isinstance(values, dict) and len(values.keys() & {*CAPTION_COLUMNS}) > 1


def _read_csv(path: File) -> _Rows:
    names = {name.strip().lower() for cell in _header(path) for name in cell.split(";")}
    if len(names & {*CAPTION_COLUMNS}) < 2:
        raise _NoCaptions
    yield from map(_ROW, read_csv(path, CAPTION_COLUMNS, dict))


def _read_subtitles(path: File) -> _Rows:
    """The captions of an .srt or .vtt file.

    A line that stays on the screen from one cue to the next, as in YouTube's automatic captions, is said once. Times
    of words, as in those, divide it.
    """
    import webvtt
    from webvtt import srt, vtt

    try:
        with open_text(path) as file:
            text = file.read().lstrip()
        format, block = ("vtt", vtt.WebVTTCueBlock) if text.startswith("WEBVTT") else ("srt", srt.SRTCueBlock)
        for line in text.splitlines():
            if _ARROW.match(line) and not block.CUE_TIMINGS_PATTERN.match(line):
                raise ValueError(f"'{line}' are no times")
        cues = webvtt.from_buffer([text], format).captions if text else []
    except (ValueError, webvtt.errors.MalformedFileError) as error:
        raise UserError(f"cannot read the captions of {path}: {error}; expected an .srt or .vtt in UTF-8") from error
    shown: list[str] = []
    until = webvtt.models.Timestamp()
    for cue in cues:
        lines = list(filter(_text, cue.lines))
        before = shown if cue.start_time <= until else []
        shown = [_text(line) for line in lines]
        until = cue.end_time
        stays = next(k for k in range(len(shown), -1, -1) if k == 0 or before[-k:] == shown[:k])
        pieces = _WORD_TIME.split("\n".join(lines[stays:]))
        stamps = [cue.start_time, *map(webvtt.models.Timestamp.from_string, pieces[1::2]), cue.end_time]
        times = [stamp.in_milliseconds() / 1000 for stamp in stamps]
        for piece, start, end in zip(pieces[::2], times, times[1:], strict=False):
            yield start, max(start, end), piece


_READERS: dict[str, Callable[[File], _Rows]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".srt": _read_subtitles,
    ".vtt": _read_subtitles,
}
"""Readers of the file of one video, by suffix."""


def _valid(rows: _Rows, where: str) -> list[Caption]:
    """The valid captions of one video. Raises UserError, naming `where`, for what cannot be read."""
    try:
        captions = [Caption(_seconds(start), _seconds(end), _text(text)) for start, end, text in rows]
    except (TypeError, LookupError, ValueError, OverflowError, RecursionError) as error:
        expected = "{start: [...], end: [...], text: [...]}, with times in seconds"
        raise UserError(f"cannot read the captions of {where}: {error}; expected {expected}") from error
    return [line for line in captions if line.text and -_MAX_SECONDS < line.start <= line.end < _MAX_SECONDS]


def _seconds(value: Any) -> float:
    return math.nan if value in (None, "") else float(value)


def _text(value: Any) -> str:
    """Text without tags and character references; empty for missing values, which are NaN where pandas wrote them."""
    if value is None or value != value:
        return ""
    return html.unescape(_TAG.sub("", str(value))).strip()
