"""Videos with the words of their captions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gdt.common.files import kind
from gdt.preprocess.captions.readers import Captions
from gdt.preprocess.captions.stretches import retime, stretches
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import Missing, Video
from gdt.preprocess.tables import composed

_STRETCHES = 1000
"""Maximum stretches per video, since each becomes an argument of ffmpeg."""


@dataclass(frozen=True)
class Spoken:
    """What is said in the videos of a data set.

    Captions match a video by its id, else by its path below `source`, with or without the suffix. Words are looked up
    for one shard at a time, since those of all videos would not fit in memory.
    """

    captions: Captions
    vocabulary: Vocabulary
    source: Path
    only_captioned: bool
    """Leave out videos without captions, and cut the others to captioned stretches."""

    def select(self, items: Iterable[Video | Missing]) -> Iterator[Video | Missing]:
        """The videos of the data set."""
        for item in items:
            silent = self.only_captioned and isinstance(item, Video) and self._name(item) is None
            yield Missing(item.id, "it has no captions", item.path) if silent else item

    def attach(self, video: Video) -> Video:
        """The video with its words."""
        lines = self.captions.get(self._name(video) or "")
        words = self.vocabulary.words(lines)
        if not self.only_captioned:
            return replace(video, words=words)
        gap = 2.0
        while len(kept := stretches(lines, gap)) > _STRETCHES:
            gap *= 2
        return replace(video, words=retime(words, kept), stretches=kept)

    def _name(self, video: Video) -> str | None:
        """The name of its captions."""
        path, suffix = composed(os.path.relpath(video.path, self.source)), video.path.suffix
        names = [video.id, path.removesuffix(suffix), path, video.id.removesuffix(suffix)]
        if "." in video.path.stem and not kind(video.path.with_suffix("")):
            names = [video.id, path]  # a.avi, beside a.avi.mp4, has its own
        return next((name for name in names if name in self.captions), None)
