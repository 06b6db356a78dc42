"""Waveform to log-mel bank, equal to the published features (section A.4; facts about the release).

The recipe: samples on the 16-bit integer scale, pre-emphasis 0.97, rectangular windows of 20 ms every 10 ms that are
zero-padded to 1024 (not centred in the FFT frame, as librosa.stft and torch.stft would), power spectrum / 1024, 40
HTK-mel triangles with corners floored to FFT bins, natural logarithm, exact zeros replaced by the machine epsilon.
"""

from __future__ import annotations

from functools import lru_cache

import librosa
import numpy as np
import torch
import torchaudio.functional

from pipeline.shards import MEL_FLOOR

SAMPLE_RATE = 24_000
WINDOW = 480
HOP = 240
FFT = 1024
BANDS = 40
PRE_EMPHASIS = 0.97
_CHUNK = 6000
"""Frames computed at once (one minute), which bounds the memory for a waveform of any length."""


@lru_cache(maxsize=1)
def filters() -> torch.Tensor:
    """The mel triangles over the bins of the power spectrum: float32 [513, 40]."""
    hertz = librosa.mel_frequencies(n_mels=BANDS + 2, fmin=0.0, fmax=SAMPLE_RATE / 2, htk=True)
    corner = np.floor((FFT + 1) * hertz / SAMPLE_RATE)
    bins = np.arange(FFT // 2 + 1)[:, None]
    low, peak, high = corner[:-2], corner[1:-1], corner[2:]
    rising = (bins - low) / np.maximum(peak - low, 1)
    falling = (high - bins) / np.maximum(high - peak, 1)
    triangle = np.where(bins < peak, rising, falling) * ((bins >= low) & (bins < high))
    return torch.from_numpy(triangle.astype(np.float32))


def frames(samples: int) -> int:
    """How many whole windows a waveform of that many samples holds; 99 in one second."""
    return max(0, 1 + (samples - WINDOW) // HOP)


def logmel(waveform: np.ndarray) -> np.ndarray:
    """Log-mel bank of a mono waveform int16 [samples] at 24 kHz: float32 [frames(samples), 40].

    Frame n covers samples 240 n to 240 n + 480; an incomplete last window is left out, never padded.
    """
    n = frames(len(waveform))
    bank = np.empty((n, BANDS), np.float32)
    for first in range(0, n, _CHUNK):
        last = min(first + _CHUNK, n)
        begin = first * HOP
        context = int(begin > 0)  # the sample before, which pre-emphasis looks back to
        part = np.asarray(waveform[begin - context : (last - 1) * HOP + WINDOW], np.float32)
        emphasised = torchaudio.functional.preemphasis(torch.from_numpy(part), PRE_EMPHASIS)[context:]
        spectrum = torch.fft.rfft(emphasised.unfold(0, WINDOW, HOP), FFT)
        energy = (spectrum.real.square() + spectrum.imag.square()) / FFT @ filters()
        bank[first:last] = torch.where(energy == 0, torch.full_like(energy, MEL_FLOOR), energy.log()).numpy()
    return bank
