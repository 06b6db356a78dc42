"""Videos that are named one by one, or by the folders that they are in, wherever these are."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from gdt.common.errors import LeftOut, Unusable, UserError
from gdt.common.folders import Folder
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.rejected import read_rejected
from gdt.preprocess.datasets.folder import TREE
from gdt.preprocess.datasets.listing import DataSet, SourceFiles, ignored_in_words, incomplete
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run
from gdt.preprocess.textfiles import composed
from gdt.preprocess.videos import MEDIA, SOUNDS, ListedVideo

_ROOT = Path("/")
"""The folder that holds all of them, once those in stores are copied."""


Found = list[tuple[Folder, Sequence[PurePath]]]
"""Folders, and the paths of files in each."""


def decode_named(found: Found, scratch: Path, workers: int, fps: int) -> tuple[Index, tuple[LeftOut, ...]]:
    """An index of videos in the order in which they were found, with paths as ids, and the skipped files with reasons.

    The shards in `scratch` are the loader's way of reading videos. Raises Unusable, with the skipped files, if no video
    can be used.
    """
    names = [folder.address(path) for folder, paths in found for path in paths]

    def listing(source: SourceFiles) -> Iterator[ListedVideo]:
        for number, file in enumerate(_bring(found, scratch)):
            # an index is sorted by its ids, so numbers keep the order; names may occur twice, and need not be UTF-8
            yield ListedVideo(f"{number:08d}", file.absolute().relative_to(_ROOT))

    shards = scratch / "shards"
    extraction = Extraction(fps=fps)
    settings = Preprocess("folder", _ROOT, shards, workers=workers, allow_rejected=True, extraction=extraction)
    try:
        index = run(settings, DataSet(listing, TREE)).index
    except Unusable as error:
        skipped = _skipped(shards, names)
        if not skipped:
            raise
        raise Unusable(f"no video can be used; the first, {skipped[0].path}: {skipped[0].reason}", skipped) from error
    return replace(index, id=np.array([names[int(id)] for id in index.id], object)), _skipped(shards, names)


def _skipped(shards: Path, names: Sequence[str]) -> tuple[LeftOut, ...]:
    rejected = read_rejected(Folder(shards))
    return tuple(replace(video, path=names[int(video.id)]) for video in rejected)


def find(sources: Sequence[Folder | Path]) -> Found:
    """The videos and sounds of each source, a folder or a file.

    Raises UserError if a source is neither a folder, a video nor a sound, or if none of them holds any.
    """
    ignored: Counter[str] = Counter()
    before: set[Path] = set()
    found: Found = []
    for folder in map(Folder, sources):
        if not folder.remote:
            require_videos(folder.root, before)
        path = PurePath(str(folder))
        if not folder.remote and folder.root.is_dir():
            before.add(folder.root.resolve())
        elif path.suffix.lower() in MEDIA:
            found.append((folder.parent, [PurePath(path.name)]))
            continue
        files = SourceFiles(folder.snapshot())
        found.append((files.folder, sorted(files.files(), key=composed)))
        ignored.update(files.ignored)
    if not any(paths for _, paths in found):
        what = f"there are no videos in {' '.join(map(str, sources))}"
        raise incomplete("; ".join([what, *ignored_in_words(ignored)]), TREE)
    return found


def only_sounds(found: Found) -> bool:
    return all(path.suffix.lower() in SOUNDS for _, paths in found for path in paths)


def _bring(found: Found, scratch: Path) -> Iterator[Path]:
    """The files on this machine."""
    for number, (folder, paths) in enumerate(found):
        copies = scratch / str(number)
        copies.mkdir()
        yield from folder.bring(paths, copies)


def require_videos(path: Path, before: set[Path]) -> None:
    """Raise UserError unless a path is a folder that shares no videos with those `before`, or a video or a sound."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_dir():
        folder = path.resolve()
        if before & {folder, *folder.parents} or any(folder in other.parents for other in before):
            raise UserError(f"{path} and a folder before it share videos; name each once")
    elif not path.is_file() or path.suffix.lower() not in MEDIA:
        raise UserError(
            f"{path} is neither a folder nor a video or sound file, which ends in {', '.join(sorted(MEDIA))}"
        )
