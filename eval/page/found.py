"""Videos that were found, as figures of a page: in motion and, where a browser can play the file, with their sound."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path, PurePath
from typing import NamedTuple
from urllib.parse import quote

from gdt.common.files import scratch, write_text
from gdt.common.folders import File, Folder
from gdt.common.wording import plural
from gdt.eval.features import Features
from gdt.eval.nearest import split_moment, time_of
from gdt.eval.page.pictures import RATE, SECONDS, picture_of
from gdt.eval.templates import filled
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.preprocess import named
from gdt.preprocess.plan import Plan

_PLAYERS = dict.fromkeys((".mp4", ".m4v", ".webm", ".ogv", ".mov"), "video")
_PLAYERS |= dict.fromkeys((".wav", ".mp3", ".m4a", ".ogg", ".oga", ".opus", ".flac", ".aac"), "audio")
"""The HTML elements that play files, by the suffix."""
Moment = tuple[str, float | None]


class Shown(NamedTuple):
    """A video of the page, or a moment of one."""

    id: str
    """In the shards, or the path of its file; without either, there is no picture."""
    start: float | None
    """Where the moment starts, seconds; None for the whole video."""
    caption: str
    """Such as the cosine, and the time."""
    kind: str = ""
    """asked, right or wrong; empty if that is not known."""
    label: str = ""


def shown(stored: Features, row: int, cosine: float) -> Shown:
    """A row of features, with its cosine and time."""
    start = None if stored.start is None else float(stored.start[row])
    return Shown(str(stored.id[row]), start, " ".join([f"{cosine:.3f}", *time_of(stored, row)]))


def write_found(out: Path, title: str, groups: Sequence[Sequence[Shown]], index: Index | None) -> None:
    """Write the page of rows of features, made of an index or of files: a row of figures per group.

    Raises UserError if ffmpeg cannot be used, and OSError.
    """
    shown = figures(groups, out, index)
    bare = [figure["id"] for group in shown for figure in group if not figure["image"]]
    if bare:
        what = f"no picture of {plural(len(bare), 'video')} (first: {bare[0]})"
        print(f"note: {what}; relative paths of files are those of the folder where gdt embed ran", file=sys.stderr)
    write_text(out, filled("page/found.html.j2", title=title, groups=shown))


def figures(groups: Sequence[Sequence[Shown]], page: Path, index: Index | None) -> list[list[dict[str, str]]]:
    """The values of figures: pictures from shards, if a video is there, else from its file, which is played from there.

    Raises UserError if ffmpeg cannot be used, or if a shard is damaged.
    """
    rows = {} if index is None else {id: row for row, id in enumerate(index.id.tolist())}
    files = {} if index is None else Plan.read(index.folder).files
    moments = {(each.id, each.start) for group in groups for each in group}
    pictures = _decoded(moment for moment in moments if moment[0] not in rows)
    if index is not None:
        reader = ShardReader(index)
        pictures |= {(id, start): picture_of(reader, rows[id], start) for id, start in moments if id in rows}

    def figure(each: Shown) -> dict[str, str]:
        player, address = _player(files.get(each.id, "") if each.id in rows else each.id, each.start or 0.0, page)
        return each._asdict() | {"image": pictures.get(each[:2], ""), "player": player, "address": address}

    return [list(map(figure, group)) for group in groups]


def _player(file: str, start: float, page: Path) -> tuple[str, str]:
    """The HTML element that plays a file, and its address relative to the page; empty if browsers do not play it."""
    name, part = split_moment(file)
    begin = start + (part[0] if part else 0.0)
    player = _PLAYERS.get(Path(name).suffix.lower(), "") if Path(name).is_file() else ""
    path = quote(os.path.relpath(name, page.absolute().parent)) if player else ""
    return player, f"{path}#t={begin:.10g}" if begin else path


def _decoded(moments: Iterable[Moment]) -> dict[Moment, str]:
    """Pictures of those that have a file that can be decoded."""
    keys = {f"{number}": moment for number, moment in enumerate(moments) if Path(moment[0]).is_file()}
    paths = {key: Path(name).absolute() for key, (name, _) in keys.items()}
    files = {key: File(Folder(path.parent), PurePath(path.name)) for key, path in paths.items()}
    parts = {key: (start, start + SECONDS) for key, (_, start) in keys.items() if start is not None}
    pictures: dict[Moment, str] = {}
    if files:
        with scratch() as folder:
            job = named.plan_groups(files, folder, RATE, parts)
            with closing(named.decode_groups(job, [*job.shards])) as groups:
                for index, _ in groups:
                    reader = ShardReader(index)
                    pictures |= {keys[name]: picture_of(reader, row) for row, name in enumerate(index.id.tolist())}
    return pictures
