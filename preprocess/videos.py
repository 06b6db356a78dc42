"""All videos of a run, as a list in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Annotations
from gdt.preprocess.datasets.listing import Missing, Video, size_of


@dataclass(frozen=True)
class Shares:
    """Fractions of the videos without a split that become val and test; the others become train."""

    val: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        for option, share in (("--val", self.val), ("--test", self.test)):
            if not 0 <= share < 1:
                raise UserError(f"{option} is {share}; it must be 0 or more and below 1, such as 0.1")
        if self.val + self.test >= 1:
            raise UserError(
                f"--val is {self.val} and --test is {self.test}; they must add up to less than 1 (an option that is "
                "not given keeps its value from the last run)"
            )

    def split(self, video_id: str) -> str:
        """The split of a video, which depends only on its id.

        Changing the share of val moves no video into or out of test, and vice versa.
        """
        draw = int.from_bytes(hashlib.blake2b(video_id.encode(), digest_size=8).digest(), "little") / 2**64
        return "test" if draw < self.test else "val" if draw > 1 - self.val else "train"


@dataclass(frozen=True)
class Listed:
    """The videos of a data set."""

    videos: dict[str, Video]
    """By id, sorted, each with its split and the size of its file."""
    missing: list[Missing]
    """Those that cannot be used."""
    drawn: bool
    """Whether the shares decide the split of some videos."""

    def annotations(self, ids: Sequence[str]) -> Annotations:
        """Labels, splits, folds and further columns of the videos with these ids."""
        videos = [self.videos[id] for id in ids]
        named = {
            "label": [video.label for video in videos], "split": [video.split for video in videos],
            "folds": [",".join(video.folds) for video in videos],
        }  # fmt: skip
        for row, video in enumerate(videos):
            for name, value in video.columns:
                named.setdefault(name, [""] * len(ids))[row] = value
        return named


def collect(items: Iterable[Video | Missing], shares: Shares = Shares()) -> Listed:
    """The list of the videos: the first of each id. Those without a split get one by `shares`."""
    videos: dict[str, Video] = {}
    missing: list[Missing] = []
    drawn = False
    for item in items:
        if isinstance(item, Missing):
            missing.append(item)
        elif (first := videos.get(item.id)) is not None:
            missing.append(Missing(item.id, f"it has the id of {first.path}, which is kept", item.path))
        else:
            drawn |= not item.split
            videos[item.id] = replace(item, split=item.split or shares.split(item.id), size=size_of(item.path))
    return Listed(dict(sorted(videos.items())), missing, drawn)
