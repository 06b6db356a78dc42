"""Log-mel rows -> amplified, normalised, masked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gdt.common.errors import UserError
from gdt.pipeline.engines import failure
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.layout import MEL_FLOOR
from gdt.pipeline.sources.base import InputSource, Memory, Part, Reading, ahead, chunks

if TYPE_CHECKING:  # DALI is imported only where it decodes
    from gdt.pipeline.graphs import Pipeline

_CLIPS = 1024
"""Maximum clips of a run."""


@dataclass(frozen=True)
class _Work:
    """Some audio leaves of a batch."""

    leaves: Leaves
    reading: Reading[np.ndarray]
    run: slice
    """Their slice of the batch."""
    total: int
    """Audio leaves of the batch."""


_Made = Iterator[tuple[_Work, torch.Tensor]]
"""Leaves, float32 [n, bands, frames]."""


class AudioSource(InputSource):
    """float32 [n, 1, bands, mel_frames]."""

    modality = "audio"
    _graph: Pipeline | None = None

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        works = ahead(self._works(batches), self.loading.read_ahead, lambda work: len(work.leaves))
        for work, bank in (self._with_dali if self.loading.decoder == "gpu" else self._on_cpu)(works):
            out = memory().get(self.modality, (work.total, self.index.bands, self.clip.mel_frames))
            out[work.run].copy_(bank)
            if work.run.stop == work.total:
                yield Part(out[:, None])

    def close(self) -> None:
        super().close()
        self._graph = None

    def _works(self, batches: Iterator[Leaves]) -> Iterator[_Work]:
        for batch in batches:
            rows = self.index.mel_position(batch.start)[:, None] + batch.mel_frames
            for run in chunks(len(batch), _CLIPS):
                reading = self.begin(batch.video[run], self._read, rows[run])
                yield _Work(batch.take(run), reading, run, len(batch))

    def _on_cpu(self, works: Iterable[_Work]) -> _Made:
        """Normalise without DALI, equal to it bit for bit."""
        statistics = self.index.statistics
        for work in works:
            bank = normalise(
                np.stack(work.reading.result()), work.leaves.draws, statistics.mel_mean, 1 / statistics.mel_std
            )
            yield work, torch.from_numpy(bank)

    def _with_dali(self, works: Iterable[_Work]) -> _Made:
        """Raises UserError if DALI fails."""
        from gdt.pipeline.graphs import Pipeline, audio_graph

        values = self.device.dali, self.index.statistics.mel_mean, 1 / self.index.statistics.mel_std
        fed: deque[_Work] = deque()
        try:
            if self._graph is None:
                self._graph = Pipeline(self.device, self.loading.threads, audio_graph, _CLIPS, *values)
            for (bank,) in self._graph.run(self._feed(works, fed)):
                yield fed.popleft(), bank
        except RuntimeError as error:
            raise UserError(
                f"DALI failed with sound: {failure(error)}; set --loading.decoder cpu, or hide the GPU by "
                "CUDA_VISIBLE_DEVICES="
            ) from error

    def _feed(self, works: Iterable[_Work], fed: deque[_Work]) -> Iterator[dict[str, Any]]:
        """Inputs of every DALI run."""
        for work in works:
            fed.append(work)
            yield {"rows": work.reading.result(), **dali_inputs(work.leaves.draws)}

    def _read(self, video: int, rows: np.ndarray) -> np.ndarray:
        first, last = int(rows.min()), int(rows.max())
        return self.reader.logmel(video, first, last - first + 1)[rows - first]


def dali_inputs(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of `audio_graph` besides the rows."""
    masks = {name: draw[:, None] for name, draw in draws.items() if name.startswith(("frequency_", "time_"))}
    return {"gain": _gain(draws), **masks}


def normalise(rows: np.ndarray, draws: Mapping[str, np.ndarray], mean: float, scale: float) -> np.ndarray:
    """Log-mel rows, float32 [n, frames, bands], amplified, normalised and masked in place: [n, bands, frames]."""
    rows += _gain(draws)[:, None, None] * (rows > np.float32(MEL_FLOOR))  # silence keeps its value
    rows -= np.float32(mean)
    rows *= np.float32(scale)
    masked = _masked(draws, "time", rows.shape[1])[:, :, None] | _masked(draws, "frequency", rows.shape[2])[:, None]
    rows[masked] = 0
    return rows.transpose(0, 2, 1)


def _gain(draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Increase of the log power, 2 ln a, by the gain a of the waveform: float32 [n]."""
    return (2 * np.log(draws["volume"])).astype(np.float32)


def _masked(draws: Mapping[str, np.ndarray], name: str, length: int) -> np.ndarray:
    """Bands or frames under a mask: bool [n, length]."""
    start, at = draws[f"{name}_start"][:, None], np.arange(length)
    return (start <= at) & (at < start + draws[f"{name}_width"][:, None])
