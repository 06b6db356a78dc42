"""A video on its way into a shard, and the suffixes of files that may hold one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gdt.common.folders import Folder

SUFFIXES = (
    {".264", ".265", ".3g2", ".3gp", ".3gp2", ".3gpp", ".amv", ".asf", ".avc", ".avi", ".divx", ".f4v"}
    | {".flv", ".h264", ".h265", ".h26l", ".hevc", ".ismv", ".ivf", ".m1v", ".m2p", ".m2t", ".m2ts", ".m2v"}
    | {".m4v", ".mj2", ".mjpeg", ".mjpg", ".mk3d", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mpv"}
    | {".mts", ".mxf", ".nut", ".ogg", ".ogm", ".ogv", ".psp", ".qt", ".rm", ".rmvb", ".tp", ".trp", ".ts"}
    | {".vob", ".webm", ".wmv"}
)
"""Suffixes of the formats that ffmpeg may read, without those for sound or stills alone."""
SOUNDS = (
    {".aac", ".ac3", ".afc", ".aif", ".aifc", ".aiff", ".eac3", ".ec3", ".flac"}
    | {".m4a", ".m4b", ".mka", ".mp2", ".mp3", ".oga", ".opus"}
    | {".wav", ".weba", ".wma"}
)
"""Suffixes of files of sound alone; .ogg may be either."""
MEDIA = SUFFIXES | SOUNDS


@dataclass(frozen=True, slots=True)
class TimedWords:
    """Timed tokens of one video in the order they are spoken; three lists of the same length."""

    token: list[int]
    """Row of the word in the word2vec file."""
    start: list[float]
    """Seconds from the start of the video."""
    end: list[float]


@dataclass(frozen=True, slots=True)
class ListedVideo:
    """One video file of a data set, or a part of one."""

    id: str
    """Unique in the data set."""
    path: Path
    """Path of its file in the source."""
    folder: Folder | None = field(default=None, compare=False, kw_only=True)
    """The folder of its path, if that is not the source."""
    label: str = ""
    """Class name; empty if unknown."""
    split: str = ""
    """train, val or test; unused if only other official folds use the video; empty if --val and --test decide."""
    folds: tuple[str, ...] = ()
    """The split in each official fold (train, test or unused); empty for data sets without folds."""
    official: bool = field(default=False, kw_only=True)
    """Whether the folds are official ones, which count it however short it is."""
    segment: tuple[float, float] | None = None
    """Start and end, in seconds of the file, of the part to cut out; None for the whole file."""
    uncut: bool = field(default=False, compare=False)
    """Whether the file is known to be that from which the segment comes, however short it is."""
    part: tuple[str, float, float] | None = field(default=None, compare=False)
    """Id of the longer video that this is a part of, and start and end in seconds of that one; None for a whole one."""
    shared: bool = field(default=False, compare=False)
    """Whether other segments come from the same file."""
    stretches: tuple[tuple[float, float], ...] = ()
    """Start and end, in seconds, of the parts to keep, in order and disjoint; empty for the whole video."""
    words: TimedWords | None = None
    """Words of the captions; None without captions or vocabulary."""
    columns: tuple[tuple[str, str], ...] = ()
    """Name and value of further columns of labels."""
    size: int = -1
    """Bytes of the file when it was listed; -1 if there was none."""
    time: str = ""
    """When the file had last changed then, or the tag of the object; empty if unknown."""
