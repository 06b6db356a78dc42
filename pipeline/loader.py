"""BatchPlan stream -> sources, one per modality -> batches. Every number comes from the plan; nothing is drawn here."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.pipeline.device import Device, loader_device
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.audio import AudioSource
from gdt.pipeline.sources.base import InputSource, Memory, Part
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.sources.text import TextSource
from gdt.pipeline.sources.video import VideoSource
from gdt.pipeline.tree import BatchPlan
from gdt.pipeline.word2vec import WordVectors

T = TypeVar("T")

SOURCES: dict[str, type[InputSource]] = {source.modality: source for source in (VideoSource, AudioSource, TextSource)}


@dataclass
class Batch:
    """One training batch on the device. Its tensors are reused: they hold until the next batch is taken."""

    inputs: dict[str, Any]
    """By modality, what its encoder takes of n leaves: `video` is Pixels; `audio` float32 [n, 1, bands, mel_frames];
    `text` is Words."""
    table: dict[str, torch.Tensor]
    """Factor name -> int64 [leaves]: the factor table, in the order of the inputs, one modality after the other.
    Where clips may be without words, or damaged ones are skipped, `usable` is 0 for the leaves that do not count."""
    joined: dict[str, torch.Tensor]
    """The table of the leaves of all ranks, rank after rank, without `usable`; where there is one rank, its own."""
    plan: BatchPlan
    """The plan of these leaves, in the same order."""
    damaged: list[str]
    """The video and the shard of every clip that was skipped because it is damaged."""


class Loader:
    """Executes plans, ahead of the consumer and in their order; iterate once.

    All plans have leaves of the same modalities; `words` are needed where text is one of them. Raises UserError where
    nothing can load a modality of the first plan, and later if a shard turns out damaged. Close it, or use it as a
    context manager, to end early.
    """

    def __init__(
        self, index: Index, plans: Iterable[BatchPlan], clip: Clip, device: torch.device | Device,
        loading: Loading = Loading(), words: WordVectors | None = None,
    ) -> None:  # fmt: skip
        self._device = loader_device(device) if isinstance(device, torch.device) else device
        stream = iter(plans)
        first = list(itertools.islice(stream, 1))
        modalities = first[0].leaves.modalities if first else ()
        reader = ShardReader(index)
        self._sources = {name: _source(name)(reader, clip, self._device, loading, words) for name in modalities}
        self._all_usable = loading.damaged == "stop" and all(source.always_usable for source in self._sources.values())
        self._ahead = loading.prefetch + 1  # those that wait, and the one that is made
        # one more is held by the consumer; the one in use comes first
        self._memories = deque(Memory(self._device.device) for _ in range(self._ahead + 1))
        self._batches = self._execute(itertools.chain(first, stream))
        self._background = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._side_by_side = ThreadPoolExecutor(max(1, len(modalities)), thread_name_prefix="source")

    def __iter__(self) -> Iterator[Batch]:
        waiting = deque(self._background.submit(self._make) for _ in range(self._ahead))
        while made := waiting.popleft().result():
            waiting.append(self._background.submit(self._make))
            batch, memory, done = made
            self._device.wait(done)  # the training stream waits for the batch, not the CPU
            yield batch
            memory.released = self._device.mark()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background work, and drop what is still to be read; safe to call more than once."""
        self._background.shutdown(cancel_futures=True)
        self._side_by_side.shutdown()
        for source in self._sources.values():
            source.close()

    def _make(self) -> tuple[Batch, Memory, Any] | None:
        """The next batch, its memory, and the point of the loader's stream at which it is there."""
        with self._device.aside():
            batch = next(self._batches, None)
            return None if batch is None else (batch, self._memories[0], self._device.mark())

    def _execute(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """Make every leaf of every plan; sources work side by side, and run ahead of what is asked."""
        sorted_plans, *copies = tee((self._sorted(plan) for plan in plans), 1 + len(self._sources))
        parts = {
            name: source.parts(_leaves(copy, name), lambda: self._memories[0])
            for copy, (name, source) in zip(copies, self._sources.items(), strict=True)
        }
        for plan in sorted_plans:
            self._memories.rotate(1)
            memory = self._memories[0]
            self._device.wait(memory.released)
            making = {name: self._side_by_side.submit(self._next, stream) for name, stream in parts.items()}
            wait(making.values())
            made = {name: part.result() for name, part in making.items()}
            table = {name: memory.hold(f"table {name}", values) for name, values in plan.columns.items()}
            joined = dict(table)
            if plan.joined is not None:
                joined = {name: memory.hold(f"joined {name}", values) for name, values in plan.joined.items()}
            if not self._all_usable:
                usable = np.concatenate([part.usable for part in made.values()]).astype(np.int64)
                table["usable"] = memory.hold("table usable", usable)
            damaged = [what for part in made.values() for what in part.damaged]
            yield Batch({name: part.inputs for name, part in made.items()}, table, joined, plan, damaged)

    def _next(self, parts: Iterator[Part]) -> Part:
        with self._device.aside():
            return next(parts)

    def _sorted(self, plan: BatchPlan) -> BatchPlan:
        """The leaves one modality after the other."""
        if plan.leaves.modalities != tuple(self._sources):
            raise ValueError(f"a plan has leaves of {plan.leaves.modalities}, and the first of {tuple(self._sources)}")
        return plan.take(np.argsort(plan.leaves.modality, kind="stable"))


def _leaves(plans: Iterable[BatchPlan], modality: str) -> Iterator[Leaves]:
    return (plan.leaves.of(modality) for plan in plans)


def _source(modality: str) -> type[InputSource]:
    if modality not in SOURCES:
        raise UserError(f"nothing can load leaves of the modality '{modality}'; there are {', '.join(SOURCES)}")
    return SOURCES[modality]


def tee(items: Iterable[T], readers: int) -> list[Iterator[T]]:
    """The items, for several threads: each gets all of them, in order, and none has to wait for another.

    What is raised in place of an item reaches them all.
    """
    source, lock = iter(items), threading.Lock()
    raised: list[Exception] = []
    behind: list[deque[T]] = [deque() for _ in range(readers)]

    def read(own: deque[T]) -> Iterator[T]:
        while True:
            with lock:
                if not own:
                    if raised:
                        raise raised[0]
                    try:
                        found = list(itertools.islice(source, 1))
                    except Exception as error:
                        raised.append(error)
                        raise
                    if not found:
                        return
                    for other in behind:
                        other.extend(found)
                item = own.popleft()
            yield item

    return [read(own) for own in behind]
