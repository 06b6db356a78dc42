"""BatchPlan stream -> sources, one per modality -> batches. Every number comes from the plan; nothing is drawn here."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.place import Place, place_of
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.base import InputSource, Memory, Part, Readings
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.sources.sound import SoundSource
from gdt.pipeline.sources.text import TextSource
from gdt.pipeline.sources.video import VideoSource
from gdt.pipeline.tree import BatchPlan
from gdt.pipeline.word2vec import WordVectors

T = TypeVar("T")

SOURCES: dict[str, type[InputSource]] = {source.modality: source for source in (VideoSource, SoundSource, TextSource)}


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
    context manager, to end early. `place` has the device's streams and memory, instead of its own.
    """

    def __init__(
        self, index: Index, plans: Iterable[BatchPlan], clip: Clip, device: torch.device, loading: Loading = Loading(),
        words: WordVectors | None = None, place: Place | None = None,
    ) -> None:  # fmt: skip
        stream = iter(plans)
        first = list(itertools.islice(stream, 1))
        self._plans = itertools.chain(first, stream)
        self._loading = loading
        self._place = place or place_of(device)
        modalities = first[0].leaves.modalities if first else ()
        self._executor = Executor(Readings(index, loading, words), clip, self._place, loading, modalities)
        self._ready: queue.Queue[Any] = queue.Queue(loading.prefetch)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="loader", daemon=True)

    def __iter__(self) -> Iterator[Batch]:
        self._thread.start()
        while True:
            item = self._ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            batch, memory, done = item
            self._place.wait(done)  # the training stream waits for the batch, not the CPU
            yield batch
            memory.released = self._place.mark()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background work; safe to call more than once."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.05)  # make room, so that the thread sees the stop
            except queue.Empty:
                continue
        self._executor.close()

    def _produce(self) -> None:
        # as many as wait in the queue, one that is filled and one that the consumer holds; the one in use comes first
        memories = deque(Memory(self._place.device) for _ in range(self._loading.prefetch + 2))

        def next_memory() -> Memory:
            memories.rotate(1)
            self._place.wait(memories[0].released)
            return memories[0]

        try:
            with self._place.aside():
                for batch in self._executor.execute(self._plans, next_memory):
                    self._put((batch, memories[0], self._place.mark()))
                    if self._stop.is_set():
                        return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: object) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue


class Executor:
    """Turns a stream of plans into a stream of batches; sources work side by side, and run ahead of what is asked."""

    def __init__(
        self, readings: Readings, clip: Clip, place: Place, loading: Loading, modalities: Sequence[str]
    ) -> None:
        self._place = place
        self._sources = {name: _source(name)(readings, clip, place, loading) for name in modalities}
        self._all_usable = loading.damaged == "stop" and all(source.always_usable for source in self._sources.values())
        self._pool = ThreadPoolExecutor(max(1, len(modalities)), thread_name_prefix="source")

    def close(self) -> None:
        """Drop what is still to be read, and what decodes."""
        self._pool.shutdown()
        for source in self._sources.values():
            source.close()

    def execute(self, plans: Iterable[BatchPlan], memories: Callable[[], Memory]) -> Iterator[Batch]:
        """Make every leaf of every plan; `memories` gives the memory of the next batch."""
        current: Memory
        sorted_plans, *copies = for_each((self._sorted(plan) for plan in plans), 1 + len(self._sources))
        parts = {
            name: source.parts(map(partial(_leaves, name), copy), lambda: current)
            for copy, (name, source) in zip(copies, self._sources.items(), strict=True)
        }
        for plan in sorted_plans:
            current = memories()
            making = {name: self._pool.submit(self._next, stream) for name, stream in parts.items()}
            wait(making.values())
            made = {name: part.result() for name, part in making.items()}
            table = {name: current.hold(f"table {name}", values) for name, values in plan.columns.items()}
            joined = dict(table)
            if plan.joined is not None:
                joined = {name: current.hold(f"joined {name}", values) for name, values in plan.joined.items()}
            if not self._all_usable:
                usable = np.concatenate([part.usable for part in made.values()]).astype(np.int64)
                table["usable"] = current.hold("table usable", usable)
            damaged = [what for part in made.values() for what in part.damaged]
            yield Batch({name: part.inputs for name, part in made.items()}, table, joined, plan, damaged)

    def _next(self, parts: Iterator[Part]) -> Part:
        with self._place.aside():
            return next(parts)

    def _sorted(self, plan: BatchPlan) -> BatchPlan:
        """The leaves one modality after the other."""
        if plan.leaves.modalities != tuple(self._sources):
            raise ValueError(f"a plan has leaves of {plan.leaves.modalities}, and the first of {tuple(self._sources)}")
        return plan.take(np.argsort(plan.leaves.modality, kind="stable"))


def _leaves(modality: str, plan: BatchPlan) -> Leaves:
    return plan.leaves.of(modality)


def _source(modality: str) -> type[InputSource]:
    if modality not in SOURCES:
        raise UserError(f"nothing can load leaves of the modality '{modality}'; there are {', '.join(SOURCES)}")
    return SOURCES[modality]


def for_each(items: Iterable[T], readers: int) -> list[Iterator[T]]:
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
