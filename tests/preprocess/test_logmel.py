"""The log-mel bank against the library that computed the published features."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from python_speech_features import logfbank

from gdt.pipeline.shards.layout import MEL_FLOOR
from gdt.preprocess import logmel as module
from gdt.preprocess.logmel import Waveform, frames, logmel_blocks, peak_levels
from tests.sounds import logmel


def published(waveform: np.ndarray) -> np.ndarray:
    """All complete windows; the library also pads an incomplete last one."""
    bank = logfbank(waveform, 24_000, winlen=0.02, winstep=0.01, nfilt=40, nfft=1024)
    return bank[: frames(len(waveform))]


@pytest.mark.parametrize("name", ["grid/bbas3a.mpg", "grid/swiu4n.mpg", "clips/test.avi", "clips/nasa_13013.mp4"])
def test_equals_the_published_features_on_real_sound(real: Path, name: str) -> None:
    arguments = ["ffmpeg", "-v", "error", "-i", real / name, "-ac", "1", "-ar", "24000", "-f", "s16le", "-"]
    waveform = np.frombuffer(subprocess.run(arguments, capture_output=True, check=True).stdout, np.int16)
    assert np.abs(logmel(waveform) - published(waveform)).max() < 1e-3


@pytest.mark.parametrize("samples", [1, 2, 480, 120_481])
def test_pre_emphasis_without_torchaudio_is_bit_for_bit_the_same(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    if module.pre_emphasis().__module__ != "torchaudio.functional.functional":
        pytest.skip("torchaudio cannot be loaded here")
    wave = torch.from_numpy(np.random.default_rng(samples).integers(-32768, 32768, samples).astype(np.float32))
    expected = module.pre_emphasis()(wave, 0.97)
    monkeypatch.setitem(sys.modules, "torchaudio.functional", None)
    found = module.pre_emphasis.__wrapped__()
    assert found.__module__ == module.__name__ and torch.equal(found(wave, 0.97), expected)


def test_mel_bands_without_librosa_are_bit_for_bit_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module.corners()
    monkeypatch.setitem(sys.modules, "librosa", None)
    assert np.array_equal(module.corners(), expected)


def test_digital_silence_equals_the_floor() -> None:
    assert (logmel(np.zeros(24_000, np.int16)) == np.float32(MEL_FLOOR)).all()


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    waveform = np.random.default_rng(1).integers(-9000, 9000, 30_000).astype(np.int16)
    whole = logmel(waveform)
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert [len(block) for block in logmel_blocks(waveform)] == [7] * 17 + [5]
    assert np.abs(logmel(waveform) - whole).max() < 1e-5


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(2).integers(-9000, 9000, 30_011).astype(np.int16)


@pytest.fixture
def in_file(noise: np.ndarray, tmp_path: Path) -> Waveform:
    noise.tofile(tmp_path / "sound.pcm")
    return Waveform(tmp_path / "sound.pcm")


@pytest.mark.parametrize(
    "part", [slice(None), slice(0, 0), slice(7, 8), slice(100, 29_000), slice(-5, None), slice(30_000, 99_999),
             slice(99_999, None), slice(9, 3)],
)  # fmt: skip
def test_slice_of_a_file_equals_slice_of_the_array(noise: np.ndarray, in_file: Waveform, part: slice) -> None:
    assert len(in_file) == len(noise)
    assert in_file[part].dtype == np.int16
    assert np.array_equal(in_file[part], noise[part])


def test_missing_file_is_empty_and_half_a_sample_is_dropped(tmp_path: Path) -> None:
    gone = Waveform(tmp_path / "gone.pcm")
    assert len(gone) == len(gone[0:100]) == len(peak_levels(gone)) == len([*logmel_blocks(gone)]) == 0
    (tmp_path / "odd.pcm").write_bytes(b"\x01\x00\x02\x00\x03")
    assert Waveform(tmp_path / "odd.pcm")[:].tolist() == [1, 2]


@pytest.mark.parametrize("block", [1, 7, 500])
def test_peak_levels_cover_10_ms_each(
    noise: np.ndarray, in_file: Waveform, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    whole = noise[: 125 * 240].astype(np.int32).reshape(125, 240)
    peaks = peak_levels(in_file)
    assert peaks.dtype == np.int32
    assert np.array_equal(peaks, np.abs(whole).max(1))
