"""Log-mel rows -> amplified, normalised, masked."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import numpy as np
import torch

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.shards.layout import MEL_FLOOR
from gdt.pipeline.sources.base import InputSource, Part, ahead, chunks

_TOGETHER = 8
"""Clips that a thread reads for each call from Python, since each takes the GIL from the thread that trains."""


class AudioSource(InputSource):
    """float32 [n, 1, bands, mel_frames]."""

    modality = "audio"

    def parts(self, batches: Iterator[Leaves]) -> Iterator[Part]:
        begun = ((leaves, self._begin(leaves)) for leaves in batches)
        scale = 1 / self.statistics.mel_std
        for leaves, reading in ahead(begun, self.loading.read_ahead, lambda work: len(work[0])):
            rows = np.stack([clip for several in reading for clip in several.result()])
            bank = torch.from_numpy(normalise(rows, leaves.draws, self.statistics.mel_mean, scale))
            yield Part(bank.contiguous().to(self.device)[:, None])

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


def normalise(rows: np.ndarray, draws: Mapping[str, np.ndarray], mean: float, scale: float) -> np.ndarray:
    """Log-mel rows, float32 [n, frames, bands], amplified, normalised and masked in place: [n, bands, frames]."""
    gain = (2 * np.log(draws["volume"])).astype(np.float32)  # of the log power
    rows += gain[:, None, None] * (rows > np.float32(MEL_FLOOR))  # silence keeps its value
    rows -= np.float32(mean)
    rows *= np.float32(scale)
    masked = _masked(draws, "time", rows.shape[1])[:, :, None] | _masked(draws, "frequency", rows.shape[2])[:, None]
    rows[masked] = 0
    return rows.transpose(0, 2, 1)


def _masked(draws: Mapping[str, np.ndarray], name: str, length: int) -> np.ndarray:
    """Bands or frames under a mask: bool [n, length]."""
    start = draws[f"{name}_start"][:, None]
    at = np.arange(length)
    return (start <= at) & (at < start + draws[f"{name}_width"][:, None])
