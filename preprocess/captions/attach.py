"""Videos with the words of their captions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gdt.common.errors import UserError
from gdt.preprocess.captions.readers import Caption, Captions
from gdt.preprocess.captions.stretches import retime, stretches
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import Missing, Video

_STRETCHES = 1000
"""Maximum stretches per video, since each becomes an argument of ffmpeg."""


def attach(
    items: Iterable[Video | Missing], captions: Captions, vocabulary: Vocabulary, source: Path, only_captioned: bool
) -> Iterator[Video | Missing]:
    """Yield the videos with their words; with `only_captioned`, only captioned videos, cut to captioned stretches.

    Captions match a video by its id, else by its path below `source`, with or without the suffix. Since videos in
    several folders may share a stem, a bare stem matches only as an id or directly in `source`; prints how many videos
    lack captions for this reason. Yields Missing for videos with damaged captions.
    """
    by_stem, example = 0, ""
    for item in items:
        if isinstance(item, Missing):
            yield item
            continue
        stem, path = item.path.stem, os.path.relpath(item.path, source)
        name = path.removesuffix(item.path.suffix)
        names = dict.fromkeys((item.id, name, path, item.id.removesuffix(item.path.suffix)))
        try:
            lines: list[Caption] = next(filter(None, map(captions.get, names)), [])
            if not lines and stem not in names and stem in captions:
                by_stem += 1
                example = example or name
        except UserError as error:
            yield Missing(item.id, f"cannot read its captions: {error}")
            continue
        words = vocabulary.words(lines)
        if not only_captioned:
            yield replace(item, words=words)
        elif lines:
            gap = 2.0
            while len(kept := stretches(lines, gap)) > _STRETCHES:
                gap *= 2
            yield replace(item, words=retime(words, kept), stretches=kept)
        else:
            yield Missing(item.id, "it has no captions")
    if by_stem:
        videos, stem = "1 video has" if by_stem == 1 else f"{by_stem} videos have", Path(example).name
        print(
            f"{videos} no captions: captions named '{stem}' match only {stem}.* directly in {source}; name captions of "
            f"videos in subfolders by path, such as '{example}'",
            flush=True,
        )
