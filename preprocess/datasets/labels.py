"""labels.csv: labels, splits and further columns of the videos in a folder."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.pipeline.shards import index
from gdt.preprocess.datasets.listing import SPLIT_NAMES, SUFFIXES, ListedVideo, Missing, SourceFiles
from gdt.preprocess.textfiles import Row, composed, read_csv

LABELS_FILE = "labels.csv"
NO_VIDEO = f"named in {LABELS_FILE}, but no video has this path or id"
NOT_LISTED = (
    f"named in {LABELS_FILE}, but hidden, outside of the source, listed by another path, or not a video by its suffix"
)
PATH_COLUMNS = ("path", "id", "file", "filename", "video", "name")
"""Accepted names of the first column, which identifies the videos."""
_CLASS = ("label", "class", "labels", "classes")
"""Accepted names of the column of labels; the first of them that is there counts."""


class _Labelled(NamedTuple):
    label: str
    split: str
    columns: tuple[tuple[str, str], ...]


class Labels:
    """The rows of labels.csv by the video they name."""

    def __init__(self, source: SourceFiles, names: Iterable[str]) -> None:
        """Read the file if it is there; `names` are the ids and paths of all videos.

        Raises UserError, with the line, if it cannot be parsed.
        """
        self._source = source
        self._table = source.file(LABELS_FILE)
        self._rows: dict[str, _Labelled] = {}
        self._used: set[str] = set()
        self._file_names: set[str] = set()
        if not self._table.present:
            return
        for name, row in read_csv(self._table, (), self._parse, delimiters=",;\t"):
            if name in self._rows:
                raise UserError(f"{self._table} names '{name}' on two lines; remove one of the two")
            self._rows[name] = row
        self._file_names = {name for name in names if name in self._rows}
        for name in self._rows.keys() - self._file_names:
            if PurePath(name).suffix.lower() not in SUFFIXES and not source.folder.kind(name):
                self._file_names.add(name)

    def _parse(self, row: Row) -> tuple[str, _Labelled]:
        values = {name.strip(): value.strip() for name, value in row.items()}
        first, *others = [*filter(None, values)] or [""]  # spreadsheets add columns without a name
        if first.lower() not in PATH_COLUMNS:
            raise ValueError(
                f"the first column is '{first}'; expected one of {', '.join(PATH_COLUMNS)}, as in path,label"
            )
        if not values[first]:
            raise ValueError("the name of the video is empty")
        video = os.path.normpath(values[first].removeprefix(f"{composed(str(self._source.folder))}/"))
        lowered = {name.lower(): name for name in others}
        label = next((lowered[name] for name in _CLASS if name in lowered), None)
        split = lowered.get("split")
        word = values[split].lower() if split else ""
        if word and word not in SPLIT_NAMES:
            raise ValueError(f"unknown split '{word}'; available: {', '.join(SPLIT_NAMES)}, or nothing")
        further = [name for name in others if name not in (label, split)]
        taken = [name for name in further if name in index.ANNOTATION_COLUMNS]
        if taken:
            raise ValueError(f"a further column has the name {taken[0]}, which the index uses itself; rename it")
        columns = tuple((name, values[name]) for name in further)
        return video, _Labelled(values[label] if label else "", SPLIT_NAMES.get(word, ""), columns)

    def apply(self, video: ListedVideo, path: str) -> ListedVideo:
        """The video with the values of its row, found by its id or its path below the source, with or without suffix.

        A row that is the whole name of a file is not that of another (a.avi, with a.avi.mp4 beside it). Raises
        UserError if there are several.
        """
        names = {video.id, path}
        names |= {str(PurePath(name).with_suffix("")) for name in (video.id, path)} - self._file_names
        matches = sorted(names & self._rows.keys())
        if not matches:
            return video
        if len(matches) > 1:
            raise UserError(f"{self._table} names a video twice, as {' and as '.join(matches)}; remove one of the rows")
        self._used.add(matches[0])
        row = self._rows[matches[0]]
        return replace(video, label=row.label or video.label, split=row.split or video.split, columns=row.columns)

    def unused(self) -> Iterator[Missing]:
        """The rows that named none of the videos so far."""
        for name in self._rows:
            if name not in self._used:
                yield Missing(name, NO_VIDEO if self._source.folder.kind(name) else NOT_LISTED)
