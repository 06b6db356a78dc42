"""A page of videos that were found: in motion and, where a browser can play the file, with their sound."""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePath
from typing import NamedTuple
from urllib.parse import quote

from gdt.common.files import TEMPORARY, write_text
from gdt.common.folders import File, Folder
from gdt.eval.features import Features
from gdt.eval.nearest import time_of
from gdt.eval.page.pictures import RATE, SECONDS, picture_of
from gdt.eval.templates import filled
from gdt.pipeline.shards.reader import ShardReader
from gdt.preprocess import named

_VIDEO = {".mp4", ".m4v", ".webm", ".ogv", ".mov"}
_SOUND = {".wav", ".mp3", ".m4a", ".ogg", ".oga", ".opus", ".flac", ".aac"}
"""What browsers play."""


class Shown(NamedTuple):
    """A video of the page, or a moment of one."""

    id: str
    """The path of its file; without a file, there is no picture."""
    start: float | None
    """Where the moment starts, seconds; None for the whole video."""
    caption: str
    """Such as the cosine, and the time."""


def shown(stored: Features, row: int, cosine: float) -> Shown:
    """A row of features, with its cosine and time."""
    start = None if stored.start is None else float(stored.start[row])
    return Shown(str(stored.id[row]), start, " ".join([f"{cosine:.3f}", *time_of(stored, row)]))


def write_found(out: Path, title: str, groups: Sequence[Sequence[Shown]]) -> None:
    """Write the page: a row of pictures per group. Files are played from where they are, and nothing is loaded before.

    Raises UserError if ffmpeg cannot be used, and OSError.
    """
    pictures = _pictures({(each.id, each.start) for group in groups for each in group})
    rows = [
        [
            {
                "image": pictures.get((each.id, each.start), ""),
                "player": _player(each.id),
                "address": _address(each, out),
                "id": each.id,
                "caption": each.caption,
            }
            for each in group
        ]
        for group in groups
    ]
    write_text(out, filled("page/found.html.j2", title=title, groups=rows))


def _player(name: str) -> str:
    """The HTML element that plays a file; empty without a file that browsers play."""
    suffix = Path(name).suffix.lower()
    if not Path(name).is_file() or suffix not in _VIDEO | _SOUND:
        return ""
    return "video" if suffix in _VIDEO else "audio"


def _address(video: Shown, out: Path) -> str:
    """The address of a file, relative to the page."""
    path = quote(os.path.relpath(video.id, out.absolute().parent))
    return path if video.start is None else f"{path}#t={video.start:g}"


def _pictures(moments: Iterable[tuple[str, float | None]]) -> Mapping[tuple[str, float | None], str]:
    """Pictures of those that have a file that can be decoded."""
    keys = {f"{number}": moment for number, moment in enumerate(moments) if Path(moment[0]).is_file()}
    files = {}
    parts = {}
    for key, (name, start) in keys.items():
        path = Path(name).absolute()
        files[key] = File(Folder(path.parent), PurePath(path.name))
        if start is not None:
            parts[key] = (start, start + SECONDS)
    pictures: dict[tuple[str, float | None], str] = {}
    if files:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as scratch:
            job = named.plan_groups(files, Path(scratch), RATE, parts)
            with closing(named.decode_groups(job, [*job.shards])) as groups:
                for index, _ in groups:
                    reader = ShardReader(index)
                    pictures |= {keys[name]: picture_of(reader, row) for row, name in enumerate(index.id.tolist())}
    return pictures
