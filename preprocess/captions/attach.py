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
    """The videos with their words; with `only_captioned`, only captioned videos and captioned stretches of them.

    Captions match a video by its id, else by its path below `source`, with or without the suffix. A bare stem, which
    videos in several folders may share, matches only in `source` itself or as an id; the number of videos that lack
    captions for this reason is printed. Videos with damaged captions come as missing.
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
            f"{videos} no captions: captions named '{stem}' are those of {stem}.* in {source} itself; for videos in "
            f"subfolders, name them by their path, such as '{example}'",
            flush=True,
        )
