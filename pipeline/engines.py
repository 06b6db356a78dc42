"""Engines turn JPEG frames into crops, on the CPU or with DALI, with the same result up to rounding."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
import torch
from torch import Tensor

from gdt.pipeline.colour import memory
from gdt.pipeline.compiled import resize
from gdt.pipeline.leaves import Clip, Leaves
from gdt.pipeline.sources.loading import Loading

if TYPE_CHECKING:  # DALI is imported only where it decodes
    from gdt.pipeline.graphs import Pipeline


@dataclass(frozen=True)
class DecodingRun:
    """Some clips of a batch, decoded together, each once for all its branches, the leaves that share it."""

    batch: Leaves
    """All video leaves of the batch."""
    rows: np.ndarray
    """Rows of the leaves in the batch: int64 [clips, branches]."""
    jpegs: Sequence[Future[list[np.ndarray]]]
    """JPEG bytes of each frame of each clip, which are being read; repeated frames are the same object."""
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


Filled = Iterator[tuple[Leaves, Tensor]]
"""The leaves of every batch and their crops, uint8 [leaves, frames, size, size, 3], when these are complete."""


def empty_crops(run: DecodingRun, clip: Clip, device: torch.device) -> Tensor:
    """Memory for the crops of the batch of a run."""
    shape = len(run.batch), clip.frames, clip.size, clip.size, 3
    return memory(shape, torch.uint8, device)


class CpuEngine:
    """A thread per core decodes a frame and resizes its regions while the frame is in that core's cache."""

    AHEAD = 2
    """Runs that are begun before the one before them is complete, so that no core idles at its end."""

    def __init__(self, clip: Clip, loading: Loading, device: torch.device) -> None:
        self._clip = clip
        self._device = device
        self._pool = ThreadPoolExecutor(loading.threads, thread_name_prefix="decoder")

    def fill(self, runs: Iterable[DecodingRun]) -> Filled:
        """Fill the crops of every batch; may take runs in advance."""
        begun: deque[list[Future[Any]]] = deque()
        crops = None
        for run in runs:
            if crops is None:
                crops = empty_crops(run, self._clip, self._device)
            regions = self._regions(run)
            begun.append([self._pool.submit(self._draw, run, k, crops, regions) for k in range(len(run.rows))])
            while len(begun) > (0 if run.last else self.AHEAD):
                for clip in begun.popleft():
                    for target, drawn in clip.result():
                        if drawn is not target:
                            target.copy_(drawn)
            if run.last:
                yield run.batch, crops
                crops = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _regions(self, run: DecodingRun) -> list[np.ndarray]:
        """Arguments of `resize` for all leaves of a run: [clips, branches, size] each."""
        size = self._clip.size
        length = run.sizes[:, None]
        rows = taps(run.begin[..., 0], run.end[..., 0], size, length[..., 0])
        return [*rows, *taps(run.begin[..., 1], run.end[..., 1], size, length[..., 1], step=3)]

    def _draw(
        self, run: DecodingRun, clip: int, crops: Tensor, regions: Sequence[np.ndarray]
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Draw all leaves of one clip; returns their places in the crops, and where they are, in the CPU's memory.

        Few calls from Python, each of which does much without the GIL: the thread that trains needs it, too.
        """
        height, width = run.sizes[clip].tolist()
        size = self._clip.size
        jpegs = run.jpegs[clip].result()
        frames = np.empty((len(jpegs), height, 3 * width), np.uint8)
        for number, jpeg in enumerate(jpegs):
            if number and jpeg is jpegs[number - 1]:
                frames[number] = frames[number - 1]
            else:
                # like DALI, accept what a decoder warns of: the bytes are those that were written
                simplejpeg.decode_jpeg(jpeg, strict=False, buffer=frames[number])
        targets = [crops[row] for row in run.rows[clip].tolist()]
        on_cpu = crops.device.type == "cpu"
        drawn = targets if on_cpu else [torch.empty_like(target, device="cpu") for target in targets]
        for branch, leaf in enumerate(drawn):
            region = (values[clip, branch] for values in regions)
            resize(frames, run.order[clip, branch], *region, leaf.numpy().reshape(-1, size, 3 * size))
        return zip(targets, drawn, strict=True)


def taps(
    begin: np.ndarray, end: np.ndarray, size: int, length: np.ndarray, step: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bilinear interpolation of begin..end, float32 [...], of `length` [...] input pixels to `size` output pixels.

    Returns, for each output pixel, the indices of its two input pixels, times `step`, int64 [..., size] each, and the
    weight of the second, float32 [..., size], as `resize` takes them. Edge pixels extend outwards.
    """
    at = begin[..., None] + (np.arange(size) + 0.5) * ((end - begin) / size)[..., None] - 0.5
    low = np.floor(at).astype(np.int64)
    last = np.asarray(length)[..., None] - 1
    near, far = (np.clip(index, 0, last) * step for index in (low, low + 1))
    return near, far, (at - low).astype(np.float32)


class DaliEngine:
    """One DALI graph per number of branches; decodes on the GPU if there is one."""

    def __init__(self, clip: Clip, loading: Loading, device: torch.device) -> None:
        self._clip = clip
        self._loading = loading
        self._device = device
        self._graphs: dict[int, Pipeline] = {}

    def fill(self, runs: Iterable[DecodingRun]) -> Filled:
        """Like `CpuEngine.fill`. Raises RuntimeError if DALI fails."""
        crops = None
        for branches, group in itertools.groupby(runs, key=lambda run: run.rows.shape[1]):
            fed: deque[tuple[DecodingRun, Tensor]] = deque()
            for outputs in self._graph(branches).run(self._feed(group, fed)):
                run, branch_rows = fed.popleft()
                if crops is None:
                    crops = empty_crops(run, self._clip, self._device)
                for decoded, rows in zip(outputs, branch_rows, strict=True):
                    crops[rows] = decoded.view(-1, *crops.shape[1:])
                if run.last:
                    yield run.batch, crops
                    crops = None

    def close(self) -> None:
        self._graphs.clear()

    def _graph(self, branches: int) -> Pipeline:
        from gdt.pipeline.graphs import Pipeline

        if branches not in self._graphs:
            frames = self._loading.decode_batch_size * self._clip.frames
            self._graphs[branches] = Pipeline(self._device, self._loading.threads, frames, self._clip.size, branches)
        return self._graphs[branches]

    def _feed(self, runs: Iterable[DecodingRun], fed: deque[tuple[DecodingRun, Tensor]]) -> Iterator[dict[str, Any]]:
        frames = self._clip.frames
        for run in runs:
            # uploaded before the run, so that copying its crops waits for nothing on the CPU
            fed.append((run, torch.from_numpy(run.rows.T.copy()).to(self._device)))
            first = np.arange(len(run.rows))[:, None] * frames
            inputs: dict[str, Any] = {"jpeg": [frame for clip in run.jpegs for frame in clip.result()]}
            for branch in range(run.rows.shape[1]):
                inputs[f"begin{branch}"] = np.repeat(run.begin[:, branch], frames, 0)
                inputs[f"end{branch}"] = np.repeat(run.end[:, branch], frames, 0)
                inputs[f"indices{branch}"] = (first + run.order[:, branch]).reshape(-1).astype(np.int32)
            yield inputs
