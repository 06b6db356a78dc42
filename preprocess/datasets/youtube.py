"""What data sets of YouTube segments share: official csv tables, and files named by a YouTube id and a start."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gdt.common.errors import UserError
from gdt.common.files import open_regular
from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import Missing, Video

T = TypeVar("T")


@dataclass(slots=True)
class Segment:
    """One row of an official table: a part of a YouTube video."""

    youtube_id: str
    start: float
    """Seconds from the start of the original video."""
    end: float
    label: str
    split: str
    found: bool = False
    """Whether a file with it has been seen."""


Table = dict[str, tuple[Segment, ...]]
"""The segments of each YouTube id, nearly always one."""


def read(path: Path, columns: Sequence[str], row_to: Callable[[dict[str, str]], T], header: bool = True) -> Iterator[T]:
    """The rows of a csv file, one at a time; lines that start with # are comments.

    `columns` must be in the header, among others, or are the columns of a file without one. Raises UserError for a
    column that is missing, and for a row that has too many values or that `row_to` refuses with a ValueError or a
    KeyError.
    """
    with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, None if header else columns, restval="", skipinitialspace=True)
        try:
            if missing := set(columns) - set(rows.fieldnames or ()):
                raise UserError(
                    f"in {path} the columns {', '.join(sorted(missing))} are missing; expected {','.join(columns)}"
                )
            for row in rows:
                if next(iter(row.values())).startswith("#"):
                    continue
                if None in row:
                    raise ValueError("more values than columns")
                yield row_to(row)
        except (ValueError, KeyError, csv.Error) as error:
            raise UserError(
                f"line {rows.line_num} of {path} is not understood ({error}); expected {','.join(columns)}"
            ) from error


def table(segments: Iterable[Segment]) -> Table:
    """All segments by their YouTube id; of rows with one id and start, as in several csv files, the last counts."""
    found: Table = {}
    for segment in segments:
        others = (other for other in found.get(segment.youtube_id, ()) if other.start != segment.start)
        found[segment.youtube_id] = (*others, segment)
    return found


def listing(
    source: Path, segments: Table, name: Callable[[Segment], str], unlisted: Callable[[Video], Video | Missing]
) -> Iterator[Video | Missing]:
    """The files below `source` with the label and split of their segments, then the segments without a file.

    A file named by the bare id may be the original video: it carries the times to cut out, and stands for every
    segment of its id that has no file of its own. `name` is what a segment is called where no single file is it;
    `unlisted` says what becomes of a file that is in no table.
    """
    originals: list[tuple[Path, tuple[Segment, ...]]] = []
    for video in folder.tree(source):
        if isinstance(video, Missing):
            yield video
            continue
        path = video.path
        youtube_id, start = parse(path.stem)
        candidates = segments.get(youtube_id, ())
        if start is None and len(candidates) > 1:
            originals.append((path, candidates))  # which of them have files of their own is known at the end only
        elif segment := _meant(candidates, start):
            segment.found = True
            times = (segment.start, segment.end) if start is None else None
            yield Video(path.stem, path, segment.label, segment.split, segment=times)
        else:
            yield unlisted(video)
    for path, segment in [(path, segment) for path, several in originals for segment in several if not segment.found]:
        segment.found = True
        yield Video(name(segment), path, segment.label, segment.split, segment=(segment.start, segment.end))
    for several in segments.values():
        for segment in several:
            if not segment.found:
                yield Missing(name(segment), "listed in the official annotations, but there is no such file")


# An id is any 11 of these characters, so that it may hold or begin with what looks like a separator or a number.
# A time is in seconds or in milliseconds. Some tools put a Y in front, since a leading '-' looks like an option.
_NAME = re.compile(
    r"Y?(?P<id>[A-Za-z0-9_-]{11})(?:_(?P<start>[0-9]+(?:\.[0-9]+)?)(?:_[0-9]+(?:\.[0-9]+)?)?)?", re.ASCII
)


def parse(stem: str) -> tuple[str, float | None]:
    """YouTube id and start of `<id>`, `<id>_<start>` or `<id>_<start>_<end>`, as written; ("", None) for other names.

    The end is not needed: no two segments of a video have the same start.
    """
    match = _NAME.fullmatch(stem)
    if match is None:
        return "", None
    return match["id"], None if match["start"] is None else float(match["start"])


def _meant(segments: Sequence[Segment], start: float | None) -> Segment | None:
    """The segment that begins at `start` (seconds, whole seconds or milliseconds); the only one if it may be meant."""
    units: tuple[Callable[[float], float], ...] = (float, int, lambda seconds: round(1000 * seconds))
    for unit in units:
        for segment in segments:
            if unit(segment.start) == start:
                return segment
    # some tools round a start up and others down
    near = start is None or (len(segments) == 1 and abs(segments[0].start - start) <= 1)
    return segments[0] if near and len(segments) == 1 else None
