"""What makes crops out of JPEG frames: this machine's cores, or DALI. Both are told the same, and make the same."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.pipeline.compiled import resize
from gdt.pipeline.device import Canvas, Device
from gdt.pipeline.graphs import Pipeline, video_graph
from gdt.pipeline.jpeg import decode
from gdt.pipeline.leaves import Clip
from gdt.pipeline.sources.loading import Loading


@dataclass(frozen=True)
class Run:
    """Some clips of a batch, each decoded once for as many leaves as there are branches."""

    rows: np.ndarray
    """The leaves: int64 [clips, branches], rows of the batch's crops."""
    leaves: int
    """Rows that these have in all."""
    jpegs: list[list[np.ndarray]]
    """By clip, the bytes of its frames; those that are there again are the same object."""
    sizes: np.ndarray
    """Height and width of the frames of each clip: int64 [clips, 2]."""
    begin: np.ndarray
    """Corner (y, x) of each leaf's region of a frame, pixels: float32 [clips, branches, 2]."""
    end: np.ndarray
    """The opposite corner."""
    order: np.ndarray
    """Which of the clip's frames each frame of a leaf is, each of them once: int64 [clips, branches, frames]."""
    last: bool
    """Of its batch."""


Crops = Callable[[int], torch.Tensor]
"""The crops of so many leaves, uint8 [leaves, frames, size, size, 3], of the batch that is being asked for."""


class Engine(ABC):
    """Fills the crops of batches."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        self.clip, self.device, self.loading = clip, device, loading

    @abstractmethod
    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        """One item per batch, once all its crops are there; raises RuntimeError where a frame cannot be decoded.

        Runs may be taken ahead of what is asked for.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back threads and graphs."""


class CoresEngine(Engine):
    """A thread per core: a frame is decoded and its regions are resized while it lies in that core's cache."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        super().__init__(clip, device, loading)
        self._pool = ThreadPoolExecutor(loading.threads, thread_name_prefix="decoder")
        self._own = threading.local()

    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        begun: deque[tuple[Canvas, list[Future[None]]]] = deque()
        for run in runs:
            canvas = self.device.canvas(crops(run.leaves), run.rows)
            begun.append((canvas, [self._pool.submit(self._draw, run, k, canvas) for k in range(len(run.rows))]))
            # one more than is drawn, so that no core waits for the others at the end of a run
            while len(begun) > (0 if run.last else self.device.CANVASES - 1):
                canvas, clips = begun.popleft()
                for clip in clips:
                    clip.result()
                canvas.done()
            if run.last:
                yield

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _draw(self, run: Run, clip: int, canvas: Canvas) -> None:
        """All leaves of one clip."""
        height, width = run.sizes[clip].tolist()
        size, frame = self.clip.size, self._frame(height, width)
        to = [canvas.pixels[row].reshape(-1, size, 3 * size) for row in canvas.rows[clip]]
        regions = [
            (*taps(begin[0], end[0], size, height), *taps(begin[1], end[1], size, width, step=3))
            for begin, end in zip(run.begin[clip], run.end[clip], strict=True)
        ]
        at = run.order[clip].argsort(1)  # at which frame of each leaf those of the clip are
        before = None
        for number, jpeg in enumerate(run.jpegs[clip]):
            if jpeg is not before:
                decode(jpeg, frame)
                before = jpeg
            for leaf, region, places in zip(to, regions, at, strict=True):
                resize(frame.reshape(height, -1), *region, leaf[places[number]])

    def _frame(self, height: int, width: int) -> np.ndarray:
        """This thread's memory for one frame."""
        held: np.ndarray | None = getattr(self._own, "frame", None)
        if held is None or held.shape[:2] != (height, width):
            held = self._own.frame = np.empty((height, width, 3), np.uint8)
        return held


def taps(begin: float, end: float, size: int, length: int, step: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Between which two of `length` pixels each of `size` lies, where these cover begin..end.

    Returns the places of both, int64 [size] in units of 1/step, and how far on the way from the first to the second it
    lies, float32 [size]. What is beyond an edge is as the edge.
    """
    at = begin + (np.arange(size) + 0.5) * ((float(end) - begin) / size) - 0.5
    low = np.floor(at).astype(np.int64)
    near, far = (np.clip(places, 0, length - 1) * step for places in (low, low + 1))
    return near, far, (at - low).astype(np.float32)


class DaliEngine(Engine):
    """A DALI graph; on a GPU the JPEGs are decoded there."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        super().__init__(clip, device, loading)
        self._graphs: dict[int, Pipeline] = {}

    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        frames, size = self.clip.frames, self.clip.size
        for branches, some in itertools.groupby(runs, key=lambda run: run.rows.shape[1]):
            ahead: deque[Run] = deque()
            for outputs in self._graph(branches).run(self._feed(some, ahead)):
                run = ahead.popleft()
                held = crops(run.leaves)
                for decoded, rows in zip(outputs, run.rows.T, strict=True):
                    held[torch.from_numpy(rows).to(held.device)] = decoded.view(-1, frames, size, size, 3)
                if run.last:
                    yield

    def close(self) -> None:
        self._graphs.clear()

    def _graph(self, branches: int) -> Pipeline:
        if branches not in self._graphs:
            clips, hardware = self.loading.clips_at_once, float(self.loading.jpeg_hardware)
            graph = video_graph, clips * self.clip.frames, self.clip.size, branches, self.device.dali.decoder, hardware
            self._graphs[branches] = Pipeline(self.device, self.loading.threads, *graph)
        return self._graphs[branches]

    def _feed(self, runs: Iterable[Run], ahead: deque[Run]) -> Iterator[dict[str, Any]]:
        frames = self.clip.frames
        for run in runs:
            ahead.append(run)
            first = np.arange(len(run.rows))[:, None] * frames
            inputs: dict[str, Any] = {"jpeg": [frame for clip in run.jpegs for frame in clip]}
            for branch in range(run.rows.shape[1]):
                inputs[f"begin{branch}"] = np.repeat(run.begin[:, branch], frames, 0)
                inputs[f"end{branch}"] = np.repeat(run.end[:, branch], frames, 0)
                inputs[f"places{branch}"] = (first + run.order[:, branch]).reshape(-1).astype(np.int32)
            yield inputs


def engine(clip: Clip, device: Device, loading: Loading) -> Engine:
    """The one that is asked for; by default DALI where it decodes on a GPU, and this machine's cores where not."""
    if loading.decoder == "gpu" and not device.is_gpu:
        raise UserError("--loading.decoder gpu needs --device cuda; leave it out, and the cores of this machine decode")
    dali = loading.decoder == "gpu" or (loading.decoder == "auto" and device.is_gpu)
    return (DaliEngine if dali else CoresEngine)(clip, device, loading)
