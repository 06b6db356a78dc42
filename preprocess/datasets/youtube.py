"""Data sets of YouTube segments: official annotations, and files named by a YouTube id and a start."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from gdt.common.errors import LeftOut
from gdt.preprocess.datasets.listing import Item, OfficialList, SourceFiles, titled_id, unlisted
from gdt.preprocess.videos import ListedVideo


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the official annotations: a part of a YouTube video."""

    youtube_id: str
    start: float
    """Seconds from the start of the original video."""
    end: float
    label: str
    split: str

    def video(self, name: str, path: Path, cut: bool) -> ListedVideo:
        """Its video, which is yet to be cut out of a file, or is the file."""
        segment = (self.start, self.end) if cut else None
        part = (self.youtube_id, self.start, self.end)
        return ListedVideo(name, path, self.label, self.split, segment=segment, part=part)

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
    listed = {(row.youtube_id, row.start): row for row in rows}.values()
    official = OfficialList("the official annotations", dict.fromkeys(listed), attrgetter("name"))
    segments: dict[str, list[Segment]] = {}
    for segment in listed:
        segments.setdefault(segment.youtube_id, []).append(segment)
    rounded: list[tuple[str, Path, Segment]] = []
    originals: list[tuple[str, Path, list[Segment]]] = []
    for name, path in source.named():
        youtube_id, start = parse_name(name)
        candidates = segments.get(youtube_id, [])
        match = None if start is None else _match(candidates, start)
        if start is None and candidates:
            originals.append((name, path, candidates))
        elif match is None and start is not None and len(candidates) == 1 and abs(candidates[0].start - start) <= 1:
            rounded.append((name, path, candidates[0]))  # some tools round a start up and others down
        elif match is None:
            yield unlisted(ListedVideo(name, path))
        else:
            yield official.match(match, match.video(name, path, cut=False))
    for name, path, segment in rounded:
        yield official.match(segment, segment.video(name, path, cut=False))
    originals.sort(key=lambda original: len(original[0]))  # its chapters have longer names
    for name, path, candidates in originals:
        left = [segment for segment in candidates if segment not in official.files]
        if not left:
            yield LeftOut(name, "its segments have files of their own", str(path), fault=len(candidates) == 1)
        for segment in left:
            id = name if len(candidates) == 1 else segment.name
            video = replace(segment.video(id, path, cut=True), shared=len(candidates) > 1)
            yield official.match(segment, video)
    yield from official.without_file()


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


def _match(segments: Sequence[Segment], start: float) -> Segment | None:
    """The segment that begins at `start` (seconds, whole seconds or milliseconds)."""
    units: tuple[Callable[[float], float], ...] = (float, int, lambda seconds: round(1000 * seconds))
    for unit in units:
        for segment in segments:
            if unit(segment.start) == start:
                return segment
    return None
