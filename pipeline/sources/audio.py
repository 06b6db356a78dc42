"""Log-mel rows -> amplified, normalised, masked."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import torch

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.layout import MEL_FLOOR
from gdt.pipeline.sources.base import InputSource, Part, SourceContext, ahead, chunks

if TYPE_CHECKING:  # DALI is imported only where it decodes
    from gdt.pipeline.graphs import Pipeline

_CLIPS = 1024
"""Maximum clips of a DALI run."""
_TOGETHER = 8
"""Clips that a thread reads for each call from Python, since each takes the GIL from the thread that trains."""


class AudioSource(InputSource):
    """float32 [n, 1, bands, mel_frames]."""

    modality = "audio"

    def __init__(self, context: SourceContext) -> None:
        super().__init__(context)
        self._graph: Pipeline | None = None

    def parts(self, batches: Iterator[Leaves]) -> Iterator[Part]:
        begun = ((leaves, self._begin(leaves)) for leaves in batches)
        for leaves, reading in ahead(begun, self.loading.read_ahead, lambda work: len(work[0])):
            out = torch.empty((len(leaves), self.index.bands, self.clip.mel_frames), device=self.device)
            rows = [clip for several in reading for clip in several.result()]
            for chunk in chunks(len(leaves), _CLIPS):
                self._fill(out[chunk], rows[chunk], leaves.take(chunk).draws)
            yield Part(out[:, None])

    def close(self) -> None:
        super().close()
        self._graph = None

    def _begin(self, leaves: Leaves) -> list[Future[list[np.ndarray]]]:
        rows = self.index.mel_position(leaves.start)[:, None] + leaves.mel_frames
        parts = chunks(len(leaves), _TOGETHER)
        return self.begin(self._read, [leaves.video[part].tolist() for part in parts], [rows[part] for part in parts])

    def _read(self, videos: list[int], rows: np.ndarray) -> list[np.ndarray]:
        """Log-mel rows [frames, bands] of some clips."""
        firsts = rows.min(1).tolist()
        lasts = rows.max(1).tolist()
        return [
            self.reader.logmel(video, first, last - first + 1)[wanted - first]
            for video, first, last, wanted in zip(videos, firsts, lasts, rows, strict=True)
        ]

    def _fill(self, out: torch.Tensor, rows: list[np.ndarray], draws: Mapping[str, np.ndarray]) -> None:
        """Normalise rows [frames, bands] of n leaves into `out` [n, bands, frames]; DALI computes the same bits."""
        mean = self.statistics.mel_mean
        scale = 1 / self.statistics.mel_std
        if self.loading.decoder == "cpu":
            out.copy_(torch.from_numpy(normalise(np.stack(rows), draws, mean, scale)))
            return
        from gdt.pipeline.graphs import Pipeline, audio_graph

        if self._graph is None:
            on_gpu = self.device.type == "cuda"
            self._graph = Pipeline(self.device, self.loading.threads, audio_graph, _CLIPS, on_gpu, mean, scale)
        for (bank,) in self._graph.run([{"rows": rows, **dali_inputs(draws)}]):
            out.copy_(bank)


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
    start = draws[f"{name}_start"][:, None]
    at = np.arange(length)
    return (start <= at) & (at < start + draws[f"{name}_width"][:, None])
