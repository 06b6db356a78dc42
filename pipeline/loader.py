"""BatchPlan stream -> DALI -> tensors. Every number comes from the plan; DALI draws nothing.

Frames that several leaves hold are decoded once. Per leaf, one resize of a region of interest is the
scale jitter, the crop and the flip in one; the order of the frames is a permutation; colour jitter and
normalisation together are one affine map of RGB, applied while the crops are copied into the batch.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from pipeline.colour import affine, apply
from pipeline.errors import UserError, first_line, is_out_of_memory, require_positive
from pipeline.graphs import AUDIO_CLIPS, Pipeline, audio_graph, dali_message, video_graph
from pipeline.leaves import AUDIO, VIDEO, Clip, Leaves
from pipeline.shards.index import Index
from pipeline.shards.reader import DamagedVideo, ShardReader
from pipeline.tree import BatchPlan


def _cores() -> int:
    """Cores of this machine per process that torchrun started on it."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@dataclass(frozen=True)
class Loading:
    """How loading is spread over threads and buffers, and what it does about damage; no value changes what is loaded
    from undamaged shards.
    """

    threads: int = field(default_factory=_cores)
    """DALI worker threads; by default this process's share of the cores."""
    readers: int = 4
    """Threads that read shards; more hide the latency of slow or remote disks."""
    clips_at_once: int = 16
    """Decoded clips per DALI run; larger ones suit a GPU, smaller ones a small cache."""
    prefetch: int = 2
    """Batches made ahead of the training step."""
    damaged: Literal["stop", "skip"] = "stop"
    """What a clip does that is not what was written into its shard: it ends the run with its name, or its leaves count
    for nothing in the loss, and are counted, and named at the end."""

    def __post_init__(self) -> None:
        require_positive(self, "loading", "threads", "readers", "clips_at_once", "prefetch")


@dataclass
class Batch:
    """One training batch on the device. Its tensors are reused: they hold until the next batch is taken."""

    inputs: dict[str, torch.Tensor]
    """By modality, where there are leaves of it: `video` float32 [n_video, 3, frames, size, size], channels-last in
    memory; `audio` float32 [n_audio, 1, bands, mel_frames]."""
    table: dict[str, torch.Tensor]
    """Factor name -> int64 [n_video + n_audio]: the factor table, in the order of the inputs, video leaves first.
    Where damaged clips are skipped, `intact` is 0 for their leaves, which hold grey pictures or average sound."""
    plan: BatchPlan
    """The plan of these leaves, in the same order."""
    damaged: list[str]
    """The video and the shard of every clip that was skipped because it is damaged."""


class Loader:
    """Executes plans, ahead of the consumer and in their order; iterate once.

    Raises UserError if a shard turns out damaged. Close it, or use it as a context manager, to end early.
    """

    def __init__(
        self, index: Index, plans: Iterable[BatchPlan], clip: Clip, device: torch.device, loading: Loading = Loading()
    ) -> None:
        self._plans = plans
        self._loading = loading
        self._device = device
        self._executor = Executor(index, clip, device, loading)
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
            batch, buffer, done = item
            if done is not None:
                done.wait()  # the training stream waits for the copies, not the CPU
            yield batch
            if done is not None:
                buffer.released = torch.cuda.current_stream(self._device).record_event()

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
        buffers = deque(_Buffer() for _ in range(self._loading.prefetch + 2))
        try:
            stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

            def next_buffer() -> _Buffer:
                buffers.rotate(1)
                if stream is not None and buffers[0].released is not None:
                    stream.wait_event(buffers[0].released)
                return buffers[0]

            with torch.cuda.stream(stream):
                for batch in self._executor.execute(self._plans, next_buffer):
                    done = stream.record_event() if stream is not None else None
                    self._put((batch, buffers[0], done))
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


class _Buffer:
    """Memory of one batch, kept from step to step."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self.released: torch.cuda.Event | None = None
        """On a GPU, when the training stream has read the batch that lay here before."""

    def get(self, name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        if name not in self._tensors or self._tensors[name].shape != shape:
            self._tensors[name] = torch.empty(shape, device=device)
        return self._tensors[name]


@dataclass(frozen=True)
class _Work:
    """A plan made ready: its leaves video first, and which of them share a decoded clip."""

    plan: BatchPlan
    video: BatchPlan
    shared: np.ndarray
    """Video leaf rows by decoded clip, int64 [clips, branches]."""
    intact: np.ndarray
    """Whether each leaf could be read, int64 [leaves]; known once the whole plan is fed."""
    damaged: list[str]
    """The video and the shard of every clip that could not."""


class Executor:
    """Turns a stream of plans into a stream of batches; decoding runs ahead across the plans' borders."""

    def __init__(self, index: Index, clip: Clip, device: torch.device, loading: Loading) -> None:
        self.index = index
        self.clip = clip
        self.device = device
        self.loading = loading
        self._reader = ShardReader(index)
        self._pool = ThreadPoolExecutor(loading.readers, thread_name_prefix="reader")
        self._pipelines: dict[tuple[str, int], Pipeline] = {}

    def close(self) -> None:
        """Drop what is still to be read, and the DALI graphs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pipelines.clear()

    def execute(self, plans: Iterable[BatchPlan], buffers: Callable[[], _Buffer] = _Buffer) -> Iterator[Batch]:
        """Decode and augment every leaf of every plan; `buffers` gives the memory of the next batch."""
        works = (_prepare(plan) for plan in plans)
        for branches, run in itertools.groupby(works, key=lambda work: work.shared.shape[1]):
            ahead: deque[tuple[_Work, np.ndarray]] = deque()
            outputs = self._pipeline("video", branches).run(self._feed(run, ahead))
            while (crops := self._next(outputs, ahead)) is not None:
                work, rows = ahead.popleft()
                if rows[0, 0] == work.shared[0, 0]:
                    batch, video = self._begin(work, buffers())
                    matrix, offset = affine(
                        work.video.leaves.draws, self.index.statistics.pixel_mean, self.index.statistics.pixel_std
                    )
                for branch, frames in enumerate(crops):  # uint8 [clips * frames, size, size, 3]
                    leaves = rows[:, branch]
                    pixels = self._turned(frames, work.video.leaves.turns[leaves]).view(len(leaves), -1, 3)
                    apply(pixels, matrix[leaves], offset[leaves], video, leaves)
                if rows[-1, 0] == work.shared[-1, 0]:
                    if self.loading.damaged == "skip":
                        batch.table["intact"] = torch.from_numpy(work.intact).to(self.device)
                    yield batch

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
                for job in _frames_of(work.video.leaves.take(rows[:, 0])):
                    with contextlib.suppress(DamagedVideo):  # skipped, or it would have ended the run when it was read
                        self._require_decodable(*job)
            raise UserError(
                f"DALI failed, and not for the frames, which are in order: {what}; where it names "
                "CUDA or the driver, see nvidia-smi"
            ) from error

    def _require_decodable(self, video: int, positions: np.ndarray) -> None:
        """Raise UserError where another library cannot decode a frame of a clip either."""
        size = (int(self.index.width[video]), int(self.index.height[video]))
        for position, jpeg in zip(positions, self._reader.frames(video, positions), strict=True):
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

    def _feed(self, works: Iterable[_Work], ahead: deque[tuple[_Work, np.ndarray]]) -> Iterator[dict[str, Any]]:
        for work in works:
            begin, end = self._regions(work.video.leaves)
            for first in range(0, len(work.shared), self.loading.clips_at_once):
                rows = work.shared[first : first + self.loading.clips_at_once]
                inputs = self._feed_video(work, rows, begin, end)
                ahead.append((work, rows))
                yield inputs

    def _begin(self, work: _Work, buffer: _Buffer) -> tuple[Batch, torch.Tensor]:
        """A batch, and its pixels [n_video, frames, size, size, 3], which are still to be filled."""
        clip = self.clip
        table = {name: torch.from_numpy(values).to(self.device) for name, values in work.plan.columns.items()}
        video = buffer.get("video", (len(work.video), clip.frames, clip.size, clip.size, 3), self.device)
        inputs = {"video": video.permute(0, 4, 1, 2, 3)}
        if len(work.plan) > len(work.video):
            inputs["audio"] = self._audio(work, buffer)
        return Batch(inputs, table, work.plan, work.damaged), video

    def _audio(self, work: _Work, buffer: _Buffer) -> torch.Tensor:
        plan = work.plan.modality(AUDIO)
        n = len(plan)
        out = buffer.get("audio", (n, self.index.bands, self.clip.mel_frames), self.device)
        chunks = [slice(first, min(first + AUDIO_CLIPS, n)) for first in range(0, n, AUDIO_CLIPS)]
        intact = work.intact[len(work.video) :]
        feed = (self._feed_audio(plan.take(rows), intact[rows], work.damaged) for rows in chunks)
        for rows, (bank,) in zip(chunks, self._pipeline("audio", 1).run(feed), strict=True):
            out[rows].copy_(bank)
        return out[:, None]

    def _turned(self, crops: torch.Tensor, turns: np.ndarray) -> torch.Tensor:
        """Crops [clips * frames, size, size, 3], those of each clip turned so many quarters."""
        if not turns.any():
            return crops
        clips = crops.view(len(turns), -1, *crops.shape[1:])
        return torch.stack([torch.rot90(clip, int(turn), (1, 2)) for clip, turn in zip(clips, turns, strict=True)])

    def _feed_video(self, work: _Work, rows: np.ndarray, begin: np.ndarray, end: np.ndarray) -> dict[str, Any]:
        """Inputs of one DALI run over clips [n, branches] of leaf rows: the frames, then per branch its arguments."""
        frames = self.clip.frames
        read = list(self._pool.map(self._read_frames, _frames_of(work.video.leaves.take(rows[:, 0]))))
        inputs: dict[str, Any] = {"jpeg": [frame for clip, _ in read for frame in clip]}
        work.intact[rows] = np.asarray([not damage for _, damage in read])[:, None]
        work.damaged.extend(damage for _, damage in read if damage)
        clips = np.arange(len(rows), dtype=np.int32)[:, None] * frames
        for branch, leaves in enumerate(rows.T):
            inputs[f"begin{branch}"] = np.repeat(begin[leaves], frames, 0)
            inputs[f"end{branch}"] = np.repeat(end[leaves], frames, 0)
            # where among the sorted frames, which are those decoded, each frame of a leaf is
            places = work.video.leaves.frames[leaves].argsort(1, kind="stable").argsort(1).astype(np.int32)
            inputs[f"places{branch}"] = (clips + places).reshape(-1)
        return inputs

    def _read_frames(self, job: tuple[int, np.ndarray]) -> tuple[list[np.ndarray], str]:
        """JPEGs of a clip, or grey ones of its size where it is damaged, and then what is."""
        video, positions = job
        try:
            return self._reader.frames(video, positions), ""
        except DamagedVideo:
            if self.loading.damaged == "stop":
                raise
        grey = io.BytesIO()
        size = (int(self.index.width[video]), int(self.index.height[video]))
        Image.new("RGB", size, (128, 128, 128)).save(grey, "JPEG")
        return [np.frombuffer(grey.getvalue(), np.uint8)] * self.clip.frames, self._named(video)

    def _read_logmel(self, job: tuple[int, np.ndarray]) -> tuple[np.ndarray, str]:
        """Log-mel rows of a clip, or average ones where it is damaged, and then what is."""
        video, positions = job
        first, last = int(positions.min()), int(positions.max())
        try:
            return self._reader.logmel(video, first, last - first + 1)[positions - first], ""
        except DamagedVideo:
            if self.loading.damaged == "stop":
                raise
        average = np.full((len(positions), self.index.bands), self.index.statistics.mel_mean, np.float32)
        return average, self._named(video)

    def _named(self, video: int) -> str:
        return f"'{self.index.id[video]}' in {self.index.folder / self.index.shard_names[self.index.shard[video]]}"

    def _feed_audio(self, plan: BatchPlan, intact: np.ndarray, damaged: list[str]) -> dict[str, Any]:
        """Inputs of one DALI run over the audio leaves of a plan; which could be read goes into the last two."""
        leaves = plan.leaves
        jobs = zip(leaves.video.tolist(), self.index.mel_position(leaves.start)[:, None] + leaves.rows, strict=True)
        read = list(self._pool.map(self._read_logmel, jobs))
        intact[:] = [not damage for _, damage in read]
        damaged.extend(damage for _, damage in read if damage)
        statistics, draws = self.index.statistics, leaves.draws
        masks = {
            f"{axis}_{part}": draws[f"{axis}_{part}"][:, None]
            for axis in ("frequency", "time")
            for part in ("start", "width")
        }
        return masks | {
            "rows": [rows for rows, _ in read],
            # a gain a on the waveform is 2 ln a on the log power, exactly
            "gain": (2 * np.log(draws["volume"])).astype(np.float32),
            "mean": np.full(len(plan), statistics.mel_mean, np.float32),
            "scale": np.full(len(plan), 1 / statistics.mel_std, np.float32),
        }

    def _regions(self, leaves: Leaves) -> tuple[np.ndarray, np.ndarray]:
        """Corners (y, x) of each leaf's crop in the stored frame, pixels: float32 [n, 2] each; a flip swaps the x."""
        video, draws = leaves.video, leaves.draws
        size = np.stack([self.index.height[video], self.index.width[video]], 1).astype(np.float64)
        side = self.clip.size * size.min(1) / draws["scale"]
        side = np.minimum(side, size.min(1))[:, None]
        begin = np.stack([draws["top"], draws["left"]], 1) * (size - side)
        end = begin + side
        flip = draws["flip"] > 0
        begin[flip, 1], end[flip, 1] = end[flip, 1], begin[flip, 1]
        return begin.astype(np.float32), end.astype(np.float32)

    def _pipeline(self, kind: str, branches: int) -> Pipeline:
        if (kind, branches) not in self._pipelines:
            device = "gpu" if self.device.type == "cuda" else "cpu"
            arguments: dict[str, Any] = {
                "num_threads": self.loading.threads,
                "device_id": (self.device.index or 0) if device == "gpu" else None,
                "prefetch_queue_depth": Pipeline.AHEAD,
            }
            if kind == "video":
                arguments["batch_size"] = self.loading.clips_at_once * self.clip.frames
                graph = video_graph(self.clip.size, branches, device, **arguments)
            else:
                graph = audio_graph(device, batch_size=AUDIO_CLIPS, **arguments)
            self._pipelines[kind, branches] = Pipeline(graph)
        return self._pipelines[kind, branches]


def _prepare(plan: BatchPlan) -> _Work:
    modality = plan.leaves.modality
    plan = plan.take(np.concatenate([np.flatnonzero(modality == VIDEO), np.flatnonzero(modality == AUDIO)]))
    video = plan.modality(VIDEO)
    return _Work(plan, video, _share_decoding(video.leaves), np.ones(len(plan), np.int64), [])


def _frames_of(leaves: Leaves) -> Iterator[tuple[int, np.ndarray]]:
    """For each leaf, the row of the index and the stored frames it needs, sorted: int64 [frames]."""
    return zip(leaves.video.tolist(), leaves.start[:, None] + np.sort(leaves.frames, 1), strict=True)


def _share_decoding(leaves: Leaves) -> np.ndarray:
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
