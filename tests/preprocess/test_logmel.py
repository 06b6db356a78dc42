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


@pytest.mark.parametrize("name", ["grid/bbas3a.mpg", "clips/test.avi", "clips/nasa_13013.mp4"])
def test_equals_the_published_features_on_real_sound(real: Path, name: str) -> None:
    command = ["ffmpeg", "-v", "error", "-i", real / name, "-ac", "1", "-ar", "24000", "-f", "s16le", "-"]
    waveform = np.frombuffer(subprocess.check_output(command), np.int16)
    assert np.abs(logmel(waveform) - published(waveform)).max() < 1e-4


@pytest.mark.parametrize("level", [20, 1000, 9000])
def test_equals_the_published_features(level: int) -> None:
    """Of noise, a tone and quiet hum."""
    time = np.arange(240_011) / 24_000
    noise = np.random.default_rng(3).normal(0, 1 + level * (time < 3))
    waveform = (noise + 3 * level * np.sin(2 * np.pi * 900 * time) * (time > 6)).clip(-32768, 32767).astype(np.int16)
    assert np.abs(logmel(waveform) - published(waveform)).max() < 1e-4


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    code = """if True:
        import sys
        import numpy as np
        from gdt.preprocess.logmel import logmel_blocks
        waveform = np.random.default_rng(4).integers(-9000, 9000, 300_000).astype(np.int16)
        sys.stdout.buffer.write(np.concatenate([*logmel_blocks(waveform)]).tobytes())"""
    command = [sys.executable, "-c", code]
    one, eight = (subprocess.check_output(command, env={**os.environ, "OMP_NUM_THREADS": n}) for n in ("1", "8"))
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


def test_parts_of_a_file_are_those_of_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a sample is dropped, and a missing file is empty; peaks cover 10 ms each."""
    noise = np.random.default_rng(2).integers(-9000, 9000, 30_011).astype(np.int16)
    (tmp_path / "sound.pcm").write_bytes(noise.tobytes() + b"x")
    in_file, gone = Waveform(tmp_path / "sound.pcm"), Waveform(tmp_path / "gone.pcm")
    for begin, end in ((None, None), (0, 0), (7, 8), (-5, None), (30_000, 99_999), (99_999, None), (9, 3)):
        assert in_file[begin:end].dtype == np.int16
        assert np.array_equal(in_file[begin:end], noise[begin:end])
    peaks = np.abs(noise[: 125 * 240].astype(np.int32).reshape(125, 240)).max(1)
    for block in (1, 7, 500):
        monkeypatch.setattr(module, "_BLOCK", block)
        assert np.array_equal(peak_levels(in_file), peaks)
    assert len(gone) == len(gone[0:100]) == len(peak_levels(gone)) == len([*logmel_blocks(gone)]) == 0
