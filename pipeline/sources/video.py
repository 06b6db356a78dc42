"""JPEG frames -> crops. Frames that several leaves hold are decoded once.

Per leaf, one resize of a region of interest is the scale jitter, the crop and the flip in one; the order of the frames
is a permutation; colour jitter and normalisation together are one affine map of RGB, left to the encoder's device.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from pipeline.colour import Pixels, affine
from pipeline.errors import UserError, first_line, is_out_of_memory
from pipeline.graphs import Pipeline, dali_message, video_graph
from pipeline.leaves import Clip, Leaves
from pipeline.shards.index import Index
from pipeline.shards.reader import DamagedVideo
from pipeline.sources.base import InputSource, Memory, Part, Readings, chunks
from pipeline.sources.loading import Loading


@dataclass(frozen=True)
class _Work:
    """The video leaves of a batch, and which of them share a decoded clip."""

    leaves: Leaves
    shared: np.ndarray
    """Leaf rows by decoded clip, int64 [clips, branches]."""
    intact: np.ndarray
    """Whether each leaf could be read, bool [leaves]; known once the whole batch is fed."""
    damaged: list[str]


class VideoSource(InputSource):
    """Pixels; of a damaged clip, grey frames."""

    modality = "video"

    def __init__(self, readings: Readings, clip: Clip, device: torch.device, loading: Loading) -> None:
        super().__init__(readings, clip, device, loading)
        self._graphs: dict[int, Pipeline] = {}
        self._floats: dict[torch.dtype, torch.Tensor] = {}

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        statistics = self.index.statistics
        works = (_work(leaves) for leaves in batches)
        for branches, run in itertools.groupby(works, key=lambda work: work.shared.shape[1]):
            ahead: deque[tuple[_Work, np.ndarray]] = deque()
            outputs = self._graph(branches).run(self._feed(run, ahead))
            while (branch_outputs := self._next(outputs, ahead)) is not None:
                work, rows = ahead.popleft()
                n, frames, size = len(work.leaves), self.clip.frames, self.clip.size
                crops = memory().get(self.modality, (n, frames, size, size, 3), torch.uint8)
                for decoded, leaves in zip(branch_outputs, rows.T, strict=True):
                    clips = _turned(decoded.view(-1, frames, size, size, 3), work.leaves.turns[leaves])
                    crops[torch.from_numpy(leaves).to(self.device)] = clips
                if rows[-1, 0] == work.shared[-1, 0]:
                    matrix, offset = affine(work.leaves.draws, statistics.pixel_mean, statistics.pixel_std)
                    colours = (memory().hold("matrix", matrix), memory().hold("offset", offset))
                    yield Part(Pixels(crops, *colours, self._floats), work.intact, work.damaged)

    def _graph(self, branches: int) -> Pipeline:
        if branches not in self._graphs:
            decoded = self.loading.clips_at_once * self.clip.frames
            self._graphs[branches] = self.pipeline(video_graph, decoded, self.clip.size, branches)
        return self._graphs[branches]

    def _feed(self, works: Iterable[_Work], ahead: deque[tuple[_Work, np.ndarray]]) -> Iterator[dict[str, Any]]:
        for work in works:
            begin, end = regions(self.index, work.leaves, self.clip.size)
            for run in chunks(len(work.shared), self.loading.clips_at_once):
                rows = work.shared[run]
                inputs = self._inputs(work, rows, begin, end)
                ahead.append((work, rows))
                yield inputs

    def _inputs(self, work: _Work, rows: np.ndarray, begin: np.ndarray, end: np.ndarray) -> dict[str, Any]:
        """Inputs of one DALI run over clips [n, branches] of leaf rows: the frames, then per branch its arguments."""
        frames = self.clip.frames
        decoded = work.leaves.take(rows[:, 0])
        read, intact, damaged = self.readings.read(
            decoded.video, self.readings.reader.frames, self._grey, _frames_of(decoded)
        )
        work.intact[rows] = intact[:, None]
        work.damaged.extend(damaged)
        inputs: dict[str, Any] = {"jpeg": [frame for clip in read for frame in clip]}
        clips = np.arange(len(rows), dtype=np.int32)[:, None] * frames
        for branch, leaves in enumerate(rows.T):
            inputs[f"begin{branch}"] = np.repeat(begin[leaves], frames, 0)
            inputs[f"end{branch}"] = np.repeat(end[leaves], frames, 0)
            # where among the sorted frames, which are those decoded, each frame of a leaf is
            places = work.leaves.frames[leaves].argsort(1, kind="stable").argsort(1).astype(np.int32)
            inputs[f"places{branch}"] = (clips + places).reshape(-1)
        return inputs

    def _grey(self, video: int) -> list[np.ndarray]:
        grey = io.BytesIO()
        size = (int(self.index.width[video]), int(self.index.height[video]))
        Image.new("RGB", size, (128, 128, 128)).save(grey, "JPEG")
        return [np.frombuffer(grey.getvalue(), np.uint8)] * self.clip.frames

    def _next(
        self, outputs: Iterator[list[torch.Tensor]], ahead: deque[tuple[_Work, np.ndarray]]
    ) -> list[torch.Tensor] | None:
        """The next crops; what DALI cannot decode is told by the name of the video and its shard."""
        try:
            return next(outputs, None)
        except RuntimeError as error:
            what = dali_message(error)
            if is_out_of_memory(RuntimeError(what)):
                raise MemoryError(what) from error
            for work, rows in ahead:
                clips = work.leaves.take(rows[:, 0])
                for video, positions in zip(clips.video.tolist(), _frames_of(clips), strict=True):
                    with contextlib.suppress(DamagedVideo):  # skipped, or it would have ended the run when it was read
                        self._require_decodable(video, positions)
            raise UserError(
                f"DALI failed, and not for the frames, which are in order: {what}; where it names "
                "CUDA or the driver, see nvidia-smi"
            ) from error

    def _require_decodable(self, video: int, positions: np.ndarray) -> None:
        """Raise UserError where another library cannot decode a frame of a clip either."""
        size = (int(self.index.width[video]), int(self.index.height[video]))
        for position, jpeg in zip(positions, self.readings.reader.frames(video, positions), strict=True):
            try:
                with Image.open(io.BytesIO(jpeg.tobytes())) as image:
                    image.load()
                    reason = "" if image.size == size else f"it has {image.size} pixels, not {size}"
            except UnidentifiedImageError:
                reason = "it is no picture"
            except (OSError, SyntaxError, ValueError) as error:
                reason = first_line(error)
            if reason:
                raise UserError(
                    f"frame {position} of '{self.index.id[video]}' cannot be decoded ({reason}), "
                    f"though it is what was written; delete {self.index.shard_names[self.index.shard[video]]} in "
                    f"{self.index.folder} and run 'make preprocess' again to remake it"
                )


def regions(index: Index, leaves: Leaves, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners (y, x) of each leaf's crop in the stored frame, pixels: float32 [n, 2] each; a flip swaps the x.

    `size` is the side of the square that a crop is resized to.
    """
    video, draws = leaves.video, leaves.draws
    shape = np.stack([index.height[video], index.width[video]], 1).astype(np.float64)
    if "height" in draws:
        extent = np.stack([draws["height"], draws["width"]], 1) * shape
    else:
        side = size * shape.min(1) / draws["scale"]
        extent = np.minimum(side, shape.min(1))[:, None]
    begin = np.stack([draws["top"], draws["left"]], 1) * (shape - extent)
    end = begin + extent
    flip = draws["flip"] > 0
    begin[flip, 1], end[flip, 1] = end[flip, 1], begin[flip, 1]
    return begin.astype(np.float32), end.astype(np.float32)


def _turned(clips: torch.Tensor, turns: np.ndarray) -> torch.Tensor:
    """Clips [n, frames, size, size, 3], each turned so many quarters."""
    if not turns.any():
        return clips
    return torch.stack([torch.rot90(clip, int(turn), (1, 2)) for clip, turn in zip(clips, turns, strict=True)])


def _frames_of(leaves: Leaves) -> np.ndarray:
    """The stored frames that each leaf needs, sorted: int64 [n, frames]."""
    return leaves.start[:, None] + np.sort(leaves.frames, 1)


def _work(leaves: Leaves) -> _Work:
    return _Work(leaves, share_decoding(leaves), np.ones(len(leaves), bool), [])


def share_decoding(leaves: Leaves) -> np.ndarray:
    """Leaf rows by decoded clip, which is a video and a set of its frames: int64 [clips, branches]."""
    frames = np.sort(leaves.frames, 1)
    pattern = np.ascontiguousarray(frames - frames[:, :1])
    pattern = pattern.view(np.dtype((np.void, pattern.itemsize * pattern.shape[1]))).reshape(-1)  # one item per leaf
    which = np.unique(pattern, return_inverse=True)[1].reshape(-1)
    key = np.stack([leaves.video, leaves.start + frames[:, 0], which], 1)
    _, clip, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    branches = int(count.min())
    # leaves of one clip side by side, in the order of the plan; clips with more leaves than others are split up
    rows = np.argsort(clip.reshape(-1), kind="stable")
    if (count % branches).any():
        return rows[:, None]
    return rows.reshape(-1, branches)
