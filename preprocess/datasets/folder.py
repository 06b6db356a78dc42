"""Any tree of videos; subfolders are classes, and folders named train, val or test are splits.

source/a.mp4                      no class, split train
source/cats/a.mp4                 class cats, split train
source/test/cats/indoor/a.mp4     class cats/indoor, split test
"""

from __future__ import annotations

from pathlib import Path

from preprocess.datasets.listing import SPLITS, SUFFIXES, Listing, Video, video_files

EXPECTED = (
    f"expected files ending in {', '.join(sorted(SUFFIXES))}, at any depth; subfolders are classes, "
    "folders train, val, test are splits"
)


def listing(source: Path) -> Listing:
    """One video per file; its id is the path below `source`."""
    videos = []
    for path in video_files(source):
        relative = path.relative_to(source)
        folders = relative.parent.parts
        split = SPLITS.get(folders[0].lower()) if folders else None
        label = "/".join(folders[1:] if split else folders)
        videos.append(Video(str(relative), path, label, split or "train"))
    return Listing(videos)
