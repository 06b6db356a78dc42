"""Videos that are named one by one, or by the folders that they are in, wherever these are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np

from gdt.common.errors import Skipped, Unusable, UserError
from gdt.common.folders import Folder, LocalFolder
from gdt.common.stores import Place, file_at, folder_at
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.rejected import read_rejected
from gdt.preprocess.datasets.folder import TREE
from gdt.preprocess.datasets.listing import MEDIA, DataSet, ListedVideo, SourceFiles, ignored_in_words, incomplete
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run
from gdt.preprocess.textfiles import composed

ANYWHERE = Path("/")
"""The source of these videos."""


@dataclass(frozen=True)
class NamedVideos:
    sources: Sequence[Place]
    """Folders, or files."""
    scratch: Path
    """A folder for the copies of those in stores."""
    names: list[str] = field(default_factory=list)
    """Paths of the videos listed so far, with the folders as in `sources`; the id of a video is its number."""

    def listing(self, source: SourceFiles) -> Iterator[ListedVideo]:
        """Yield the videos in the order of the sources.

        Raises UserError if a source is neither a folder, a video nor a sound, or if none of them holds a video.
        """
        before: set[Path] = set()
        for number, place in enumerate(self.sources):
            if isinstance(place, Path):
                _require_videos(place, before)
            folder, paths = _files(place, source)
            copies = self.scratch / str(number)
            copies.mkdir()
            for path, file in zip(paths, folder.bring(paths, copies), strict=True):
                yield ListedVideo(f"{len(self.names):08d}", file.absolute().relative_to(ANYWHERE))
                self.names.append(folder.address(path))
        if not self.names:
            what = f"there are no videos in {' '.join(map(str, self.sources))}"
            raise incomplete("; ".join([what, *ignored_in_words(source.ignored)]), TREE)


def decode_named(sources: Sequence[Place], scratch: Path, workers: int) -> tuple[Index, tuple[Skipped, ...]]:
    """An index of videos in the order of the sources, with paths as ids, and the skipped files with reasons.

    Their shards in `scratch` are the loader's way of reading videos. Raises Unusable, with these, if no video can be
    used, and UserError as `NamedVideos.listing`.
    """
    videos = NamedVideos(sources, scratch)
    shards = scratch / "shards"

    def rejected() -> tuple[Skipped, ...]:
        rows = read_rejected(LocalFolder(shards))
        return tuple(Skipped(videos.names[int(row.id)], row.reason, row.again) for row in rows)

    try:
        settings = Preprocess("folder", ANYWHERE, shards, workers=workers, allow_rejected=True)
        index = run(settings, DataSet(videos.listing, TREE)).index
    except Unusable as error:
        if not videos.names or not (skipped := rejected()):
            raise
        raise Unusable(f"no video can be used; the first, {skipped[0].path}: {skipped[0].reason}", skipped) from error
    return replace(index, id=np.array([videos.names[int(id)] for id in index.id], object)), rejected()


def _require_videos(path: Path, before: set[Path]) -> None:
    """Add a folder to those `before`.

    Raises UserError unless it shares no videos with them, or is a video or a sound.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_dir():
        folder = path.resolve()
        if before & {folder, *folder.parents} or any(folder in other.parents for other in before):
            raise UserError(f"{path} and a folder before it share videos; name each once")
        before.add(folder)
    elif not path.is_file() or path.suffix.lower() not in MEDIA:
        raise UserError(
            f"{path} is neither a folder nor a video or sound file, which ends in {', '.join(sorted(MEDIA))}"
        )


def _files(place: Place, source: SourceFiles) -> tuple[Folder, Sequence[PurePath]]:
    """A folder and the paths in it of the videos of a place; `source` notes what else is there."""
    file = file_at(place)
    if file.path.suffix.lower() in MEDIA and not (isinstance(place, Path) and place.is_dir()):
        return file.folder, [file.path]
    folder = folder_at(place)
    paths = SourceFiles(folder, source.ignored, source.notes).files()
    return folder, sorted(paths, key=composed)
