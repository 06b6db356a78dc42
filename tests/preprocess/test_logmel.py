"""The log-mel bank against the library that computed the published features."""

import os
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


def test_energies_are_equal_to_those_in_float64() -> None:
    """Of noise, a tone, quiet hum and silence, relative to the largest of each row."""
    time = np.arange(240_000) / 24_000
    loud = np.random.default_rng(3).normal(0, 1 + 6000 * (time < 3)) + 20_000 * np.sin(2 * np.pi * 900 * time) * (
        time > 6
    )
    waveform = loud.clip(-32768, 32767).astype(np.int16)
    samples = np.append(waveform[0], waveform[1:] - 0.97 * waveform[:-1])
    windows = np.lib.stride_tricks.sliding_window_view(samples, 480)[::240]
    corner = np.floor(1025 * module.corners() / 24_000)
    bins = np.arange(513)[:, None]
    rising, falling = (bins - corner[:-2]) / np.diff(corner)[:-1], (corner[2:] - bins) / np.diff(corner)[1:]
    expected = np.abs(np.fft.rfft(windows, 1024)) ** 2 / 1024 @ np.minimum(rising, falling).clip(0)
    found = np.exp(logmel(waveform).astype(float))
    # the logarithm itself has 24 bits
    assert (np.abs(found - expected).max(1) <= (1e-6 + 24 * 2**-24) * expected.max(1)).all()


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    code = """if True:
        import sys
        import numpy as np
        from gdt.preprocess.logmel import logmel_blocks
        waveform = np.random.default_rng(4).integers(-9000, 9000, 300_000).astype(np.int16)
        sys.stdout.buffer.write(np.concatenate([*logmel_blocks(waveform)]).tobytes())"""
    one, eight = (
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": str(n)}, capture_output=True, check=True
        ).stdout
        for n in (1, 8)
    )
    assert one == eight and len(one) == 4 * 40 * frames(300_000)


@pytest.mark.parametrize("samples", [1, 2, 480, 120_481])
def test_pre_emphasis_without_torchaudio_is_bit_for_bit_the_same(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    functional = pytest.importorskip("torchaudio.functional", exc_type=OSError)
    wave = np.random.default_rng(samples).integers(-32768, 32768, samples).astype(np.float32)
    expected = functional.preemphasis(torch.from_numpy(wave), 0.97).numpy()
    assert np.array_equal(module.pre_emphasis.__wrapped__()(wave, 0.97), expected)
    monkeypatch.delitem(sys.modules, "torch")
    assert np.array_equal(module.pre_emphasis.__wrapped__()(wave, 0.97), expected)


def test_mel_bands_without_librosa_are_bit_for_bit_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("librosa")
    expected = module.corners()
    monkeypatch.delitem(sys.modules, "librosa")
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
