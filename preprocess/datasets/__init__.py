"""Data sets: where their videos, labels, splits and captions are. One short module each, one entry here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from pipeline.errors import UserError
from preprocess.datasets import folder, kinetics, synthetic
from preprocess.datasets.listing import Listing, Missing

DATASETS: dict[str, Callable[[Path], Listing]] = {
    "folder": folder.listing,
    "kinetics": kinetics.listing,
    "synthetic": synthetic.listing,
}


def listing(dataset: str, source: Path) -> Listing:
    """The videos of a data set below `source`, sorted by id.

    Raises UserError for an unknown data set, a missing or empty source, or an id that occurs twice.
    """
    if dataset not in DATASETS:
        raise UserError(f"there is no data set '{dataset}'; choose one of {', '.join(DATASETS)}")
    if dataset != "synthetic" and not source.is_dir():
        state = "is not a folder" if source.exists() else "does not exist"
        raise UserError(f"the source folder {source} {state}; set SOURCE to the folder that holds your videos")
    found = DATASETS[dataset](source)
    if not found.videos:
        raise UserError(f"there are no videos in {source}; {folder.EXPECTED}")
    videos, missing = [], list(found.missing)
    for video in sorted(found.videos, key=lambda video: video.id):
        if _is_text(str(video.path)):
            videos.append(video)
        else:
            missing.append(Missing(ascii(video.id), "its name is not valid UTF-8; rename it"))
    for one, other in pairwise(videos):
        if one.id == other.id:
            raise UserError(f"two videos have the id '{one.id}': {one.path} and {other.path}; rename one of them")
    return Listing(videos, missing)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
