"""Base class of sources, which make the leaves of one modality, batch by batch."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.word2vec import WordVectors

T = TypeVar("T")


@dataclass
class Part:
    """The leaves of one modality of a batch."""

    inputs: Any
    """Encoder inputs, on the loader's device."""
    usable: np.ndarray | None = None
    """Whether each leaf counts in the loss, bool [n]; None if all do."""


def ahead(items: Iterable[T], clips: int, count: Callable[[T], int]) -> Iterator[T]:
    """Take items in advance: at least one, and as many as hold at most `clips` clips in total."""
    waiting: deque[T] = deque()
    total = 0
    for item in items:
        waiting.append(item)
        total += count(item)
        while len(waiting) > 1 and total > clips:
            total -= count(waiting[0])
            yield waiting.popleft()
    yield from waiting


@dataclass(frozen=True)
class SourceContext:
    """What a loader gives each of its sources."""

    reader: ShardReader
    inputs: Inputs
    device: torch.device
    loading: Loading
    words: WordVectors | None


class InputSource(ABC):
    modality: ClassVar[str]

    def __init__(self, context: SourceContext) -> None:
        """Raises UserError if the source lacks something."""
        self.reader = context.reader
        self.index = context.reader.index
        self.clip = context.inputs.clip
        self.device = context.device
        self.statistics = context.inputs.statistics
        self.loading = context.loading
        # one pool per source, so that no modality waits for another's disk reads
        self._pool = ThreadPoolExecutor(self.loading.readers, thread_name_prefix="reader")

    def close(self) -> None:
        """Cancel pending reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, read: Callable[..., T], *arguments: Iterable[Any]) -> list[Future[T]]:
        """Call `read` for every clip in other threads; the results raise UserError if a clip is damaged."""
        return [self._pool.submit(read, *task) for task in zip(*arguments, strict=True)]

    @abstractmethod
    def parts(self, batches: Iterator[Leaves]) -> Iterator[Part]:
        """One part per batch of leaves of this modality; batches are taken ahead."""


def chunks(n: int, size: int) -> Sequence[slice]:
    """Slices of range(n) of `size` each."""
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]
