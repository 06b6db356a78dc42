"""Words spoken from the start of the clip on -> word vectors."""

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
    """Text clips of n leaves, the input of the text encoder."""

    vectors: torch.Tensor
    """float16 [n, words, dimensions], padded with 0."""
    mask: torch.Tensor
    """False for padding: bool [n, words]."""
    tokens: np.ndarray
    """Rows of the word2vec file, padded with NOTHING: int64 [n, words]."""

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, count: int = 1) -> Words:
        """The text clips of some leaves."""
        chosen = slice(first, first + count)
        return Words(self.vectors[chosen], self.mask[chosen], self.tokens[chosen])


@dataclass(frozen=True)
class _Work:
    """The text leaves of a batch."""

    leaves: Leaves
    which: np.ndarray
    """Index of each leaf's clip in `reading`: int64 [n]."""
    reading: Reading[np.ndarray]

    def tokens(self) -> np.ndarray:
        """Tokens of each leaf in its order: int64 [n, words]."""
        read = self.reading.result()
        padded = np.full((len(read), self.leaves.words.shape[1] + 1), NOTHING, np.int64)
        for row, tokens in zip(padded, read, strict=True):
            row[: len(tokens)] = tokens
        ordered = np.take_along_axis(padded[self.which], self.leaves.words, 1)
        padding_last = np.argsort(ordered == NOTHING, axis=1, kind="stable")
        return np.take_along_axis(ordered, padding_last, 1)


class TextSource(InputSource):
    """Words. The loss ignores clips without words; they do enter batch-norm statistics."""

    modality = "text"

    def prepare(self) -> None:
        self._vectors = (self.words or WordVectors.of(self.index, None)).vectors  # raises where there are none

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        works = (self._work(leaves) for leaves in batches)
        for work in ahead(works, self.loading.read_ahead, lambda work: len(work.reading.videos)):
            tokens = work.tokens()
            mask = tokens != NOTHING
            vectors = np.where(mask[..., None], self._vectors[tokens], np.float16(0))
            words = Words(memory().store("vectors", vectors), memory().store("mask", mask), tokens)
            yield Part(words, mask.any(1))

    def _work(self, leaves: Leaves) -> _Work:
        # leaves of one clip differ only in the order of its words
        keys = np.stack([leaves.video, leaves.start, leaves.words_seconds], 1)
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        clips = leaves.take(first)
        words = [leaves.words.shape[1]] * len(clips)
        arguments = clips.start / self.index.fps, words, clips.words_seconds
        reading = self.begin(clips.video, self.reader.tokens, *arguments)
        return _Work(leaves, which.reshape(-1), reading)
