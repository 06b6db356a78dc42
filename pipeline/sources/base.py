"""What a source is: it makes the leaves of one modality, batch by batch, in memory that is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from gdt.pipeline.device import Device
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.shards.reader import DamagedVideo, ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.word2vec import WordVectors

T = TypeVar("T")


class Memory:
    """Memory of one batch on the device, kept from step to step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self.released: Any = None
        """The point of the training stream at which it had read the batch that lay here before."""

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of this name, with whatever is in it."""
        held = self._tensors.get(name)
        if held is None or held.shape != shape or held.dtype != dtype:
            held = self._tensors[name] = torch.empty(shape, dtype=dtype, device=self.device)
        return held

    def hold(self, name: str, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """A copy of the values under this name."""
        given = torch.as_tensor(values)
        return self.get(name, tuple(given.shape), given.dtype).copy_(given)


@dataclass
class Part:
    """What a source makes of the leaves of one batch that are of its modality."""

    inputs: Any
    """What the encoder of the modality takes; in the batch's memory."""
    usable: np.ndarray
    """Whether each leaf counts: bool [n]; not where it could not be read, and holds a stand-in, or is empty."""
    damaged: list[str]
    """The video and the shard of every piece that could not."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """Clips that are being read."""

    videos: np.ndarray
    """Rows of the index: int64 [n]."""
    _found: list[Future[tuple[T, str]]]
    """What was read, and the name of what is damaged, or nothing."""

    def result(self) -> tuple[list[T], np.ndarray, list[str]]:
        """What was read of each, bool [n] whether it was intact, and the names of what was not. Waits for it."""
        found = [future.result() for future in self._found]
        intact = np.asarray([not damaged for _, damaged in found], bool)
        return [value for value, _ in found], intact, [damaged for _, damaged in found if damaged]


def ahead(items: Iterable[T], most: int, clips: Callable[[T], int]) -> Iterator[T]:
    """The items, taken before they are asked for: one at least, and as many as have up to `most` clips together."""
    waiting: deque[T] = deque()
    held = 0
    for item in items:
        waiting.append(item)
        held += clips(item)
        while len(waiting) > 1 and held > most:
            held -= clips(waiting[0])
            yield waiting.popleft()
    yield from waiting


class InputSource(ABC):
    """Makes the leaves of one modality."""

    modality: ClassVar[str]
    always_usable: ClassVar[bool] = True
    """Whether every leaf that could be read counts."""

    def __init__(
        self, reader: ShardReader, clip: Clip, device: Device, loading: Loading, words: WordVectors | None
    ) -> None:
        self.reader, self.index = reader, reader.index
        self.clip, self.device, self.loading, self.words = clip, device, loading, words
        self.prepare()
        # its own: one modality does not wait for the disk's answers to another
        self._pool = ThreadPoolExecutor(loading.readers, thread_name_prefix="reader")

    def prepare(self) -> None:  # noqa: B027 - some need nothing
        """Make what else the source needs. Raises UserError where it cannot be."""

    def close(self) -> None:
        """Drop what is still to be read."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(
        self, videos: np.ndarray, read: Callable[..., T], instead: Callable[[int], T], *arguments: Iterable[Any]
    ) -> Reading[T]:
        """Call `read(video, ...)` for every video [n], in other threads.

        Where damage is skipped, what is damaged is `instead(video)`; else asking for the result raises DamagedVideo.
        """

        def one(video: int, *rest: Any) -> tuple[T, str]:
            try:
                return read(video, *rest), ""
            except DamagedVideo:
                if self.loading.damaged != "skip":
                    raise
            return instead(video), f"'{self.index.id[video]}' in {self.index.shard_path(video)}"

        tasks = zip(videos.tolist(), *arguments, strict=True)
        return Reading(videos, [self._pool.submit(one, *task) for task in tasks])

    @abstractmethod
    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        """One part per batch, made of its leaves of this modality; batches are taken ahead of what is asked for.

        `memory()` is that of the batch whose part is being asked for.
        """


def chunks(n: int, size: int) -> Sequence[slice]:
    """range(n) in runs of `size`."""
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]
