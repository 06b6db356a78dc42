"""The log-mel bank against the library that computed the published features."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from python_speech_features import logfbank

from pipeline.shards import MEL_FLOOR
from preprocess import logmel as module
from preprocess.logmel import frames, logmel


def published(waveform: np.ndarray) -> np.ndarray:
    """All whole windows; the library pads an incomplete last one, which the shards leave out."""
    bank = logfbank(waveform, 24_000, winlen=0.02, winstep=0.01, nfilt=40, nfft=1024)
    return bank[: frames(len(waveform))]


@pytest.mark.parametrize("name", ["grid/bbas3a.mpg", "grid/swiu4n.mpg", "clips/test.avi", "clips/nasa_13013.mp4"])
def test_equals_the_published_recipe_on_real_sound(real: Path, name: str) -> None:
    arguments = ["ffmpeg", "-v", "error", "-i", real / name, "-ac", "1", "-ar", "24000", "-f", "s16le", "-"]
    waveform = np.frombuffer(subprocess.run(arguments, capture_output=True, check=True).stdout, np.int16)
    assert np.abs(logmel(waveform) - published(waveform)).max() < 1e-3


def test_one_second_has_99_frames_of_40_bands() -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, 24_000).astype(np.int16)
    assert logmel(noise).shape == (99, 40)
    assert np.abs(logmel(noise) - published(noise)).max() < 1e-3


def test_digital_silence_is_the_floor() -> None:
    assert (logmel(np.zeros(24_000, np.int16)) == np.float32(MEL_FLOOR)).all()


def test_no_sound_and_too_little_give_no_frames() -> None:
    assert logmel(np.zeros(0, np.int16)).shape == (0, 40)
    assert logmel(np.zeros(479, np.int16)).shape == (0, 40)
    assert logmel(np.zeros(480, np.int16)).shape == (1, 40)


def test_computing_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waveform = np.random.default_rng(1).integers(-9000, 9000, 30_000).astype(np.int16)
    whole = logmel(waveform)
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert np.abs(logmel(waveform) - whole).max() < 1e-5
