"""Engines turn JPEG frames into crops, on the CPU or with DALI, with the same result up to rounding."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
import torch

from gdt.common.errors import is_out_of_memory
from gdt.pipeline.compiled import resize
from gdt.pipeline.device import Canvas, Device
from gdt.pipeline.leaves import Clip
from gdt.pipeline.sources.loading import Loading

if TYPE_CHECKING:  # DALI is imported only where it decodes
    from gdt.pipeline.graphs import Pipeline


@dataclass(frozen=True)
class Run:
    """Some clips of a batch, each decoded once for all its branches, the leaves that share it."""

    rows: np.ndarray
    """Rows of the leaves in the batch's crops: int64 [clips, branches]."""
    leaves: int
    """Number of leaves of the whole batch."""
    jpegs: list[list[np.ndarray]]
    """JPEG bytes of each frame of each clip; repeated frames are the same object."""
    sizes: np.ndarray
    """Height and width of the frames of each clip: int64 [clips, 2]."""
    begin: np.ndarray
    """Corner (y, x) of each leaf's crop in the frame, pixels: float32 [clips, branches, 2]."""
    end: np.ndarray
    """The opposite corner."""
    order: np.ndarray
    """Permutation of the clip's frames for each leaf: int64 [clips, branches, frames]."""
    last: bool
    """Whether this is the last run of its batch."""


Crops = Callable[[int], torch.Tensor]
"""Number of leaves -> the crops of the current batch, uint8 [leaves, frames, size, size, 3]."""


class Engine(ABC):
    """Fills the crops of batches."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        self.clip, self.device, self.loading = clip, device, loading

    @abstractmethod
    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        """Yield once per batch, when its crops are complete; may consume runs in advance.

        Raises RuntimeError if a frame cannot be decoded.
        """

    @abstractmethod
    def close(self) -> None:
        """Release threads and graphs."""


class CpuEngine(Engine):
    """A thread per core decodes a frame and resizes its regions while the frame is in that core's cache."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        super().__init__(clip, device, loading)
        self._pool = ThreadPoolExecutor(loading.threads, thread_name_prefix="decoder")
        self._local = threading.local()

    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        begun: deque[tuple[Canvas, list[Future[None]]]] = deque()
        for run in runs:
            canvas = self.device.canvas(crops(run.leaves), run.rows)
            begun.append((canvas, [self._pool.submit(self._draw, run, k, canvas) for k in range(len(run.rows))]))
            # begin the next run before this one is complete, so that no core idles at its end
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
        """Draw all leaves of one clip."""
        height, width = run.sizes[clip].tolist()
        size, frame = self.clip.size, self._frame(height, width)
        leaves = [canvas.pixels[row].reshape(-1, size, 3 * size) for row in canvas.rows[clip]]
        regions = [
            (*taps(begin[0], end[0], size, height), *taps(begin[1], end[1], size, width, step=3))
            for begin, end in zip(run.begin[clip], run.end[clip], strict=True)
        ]
        positions = run.order[clip].argsort(1)  # of each frame of the clip, in each leaf
        previous = None
        for number, jpeg in enumerate(run.jpegs[clip]):
            if jpeg is not previous:
                decode(jpeg, frame)
                previous = jpeg
            for leaf, region, position in zip(leaves, regions, positions, strict=True):
                resize(frame.reshape(height, -1), *region, leaf[position[number]])

    def _frame(self, height: int, width: int) -> np.ndarray:
        """This thread's memory for one frame."""
        frame: np.ndarray | None = getattr(self._local, "frame", None)
        if frame is None or frame.shape[:2] != (height, width):
            frame = self._local.frame = np.empty((height, width, 3), np.uint8)
        return frame


class DecodeError(RuntimeError):
    """A frame is not a JPEG of the expected size."""


def decode(jpeg: np.ndarray, into: np.ndarray) -> None:
    """Decode the bytes of one frame to RGB, uint8 [height, width, 3]. Raises DecodeError."""
    try:
        try:
            frame = simplejpeg.decode_jpeg(jpeg, buffer=into)
        except ValueError as error:
            if "Premature end" in str(error):
                raise
            # like DALI, accept damage in the middle of a frame, which was there when it was written
            frame = simplejpeg.decode_jpeg(jpeg, strict=False, buffer=into)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    if frame.shape != into.shape:
        raise DecodeError(f"a frame has {frame.shape[1]}x{frame.shape[0]} pixels, not {into.shape[1]}x{into.shape[0]}")
    if not np.shares_memory(frame, into):
        into[:] = frame


def taps(begin: float, end: float, size: int, length: int, step: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bilinear interpolation of begin..end of `length` input pixels to `size` output pixels, for `resize`.

    Returns, for each output pixel, the indices of its two input pixels, times `step`, int64 [size] each, and the weight
    of the second, float32 [size]. Edge pixels extend outwards.
    """
    at = begin + (np.arange(size) + 0.5) * ((float(end) - begin) / size) - 0.5
    low = np.floor(at).astype(np.int64)
    near, far = (np.clip(index, 0, length - 1) * step for index in (low, low + 1))
    return near, far, (at - low).astype(np.float32)


class DaliEngine(Engine):
    """One DALI graph per number of branches; decodes on the GPU if there is one."""

    def __init__(self, clip: Clip, device: Device, loading: Loading) -> None:
        super().__init__(clip, device, loading)
        self._graphs: dict[int, Pipeline] = {}

    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        frames, size = self.clip.frames, self.clip.size
        for branches, group in itertools.groupby(runs, key=lambda run: run.rows.shape[1]):
            fed: deque[tuple[Run, torch.Tensor]] = deque()
            for outputs in self._graph(branches).run(self._feed(group, fed)):
                run, branch_rows = fed.popleft()
                filled = crops(run.leaves)
                for decoded, rows in zip(outputs, branch_rows, strict=True):
                    filled[rows] = decoded.view(-1, frames, size, size, 3)
                if run.last:
                    yield

    def close(self) -> None:
        self._graphs.clear()

    def _graph(self, branches: int) -> Pipeline:
        from gdt.pipeline.graphs import Pipeline, video_graph

        if branches not in self._graphs:
            frames = self.loading.decode_batch_size * self.clip.frames
            graph = video_graph, frames, self.clip.size, branches, self.device.dali.decoder
            self._graphs[branches] = Pipeline(self.device, self.loading.threads, *graph)
        return self._graphs[branches]

    def _feed(self, runs: Iterable[Run], fed: deque[tuple[Run, torch.Tensor]]) -> Iterator[dict[str, Any]]:
        frames = self.clip.frames
        for run in runs:
            # uploaded before the run, so that copying its crops waits for nothing on the CPU
            fed.append((run, torch.from_numpy(run.rows.T.copy()).to(self.device.device)))
            first = np.arange(len(run.rows))[:, None] * frames
            inputs: dict[str, Any] = {"jpeg": [frame for clip in run.jpegs for frame in clip]}
            for branch in range(run.rows.shape[1]):
                inputs[f"begin{branch}"] = np.repeat(run.begin[:, branch], frames, 0)
                inputs[f"end{branch}"] = np.repeat(run.end[:, branch], frames, 0)
                inputs[f"indices{branch}"] = (first + run.order[:, branch]).reshape(-1).astype(np.int32)
            yield inputs


def dali_message(error: RuntimeError) -> str:
    """The line of DALI's message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines.index("encountered:") + 1 if "encountered:" in lines[:-1] else 0
    return lines[after] if lines else type(error).__name__


def failure(error: RuntimeError) -> str:
    """What failed, as `dali_message`. Raises MemoryError if memory ran out."""
    message = dali_message(error)
    if is_out_of_memory(RuntimeError(message)):
        raise MemoryError(message) from error
    return message


def engine(clip: Clip, device: Device, loading: Loading) -> Engine:
    """The engine of --loading.decoder."""
    return (DaliEngine if loading.decoder == "gpu" else CpuEngine)(clip, device, loading)
