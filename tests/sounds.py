"""Sounds for tests."""

import wave
from pathlib import Path

import numpy as np

from gdt.preprocess.logmel import SAMPLE_RATE, Waveform, logmel_blocks


def logmel(waveform: np.ndarray | Waveform) -> np.ndarray:
    """The whole log-mel bank of a waveform of one window or more."""
    return np.concatenate([*logmel_blocks(waveform)])


def tone(path: Path, hertz: float, seconds: float, volume: float = 0.3, seed: int = 0) -> None:
    """Write a WAV file of a tone with some noise."""
    time = np.arange(round(SAMPLE_RATE * seconds)) / SAMPLE_RATE
    noise = np.random.default_rng(seed).normal(0, 0.1, len(time))
    samples = volume * (np.sin(2 * np.pi * hertz * time) + noise)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes((samples * 20_000).astype("<i2").tobytes())


def esc50(source: Path) -> Path:
    """A tree like that of ESC-50: two classes, two sounds each in every fold."""
    (source / "meta").mkdir(parents=True)
    (source / "audio").mkdir()
    rows = ["filename,fold,target,category,esc10,src_file,take"]
    for fold in range(1, 6):
        for target, (category, hertz) in enumerate((("dog", 300), ("rain", 3000))):
            for take in range(2):
                name = f"{fold}-{target}{take}0.wav"
                tone(source / "audio" / name, hertz * (1 + 0.1 * take), 2.0, seed=fold)
                rows.append(f"{name},{fold},{target},{category},False,{fold},{take}")
    (source / "meta" / "esc50.csv").write_text("\n".join(rows) + "\n")
    return source
