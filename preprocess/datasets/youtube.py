"""Data sets of YouTube segments: official annotations, and files named by a YouTube id and a start."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from gdt.common.errors import LeftOut
from gdt.preprocess.datasets.listing import Item, SourceFiles, matched, titled_id
from gdt.preprocess.videos import ListedVideo

_EXACT, _ROUNDED, _ORIGINAL = range(3)
"""How well a file fits: by the time of its segment, by that rounded otherwise, or as what is to be cut."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the official annotations: a part of a YouTube video."""

    youtube_id: str
    start: float
    """Seconds from the start of the original video."""
    end: float
    label: str
    split: str

    def video(self, name: str, path: Path, cut: bool, shared: bool) -> ListedVideo:
        """Its video, which is yet to be cut out of a file, `shared` with other segments, or is the file."""
        name = self.name if shared else name
        segment = (self.start, self.end) if cut else None
        part = (self.youtube_id, self.start, self.end)
        return ListedVideo(name, path, self.label, self.split, segment=segment, part=part, shared=shared)

    @property
    def name(self) -> str:
        """The id of its video if it has no file of its own, as files of Kinetics are named."""
        return f"{self.youtube_id}_{int(self.start):06d}_{int(self.end):06d}"


def listing(source: SourceFiles, rows: Iterable[Segment]) -> Iterator[Item]:
    """Yield the files of `source` with the label and split of their segments, then the segments without a file.

    A file named by the bare id may be the original video: it gets the times to cut out, and stands for every segment
    of its id without a file of its own. A file without a segment is left out, and of several with the same segment all
    but the first, where exact times go before rounded ones. Of rows with the same id and start, the last counts.
    """
    listed = dict.fromkeys({(row.youtube_id, row.start): row for row in rows}.values())
    return matched("the official annotations", listed, _found(source, listed), attrgetter("name"))


def _found(source: SourceFiles, listed: Iterable[Segment]) -> Iterator[tuple[Segment | None, Item]]:
    """The files with their segments, those that fit best first."""
    segments: dict[str, list[Segment]] = {}
    for segment in listed:
        segments.setdefault(segment.youtube_id, []).append(segment)
    files: list[tuple[int, list[Segment], str, Path]] = []
    for name, path in source.named():
        youtube_id, start = parse_name(name)
        fit, fitting = _fitting(segments.get(youtube_id, []), start)
        if fitting:
            files.append((fit, fitting, name, path))
        else:
            yield None, ListedVideo(name, path)
    files.sort(key=lambda file: (file[0], len(file[2]) * (file[0] == _ORIGINAL)))  # its chapters have longer names
    taken: set[Segment] = set()
    for fit, fitting, name, path in files:
        left = [segment for segment in fitting if fit != _ORIGINAL or segment not in taken]
        taken.update(left)
        if not left:
            reason = "its segments have files of their own"
            yield fitting[0], LeftOut(name, reason, str(path), fault=len(fitting) == 1)
        for segment in left:
            yield segment, segment.video(name, path, fit == _ORIGINAL, shared=len(fitting) > 1)


# An id is any 11 of these characters: it may contain or begin with what looks like a separator or a number. Times are
# in seconds or milliseconds. Some tools put a Y in front, because a leading '-' looks like an option.
_NAME = re.compile(
    r"Y?(?P<id>[A-Za-z0-9_-]{11})(?:_(?P<start>[0-9]+(?:\.[0-9]+)?)(?:[_-][0-9]+(?:\.[0-9]+)?)?)?", re.ASCII
)


def parse_name(name: str) -> tuple[str, float | None]:
    """YouTube id and start of `<id>`, `<id>_<start>`, `<id>_<start>_<end>`, `<id>_<start>-<end>` or `<title> [<id>]`.

    ("", None) for other names. The end is ignored: no two segments of a video have the same start.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return titled_id(name), None
    return match["id"], None if match["start"] is None else float(match["start"])


def _fitting(segments: list[Segment], start: float | None) -> tuple[int, list[Segment]]:
    """How well a file with this start in its name fits the segments of its video, and which."""
    if start is None:
        return _ORIGINAL, segments
    units: tuple[Callable[[float], float], ...] = (float, int, lambda seconds: round(1000 * seconds))
    for unit in units:  # seconds, whole seconds or milliseconds
        for segment in segments:
            if unit(segment.start) == start:
                return _EXACT, [segment]
    # some tools round a start up and others down
    return _ROUNDED, [segment for segment in segments if len(segments) == 1 and abs(segment.start - start) <= 1]
