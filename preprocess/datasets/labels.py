"""labels.csv: labels, splits and further columns of the videos in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from gdt.common.errors import LeftOut, UserError
from gdt.pipeline.shards import index
from gdt.preprocess.datasets.listing import SPLIT_NAMES, SourceFiles
from gdt.preprocess.textfiles import Row, composed, read_csv
from gdt.preprocess.videos import SUFFIXES, ListedVideo

LABELS_FILE = "labels.csv"
NO_VIDEO = f"named in {LABELS_FILE}, but no video has this path or id"
NOT_LISTED = (
    f"named in {LABELS_FILE}, but hidden, outside of the source, listed by another path, or not a video by its suffix"
)
PATH_COLUMNS = ("path", "id", "file", "filename", "video", "name")
"""Accepted names of the first column, which identifies the videos."""
_CLASS = ("label", "class", "labels", "classes")
"""Accepted names of the column of labels; the first of them that is there counts."""
_SPLIT = "split"
_FOLD = "fold"
_MOST_FOLDS = 20
_MISSING = ("nan", "NaN", "None", "<NA>", "NaT")
"""What pandas and Python write for a missing value."""


class _Columns(NamedTuple):
    """What the columns of the file are read as."""

    video: str
    label: str
    """Empty without; likewise the split and the fold."""
    split: str
    fold: str
    further: list[str]

    @staticmethod
    def of(names: Sequence[str]) -> _Columns:
        """Raises ValueError if the first one does not identify videos, or another has a name of the index's own."""
        first, *others = names or [""]
        if first.lower() not in PATH_COLUMNS:
            raise ValueError(
                f"the first column is '{first}'; expected one of {', '.join(PATH_COLUMNS)}, as in path,label"
            )
        lowered = {name.lower(): name for name in others}
        label = next((lowered[name] for name in _CLASS if name in lowered), "")
        split = lowered.get(_SPLIT, "")
        fold = lowered.get(_FOLD, "")
        if split and fold:
            raise ValueError(f"the columns '{split}' and '{fold}' both set splits; remove one of them")
        further = [name for name in others if name not in (label, split, fold)]
        taken = [name for name in further if name in index.ANNOTATION_COLUMNS]
        if taken:
            raise ValueError(f"a further column has the name {taken[0]}, which the index uses itself; rename it")
        return _Columns(first, label, split, fold, further)

    def __str__(self) -> str:
        read = [f"'{self.video}' names the videos"]
        roles = {"label": self.label, "split": self.split, "fold in which a video is tested": self.fold}
        read += [f"'{name}' is the {role}" for role, name in roles.items() if name]
        if self.further:
            read.append(f"further labels are {', '.join(self.further)}")
        return f"{LABELS_FILE}: {'; '.join(read)}"


class _Labelled(NamedTuple):
    label: str
    split: str
    fold: int
    """From 1; 0: none."""
    columns: tuple[tuple[str, str], ...]


class Labels:
    """The rows of labels.csv by the video they name."""

    def __init__(self, source: SourceFiles, names: Iterable[str]) -> None:
        """Read the file if it is there; `names` are the ids and paths of all videos.

        Raises UserError, with the line, if it cannot be parsed.
        """
        self._source = source
        self._table = source.file(LABELS_FILE)
        self._columns: _Columns | None = None
        self._rows: dict[str, _Labelled] = {}
        self._used: set[str] = set()
        self._names = dict.fromkeys(names) if self._table.present else {}
        self._of_windows = not any("\\" in name for name in self._names)
        if not self._table.present:
            return
        for name, row in read_csv(self._table, (), self._parse, delimiters=",;\t"):
            if name in self._rows:
                raise UserError(f"{self._table} names '{name}' on two lines; remove one of the two")
            self._rows[name] = row
        self._folds = range(1, max((row.fold for row in self._rows.values()), default=0) + 1)
        self._file_names = self._names.keys() & self._rows.keys()
        for name in self._rows.keys() - self._file_names:
            if PurePath(name).suffix.lower() not in SUFFIXES and not source.folder.kind(name):
                self._file_names.add(name)

    def _parse(self, row: Row) -> tuple[str, _Labelled]:
        # spreadsheets add columns without a name
        values = {name.strip(): value.strip() for name, value in row.items() if name.strip()}
        if self._columns is None:
            self._columns = _Columns.of([*values])
        video, label, split, fold, further = self._columns
        name = values[video].replace("\\", "/") if self._of_windows else values[video]
        if not name:
            raise ValueError("the name of the video is empty")
        name = os.path.normpath(name.removeprefix(f"{composed(str(self._source.folder))}/"))
        values = {column: "" if value in _MISSING else value for column, value in values.items()}
        word = values.get(split, "").lower()
        if word and word not in SPLIT_NAMES:
            raise ValueError(f"unknown split '{word}'; available: {', '.join(SPLIT_NAMES)}, or nothing")
        number = values.get(fold, "") or "0"
        if not (number.isdecimal() and int(number) <= _MOST_FOLDS):
            raise ValueError(f"the fold is '{number}'; it must be a number from 1 to {_MOST_FOLDS}, or nothing")
        columns = tuple((column, values[column]) for column in further)
        return name, _Labelled(values.get(label, ""), SPLIT_NAMES.get(word, ""), int(number), columns)

    def say_columns(self) -> None:
        """Add to the readings of the source how the columns are read, if there is the file."""
        if self._columns is not None:
            self._source.readings.append(str(self._columns))

    def apply(self, video: ListedVideo, path: str) -> ListedVideo:
        """The video with the values of its row, found by its id or its path below the source, with or without suffix.

        A row that is the whole name of a file is not that of another (a.avi, with a.avi.mp4 beside it). Raises
        UserError if there are several.
        """
        if not self._rows:
            return video
        names = {video.id, path}
        names |= {str(PurePath(name).with_suffix("")) for name in (video.id, path)} - self._file_names
        matches = sorted(names & self._rows.keys())
        if not matches:
            return replace(video, folds=self._tested_in(0))
        if len(matches) > 1:
            raise UserError(f"{self._table} names a video twice, as {' and as '.join(matches)}; remove one of the rows")
        self._used.add(matches[0])
        row = self._rows[matches[0]]
        folds = self._tested_in(row.fold)
        split = folds[0] if row.fold else row.split or video.split
        return replace(video, label=row.label or video.label, split=split, folds=folds, columns=row.columns)

    def _tested_in(self, fold: int) -> tuple[str, ...]:
        """The split in every fold of a video that is tested in one of them; unused in all if that is 0."""
        return tuple(("test" if number == fold else "train") if fold else "unused" for number in self._folds)

    def unused(self) -> Iterator[LeftOut]:
        """The rows that named none of the videos so far. Raises UserError if that are all."""
        if self._rows and self._names and not self._used:
            raise UserError(
                f"no row of {self._table} names a video: the first is '{next(iter(self._rows))}', and a video is "
                f"'{next(iter(self._names))}'; write paths below {self._source.folder}, or remove the file"
            )
        for name in self._rows:
            if name not in self._used:
                yield LeftOut(name, NO_VIDEO if self._source.folder.kind(name) else NOT_LISTED)
