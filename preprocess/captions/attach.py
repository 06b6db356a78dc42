"""Videos with the words of their captions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from gdt.common.errors import LeftOut
from gdt.common.folders import Folder
from gdt.preprocess.captions.readers import Captions, without_language
from gdt.preprocess.captions.stretches import retime, stretches
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import CAPTIONS, NO_CAPTIONS, Item, SourceFiles, titled_id
from gdt.preprocess.textfiles import composed
from gdt.preprocess.videos import MEDIA, ListedVideo

_STRETCHES = 1000
"""Maximum stretches per video, since each becomes an argument of ffmpeg."""


@dataclass(frozen=True)
class Spoken:
    """What is said in the videos of a data set.

    Captions match a video by its id, else by its path below `source`, with or without the suffix, else by the id of the
    longer video that it is a part of. Words are looked up for one shard at a time, since those of all videos would not
    fit in memory.
    """

    captions: Captions
    vocabulary: Vocabulary
    source: Folder
    only_captioned: bool
    """Leave out videos without captions, and cut the others to captioned stretches."""

    def select(self, items: Iterable[Item], files: SourceFiles) -> Iterator[Item]:
        """Yield the items, LeftOut for videos without the captions that they need; counts captions of no video."""
        used = {""}
        for item in items:
            if isinstance(item, ListedVideo):
                name = self._name(item)
                used.add(name)
                if self.only_captioned and not name:
                    item = LeftOut(item.id, "it has no captions", str(item.path))
            yield item
        files.ignore(CAPTIONS, self.captions.unused(used))
        files.ignore(NO_CAPTIONS, self.captions.others)

    def attach(self, video: ListedVideo) -> ListedVideo:
        name = self._name(video)
        lines = self.captions.get(name)
        words = self.vocabulary.words(lines)
        if video.part and f"{video.part[0]}_" not in PurePath(name).name:  # else they are of the part alone
            words = retime(words, [video.part[1:]])
        if not self.only_captioned:
            return replace(video, words=words)
        gap = 2.0
        kept = stretches(lines, gap)
        while len(kept) > _STRETCHES:
            gap *= 2
            kept = stretches(lines, gap)
        return replace(video, words=retime(words, kept), stretches=kept)

    def _name(self, video: ListedVideo) -> str:
        """The name of its captions; empty without any."""
        path = composed(video.path)
        suffix = video.path.suffix
        names = [video.id, path.removesuffix(suffix), path, video.id.removesuffix(suffix)]
        if "." in video.path.stem and not self.source.kind(video.path.with_suffix("")):
            names = [video.id, path]  # a.avi, beside a.avi.mp4, has its own
        names.append(video.part[0] if video.part else titled_id(composed(video.path.stem)))
        name = self.captions.named(names)
        with_language = PurePath(name).name
        stem = composed(video.path.stem)
        if name in ("", *names) or with_language == stem:
            return name
        title = without_language(with_language)
        if title != stem and titled_id(stem) and titled_id(title):
            return ""  # they are of another video, with the same word in brackets
        beside = {video.path.with_name(with_language + end) for end in ("", *MEDIA)} - {video.path}
        return name if all(map(self.source.kind, beside)) else ""  # a.en.mp4, beside a.mp4, has its own
