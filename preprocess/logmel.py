"""Waveform to log-mel bank, equal to the published features (section A.3.3 and the released code).

Samples on the 16-bit integer scale, pre-emphasis 0.97, rectangular windows of 20 ms every 10 ms, zero-padded to 1024
(not centred in the FFT frame, as librosa.stft and torch.stft do), power spectrum / 1024, 40 HTK-mel triangles with
corners floored to FFT bins, natural logarithm, exact zeros replaced by the machine epsilon. In float32, without torch,
which takes a second to import, and without BLAS, whose sums depend on the number of its threads.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from scipy.fft import rfft

from gdt.pipeline.shards.layout import BANDS, MEL_FLOOR, MEL_RATE

SAMPLE_RATE = 24_000
WINDOW = 480
HOP = SAMPLE_RATE // MEL_RATE
FFT = 1024
PRE_EMPHASIS = 0.97
_BLOCK = 100
"""Rows computed at once (1 s): of more, the arrays would take fresh pages from the kernel, at twice the time."""


def corners() -> np.ndarray:
    """Corners of the mel triangles, Hz: float64 [42]; band k begins at k, peaks at k + 1 and ends at k + 2.

    From librosa in a process that has imported it, which takes a second; else, or where it cannot be loaded, the same
    arithmetic.
    """
    top = SAMPLE_RATE / 2
    try:
        return np.asarray(sys.modules["librosa"].mel_frequencies(n_mels=BANDS + 2, fmin=0.0, fmax=top, htk=True))
    except (KeyError, ImportError, RuntimeError):  # RuntimeError: an account without a folder for numba's cache
        mels = np.linspace(0, 2595 * np.log10(1 + top / 700), BANDS + 2)
        return 700 * (10 ** (mels / 2595) - 1)


@cache
def slopes() -> tuple[np.ndarray, np.ndarray]:
    """The bins at which the mel triangles begin, int64 [41], and how much of each of the 512 bins belongs to the
    triangle that peaks next, float32 [512]; the rest belongs to the one that has peaked before.
    """
    corner = np.floor((FFT + 1) * corners() / SAMPLE_RATE).astype(int)
    width = np.diff(corner)
    rising = (np.arange(corner[-1]) - np.repeat(corner[:-1], width)) / np.repeat(width, width)
    return corner[:-1], rising.astype(np.float32)


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
def pre_emphasis() -> Callable[[np.ndarray, float], np.ndarray]:
    """The function of torchaudio in a process that has imported torch; else, or where its binary cannot be loaded, as
    with a torch for CPUs, the same arithmetic.
    """
    if "torch" in sys.modules:
        with suppress(ImportError, OSError):
            import torch
            from torchaudio.functional import preemphasis

            return lambda samples, share: preemphasis(torch.from_numpy(samples), share).numpy()
    return lambda samples, share: np.concatenate([samples[:1], samples[1:] - np.float32(share) * samples[:-1]])


def logmel_blocks(waveform: np.ndarray | Waveform) -> Iterator[np.ndarray]:
    """Log-mel bank of a mono waveform int16 [samples] at 24 kHz: float32 [frames(samples), 40], in blocks of rows.

    Row n covers samples 240 n to 240 n + 480; an incomplete last window is dropped, not padded.
    """
    n = frames(len(waveform))
    first_bins, rising = slopes()
    for first in range(0, n, _BLOCK):
        last = min(first + _BLOCK, n)
        begin = first * HOP
        context = int(begin > 0)  # the previous sample, for pre-emphasis
        part = np.asarray(waveform[begin - context : (last - 1) * HOP + WINDOW], np.float32)
        emphasised = pre_emphasis()(part, PRE_EMPHASIS)[context:]
        spectrum = rfft(np.lib.stride_tricks.sliding_window_view(emphasised, WINDOW)[::HOP], FFT)[:, : len(rising)]
        power = spectrum.real**2 + spectrum.imag**2
        below, above = (np.add.reduceat(power * share, first_bins, axis=1) for share in (rising, 1 - rising))
        energy = (below[:, :-1] + above[:, 1:]) / np.float32(FFT)
        with np.errstate(divide="ignore"):
            bank = np.where(energy == 0, np.float32(MEL_FLOOR), np.log(energy))
        yield bank


def peak_levels(waveform: Waveform) -> np.ndarray:
    """Peak of every 10 ms, on the 16-bit integer scale: int32 [samples // 240]."""
    n = len(waveform) // HOP
    peaks = [np.zeros(0, np.int32)]
    for first in range(0, n, _BLOCK):
        part = waveform[first * HOP : min(first + _BLOCK, n) * HOP].reshape(-1, HOP).astype(np.int32)
        peaks.append(np.maximum(part.max(1), -part.min(1)))
    return np.concatenate(peaks)
