"""Videos with what is said in them."""

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
"""Most stretches of a video, which ffmpeg is told on its command line."""


def attach(
    items: Iterable[Video | Missing], captions: Captions, vocabulary: Vocabulary, source: Path, only_captioned: bool
) -> Iterator[Video | Missing]:
    """The videos with their words; with `only_captioned`, without what nobody speaks in, or captions are silent on.

    Captions go by a video's id, else by its path below `source`, each with and without the suffix; so a bare stem,
    which videos in several folders may have, counts in `source` itself, or where it is the id. Prints how many videos
    only a bare stem would have served. A video whose captions are damaged is named as missing.
    """
    by_stem, example = 0, ""
    for item in items:
        if isinstance(item, Missing):
            yield item
            continue
        stem, path = item.path.stem, os.path.relpath(item.path, source)
        place = path.removesuffix(item.path.suffix)
        names = dict.fromkeys((item.id, place, path, item.id.removesuffix(item.path.suffix)))
        try:
            said: list[Caption] = next(filter(None, map(captions.get, names)), [])
            if not said and stem not in names and stem in captions:
                by_stem += 1
                example = example or place
        except UserError as error:
            yield Missing(item.id, f"its captions cannot be read: {error}")
            continue
        words = vocabulary.words(said)
        if not only_captioned:
            yield replace(item, words=words)
        elif said:
            gap = 2.0
            while len(kept := stretches(said, gap)) > _STRETCHES:
                gap *= 2
            yield replace(item, words=retime(words, kept), stretches=kept)
        else:
            yield Missing(item.id, "there are no captions of it")
    if by_stem:
        videos, stem = "1 video was" if by_stem == 1 else f"{by_stem} videos were", Path(example).name
        print(
            f"{videos} given no captions: those of '{stem}' count only for a video {stem}.* in {source} itself; "
            f"name them by their path, such as '{example}'",
            flush=True,
        )
