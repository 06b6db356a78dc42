"""Waveform to log-mel bank, equal to the published features (section A.3.3 and the released code).

Samples on the 16-bit integer scale, pre-emphasis 0.97, rectangular windows of 20 ms every 10 ms, zero-padded to 1024
(not centred in the FFT frame, as librosa.stft and torch.stft do), power spectrum / 1024, 40 HTK-mel triangles with
corners floored to FFT bins, natural logarithm, exact zeros replaced by the machine epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gdt.pipeline.shards.layout import BANDS, MEL_FLOOR, MEL_RATE

if TYPE_CHECKING:  # takes more than a second to import, and only workers need it
    import torch

SAMPLE_RATE = 24_000
WINDOW = 480
HOP = SAMPLE_RATE // MEL_RATE
FFT = 1024
PRE_EMPHASIS = 0.97
_BLOCK = 500
"""Rows computed at once (5 s), to bound the memory."""


def corners() -> np.ndarray:
    """Corners of the mel triangles, Hz: float64 [42]; band k begins at k, peaks at k + 1 and ends at k + 2.

    From librosa; the same arithmetic where it cannot be loaded.
    """
    top = SAMPLE_RATE / 2
    try:
        import librosa

        return np.asarray(librosa.mel_frequencies(n_mels=BANDS + 2, fmin=0.0, fmax=top, htk=True))
    except (ImportError, RuntimeError):  # RuntimeError: an account without a folder for numba's cache
        mels = np.linspace(0, 2595 * np.log10(1 + top / 700), BANDS + 2)
        return 700 * (10 ** (mels / 2595) - 1)


@lru_cache(maxsize=1)
def filters() -> torch.Tensor:
    """The mel triangles over the bins of the power spectrum: float32 [513, 40]."""
    import torch

    corner = np.floor((FFT + 1) * corners() / SAMPLE_RATE)
    bins = np.arange(FFT // 2 + 1)[:, None]
    low = corner[:-2]
    peak = corner[1:-1]
    high = corner[2:]
    rising = (bins - low) / np.maximum(peak - low, 1)
    falling = (high - bins) / np.maximum(high - peak, 1)
    triangle = np.where(bins < peak, rising, falling) * ((bins >= low) & (bins < high))
    return torch.from_numpy(triangle.astype(np.float32))


def frames(samples: int) -> int:
    """Number of complete windows in a waveform; 99 in one second."""
    return max(0, 1 + (samples - WINDOW) // HOP)


class Waveform:
    """A mono waveform in a file of int16 samples, read slice by slice."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        """The first `limit` samples of a file; none of a missing file."""
        self._path = path
        samples = path.stat().st_size // 2 if path.is_file() else 0
        self._samples = samples if limit is None else min(samples, limit)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, part: slice) -> np.ndarray:
        first, last, _ = part.indices(self._samples)
        if last <= first:
            return np.zeros(0, np.int16)
        return np.fromfile(self._path, np.int16, last - first, offset=2 * first)


@cache
def pre_emphasis() -> Callable[[torch.Tensor, float], torch.Tensor]:
    """The function of torchaudio; the same arithmetic where its binary cannot be loaded, as with a torch for CPUs."""
    try:
        from torchaudio.functional import preemphasis
    except (ImportError, OSError):
        import torch

        return lambda samples, share: torch.cat([samples[:1], samples[1:] - share * samples[:-1]])
    return preemphasis


def logmel_blocks(waveform: np.ndarray | Waveform) -> Iterator[np.ndarray]:
    """Log-mel bank of a mono waveform int16 [samples] at 24 kHz: float32 [frames(samples), 40], in blocks of rows.

    Row n covers samples 240 n to 240 n + 480; an incomplete last window is dropped, not padded.
    """
    import torch

    n = frames(len(waveform))
    for first in range(0, n, _BLOCK):
        last = min(first + _BLOCK, n)
        begin = first * HOP
        context = int(begin > 0)  # the previous sample, for pre-emphasis
        part = np.asarray(waveform[begin - context : (last - 1) * HOP + WINDOW], np.float32)
        emphasised = pre_emphasis()(torch.from_numpy(part), PRE_EMPHASIS)[context:]
        spectrum = torch.fft.rfft(emphasised.unfold(0, WINDOW, HOP), FFT)
        energy = (spectrum.real.square() + spectrum.imag.square()) / FFT @ filters()
        yield torch.where(energy == 0, torch.full_like(energy, MEL_FLOOR), energy.log()).numpy()


def peak_levels(waveform: Waveform) -> np.ndarray:
    """Peak of every 10 ms, on the 16-bit integer scale: int32 [samples // 240]."""
    n = len(waveform) // HOP
    peaks = [np.zeros(0, np.int32)]
    for first in range(0, n, _BLOCK):
        part = waveform[first * HOP : min(first + _BLOCK, n) * HOP].reshape(-1, HOP).astype(np.int32)
        peaks.append(np.maximum(part.max(1), -part.min(1)))
    return np.concatenate(peaks)
