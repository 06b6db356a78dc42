"""What is said from the start of the clip -> word vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.sources.base import InputSource, Memory, Part, Reading, ahead
from gdt.pipeline.word2vec import WordVectors

NOTHING = -1


@dataclass(frozen=True)
class Words:
    """Text clips of n leaves, as the text encoder takes them."""

    vectors: torch.Tensor
    """float16 [n, words, dimensions]; 0 after the last word."""
    mask: torch.Tensor
    """Whether there is a word: bool [n, words]."""
    tokens: np.ndarray
    """Rows of the word2vec file, NOTHING after the last word: int64 [n, words]."""

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, count: int = 1) -> Words:
        """Those of some leaves."""
        chosen = slice(first, first + count)
        return Words(self.vectors[chosen], self.mask[chosen], self.tokens[chosen])


@dataclass(frozen=True)
class _Work:
    """The text leaves of a batch."""

    leaves: Leaves
    which: np.ndarray
    """Which of the clips that are read each of them holds: int64 [n]."""
    reading: Reading[np.ndarray]

    def tokens(self) -> tuple[np.ndarray, list[str]]:
        """Tokens of each leaf in its order, int64 [n, words], and the names of what is damaged."""
        read, _, damaged = self.reading.result()
        spoken = np.full((len(read), self.leaves.words.shape[1] + 1), NOTHING, np.int64)
        for row, tokens in zip(spoken, read, strict=True):
            row[: len(tokens)] = tokens
        ordered = np.take_along_axis(spoken[self.which], self.leaves.words, 1)
        # those that are not said move behind the others
        behind = np.argsort(ordered == NOTHING, axis=1, kind="stable")
        return np.take_along_axis(ordered, behind, 1), damaged


class TextSource(InputSource):
    """Words. A clip in which nothing is said has no weight in the loss, and so has one whose words are damaged."""

    modality = "text"
    always_usable = False

    def prepare(self) -> None:
        self._vectors = (self.words or WordVectors.of(self.index, None)).vectors  # raises where there are none

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        works = (self._work(leaves) for leaves in batches)
        for work in ahead(works, self.loading.read_ahead, lambda work: len(work.reading.videos)):
            tokens, damaged = work.tokens()
            said = tokens != NOTHING
            vectors = np.where(said[..., None], self._vectors[tokens], np.float16(0))
            words = Words(memory().hold("vectors", vectors), memory().hold("said", said), tokens)
            yield Part(words, said.any(1), damaged)

    def _work(self, leaves: Leaves) -> _Work:
        # leaves of one clip differ only in the order of its words
        places = np.stack([leaves.video, leaves.start, leaves.words_seconds], 1)
        _, first, which = np.unique(places, axis=0, return_index=True, return_inverse=True)
        clips = leaves.take(first)
        most = [leaves.words.shape[1]] * len(clips)
        seconds = clips.start / self.index.fps
        reading = self.begin(clips.video, self.reader.tokens, self._nothing, seconds, most, clips.words_seconds)
        return _Work(leaves, which.reshape(-1), reading)

    def _nothing(self, video: int) -> np.ndarray:
        return np.zeros(0, np.int32)
