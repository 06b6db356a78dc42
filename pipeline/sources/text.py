"""Words spoken from the start of the clip on -> word vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.sources.base import InputSource, Part, SourceContext, ahead
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

    def floats(self) -> torch.Tensor:
        """The vectors in float32."""
        return self.vectors.float()

    def __getitem__(self, chosen: slice) -> Words:
        return Words(self.vectors[chosen], self.mask[chosen], self.tokens[chosen])


class TextSource(InputSource):
    """Words. The loss ignores clips without words; they do enter batch-norm statistics."""

    modality = "text"

    def __init__(self, context: SourceContext) -> None:
        super().__init__(context)
        self._vectors = (context.words or WordVectors.of(self.index, None)).vectors  # raises where there are none

    def parts(self, batches: Iterator[Leaves]) -> Iterator[Part]:
        for read, which, order in ahead(map(self._begin, batches), self.loading.read_ahead, lambda work: len(work[0])):
            tokens = _ordered([clip.result() for clip in read], which, order)
            mask = tokens != NOTHING
            vectors = torch.from_numpy(np.where(mask[..., None], self._vectors[tokens], np.float16(0)))
            words = Words(vectors.to(self.device), torch.from_numpy(mask).to(self.device), tokens)
            yield Part(words, mask.any(1))

    def _begin(self, leaves: Leaves) -> tuple[list[Future[np.ndarray]], np.ndarray, np.ndarray]:
        """The clips that are being read, the clip of each leaf, int64 [n], and the order of its words [n, words]."""
        # leaves of one clip differ only in the order of its words
        keys = np.stack([leaves.video, leaves.start, leaves.words_seconds], 1)
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        clips = leaves.take(first)
        words = [int(leaves.words.max()) + 1] * len(first)
        arguments = clips.video.tolist(), clips.start / self.index.fps, words, clips.words_seconds
        return self.begin(self.reader.tokens, *arguments), which.reshape(-1), leaves.words


def _ordered(clips: Sequence[np.ndarray], which: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Tokens of each leaf in its order, padded at the end: int64 [n, words]."""
    padded = np.full((len(clips), order.max() + 2), NOTHING, np.int64)
    for row, tokens in zip(padded, clips, strict=True):
        row[: len(tokens)] = tokens
    ordered = np.take_along_axis(padded[which], order, 1)
    padding_last = np.argsort(ordered == NOTHING, axis=1, kind="stable")
    return np.take_along_axis(ordered, padding_last, 1)
