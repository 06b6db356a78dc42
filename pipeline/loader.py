"""BatchPlan stream -> sources, one per modality -> batches. All random numbers come from the plan; none are drawn
here.

Each step is a generator that pulls from the one before it, as many plans as it needs: `_announced` tells a cache
what comes, `tee` gives every source its copy, and the sources read. One background thread pulls, so none needs a lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gdt.common.errors import UserError, is_out_of_memory
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.cache import Cache
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.audio import AudioSource
from gdt.pipeline.sources.base import InputSource, SourceContext
from gdt.pipeline.sources.loading import Loading, loading_on
from gdt.pipeline.sources.text import TextSource
from gdt.pipeline.sources.video import VideoSource
from gdt.pipeline.tree import BatchPlan
from gdt.pipeline.word2vec import WordVectors

SOURCES: dict[str, type[InputSource]] = {source.modality: source for source in (VideoSource, AudioSource, TextSource)}

_FORESEEN = 512
"""Batches of which a cache knows the shards in advance."""


@dataclass(repr=False)
class Batch:
    """One training batch on the device."""

    inputs: dict[str, Any]
    """Encoder inputs of n leaves by modality: `video` is Pixels; `audio` float32 [n, 1, bands, mel_frames]; `text` is
    Words."""
    table: dict[str, torch.Tensor]
    """Factor table: factor name -> int64 [leaves], sorted by modality like the inputs. If there is text, its column
    `usable` is 0 for the leaves that the loss ignores, since they have no words."""
    plan: BatchPlan
    """The plan of these leaves, in the same order."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The inputs for any network, float32: `video` [n, 3, frames, size, size], `audio` [n, 1, bands, mel_frames],
        `text` [n, words, d], padded with 0.
        """
        return {
            name: inputs.to(torch.float32, copy=True) if isinstance(inputs, torch.Tensor) else inputs.floats()
            for name, inputs in self.inputs.items()
        }

    def on_device(self) -> list[torch.Tensor]:
        """All tensors."""
        inputs = [[x] if isinstance(x, torch.Tensor) else vars(x).values() for x in self.inputs.values()]
        held = itertools.chain(self.table.values(), *inputs)
        return [value for value in held if isinstance(value, torch.Tensor)]

    def __repr__(self) -> str:
        first = {name: x[:1] for name, x in self.inputs.items()}
        leaf = replace(self, inputs=first).tensors()  # all leaves would take long to convert
        shapes = ", ".join(f"{name} {[len(x), *leaf[name].shape[1:]]}" for name, x in self.inputs.items())
        return f"<gdt.Batch: {shapes}; factors {', '.join(name for name in self.table if name != 'leaf')}>"


class Loader:
    """Executes plans in their order, ahead of the consumer; iterate once.

    All plans must have the same modalities; text needs `words`. Raises UserError, while iterating, if a shard is
    damaged. To stop early, close it or use it as a context manager.
    """

    def __init__(
        self,
        index: Index,
        plans: Iterable[BatchPlan],
        inputs: Inputs,
        device: torch.device,
        loading: Loading = Loading(),
        words: WordVectors | None = None,
        coming: Iterator[np.ndarray] | None = None,
        cache: Cache | None = None,
    ) -> None:
        """`coming`: the videos of the batches to come, where that is quicker to know than their plans; `cache`: that of
        the run.
        """
        self._reader = ShardReader(index, cache)
        stream = iter(plans)
        first = list(itertools.islice(stream, 1))  # it tells the modalities; without plans, there are no batches
        modalities = first[0].leaves.modalities if first else ()
        if "video" in modalities:  # sound has no frames
            inputs.warn_of_other_rate(index)
        loading = loading_on(device.type, loading)
        # a stream of its own, whose short kernels run before those of training
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._dali = loading.decoder == "gpu"
        context = SourceContext(self._reader, inputs, device, loading, words)
        self._sources = {name: SOURCES[name](context) for name in modalities}
        self._device = device
        self._ahead = loading.prefetch + 1  # the waiting batches and the one in preparation
        stream = itertools.chain(first, stream)
        self._batches = self._execute(_announced(stream, coming, self._reader) if self._reader.cache else stream)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="loader")

    def __iter__(self) -> Iterator[Batch]:
        waiting = deque(self._background.submit(self._load_batch) for _ in range(self._ahead))
        try:
            while loaded := waiting.popleft().result():
                waiting.append(self._background.submit(self._load_batch))
                batch, done = loaded
                if done is not None:
                    stream = torch.cuda.current_stream(self._device)
                    stream.wait_event(done)  # the training stream waits for the batch, not the CPU
                    for tensor in batch.on_device():
                        tensor.record_stream(stream)  # its memory is used again only after this stream has read it
                yield batch
                self._reader.done()
        finally:
            self.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background threads and cancel pending reads; safe to call more than once."""
        self._reader.close()  # first, since reads may wait for shards of batches that nobody will consume
        self._background.shutdown(cancel_futures=True)
        for source in self._sources.values():
            source.close()

    def _load_batch(self) -> tuple[Batch, Any] | None:
        """The next batch, and the event of the loader's stream after which it is complete."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            try:
                batch = next(self._batches, None)
            except RuntimeError as error:
                if is_out_of_memory(error) or not self._dali:
                    raise
                cause = str(error).partition("encountered:")[2] or str(error)  # DALI names it there
                raise UserError(
                    f"decoding failed although all frames are intact: {' '.join(cause.split())[:200]}; check "
                    "nvidia-smi, or set GDT_DECODER=cpu in the environment, without --loading.decoder"
                ) from error
            if batch is None:
                return None
            return batch, self._stream.record_event() if self._stream else None

    def _execute(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """Load all plans; sources read ahead of the batch in preparation."""
        # tee keeps the plans that a source has read ahead for the copies behind it
        sorted_plans, *copies = itertools.tee(map(self._sorted, plans), 1 + len(self._sources))
        streams = {
            name: source.parts(_leaves(copy, name))
            for copy, (name, source) in zip(copies, self._sources.items(), strict=True)
        }
        for plan in sorted_plans:
            parts = {name: next(stream) for name, stream in streams.items()}
            columns = dict(plan.columns)
            if any(part.usable is not None for part in parts.values()):
                usable = [
                    np.ones(len(part.inputs), bool) if part.usable is None else part.usable for part in parts.values()
                ]
                columns["usable"] = np.concatenate(usable).astype(np.int64)
            table = {name: torch.from_numpy(values).to(self._device) for name, values in columns.items()}
            yield Batch({name: part.inputs for name, part in parts.items()}, table, plan)

    def _sorted(self, plan: BatchPlan) -> BatchPlan:
        if plan.leaves.modalities != tuple(self._sources):
            raise ValueError(f"a plan has leaves of {plan.leaves.modalities}, but the first had {tuple(self._sources)}")
        return plan.take(np.argsort(plan.leaves.modality, kind="stable"))


def _announced(
    plans: Iterable[BatchPlan], coming: Iterator[np.ndarray] | None, reader: ShardReader
) -> Iterator[BatchPlan]:
    """The plans; tells the cache the shards of the next batches, as many as are quick to know."""
    ahead = _FORESEEN if coming else _FORESEEN // 16
    if coming is None:
        plans, copy = itertools.tee(plans)
        coming = (plan.leaves.video for plan in copy)
    shards = (reader.index.shard[videos] for videos in coming)
    # before the first plan: `done` of a batch must not come before its `expect`
    for batch in itertools.islice(shards, ahead):
        reader.expect(batch)
    for plan in plans:
        yield plan  # for each one taken, one more is told: the cache always knows of equally many
        for batch in itertools.islice(shards, 1):
            reader.expect(batch)


def _leaves(plans: Iterable[BatchPlan], modality: str) -> Iterator[Leaves]:
    # a function, since a generator in the loop over modalities would look up the last one, when it runs
    return (plan.leaves.of(modality) for plan in plans)
