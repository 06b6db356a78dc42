"""Shards of videos that are drawn: no ffmpeg, no data, frames of about the size that real ones have."""

from __future__ import annotations

import io
import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from gdt.common.files import partial_of
from gdt.pipeline.shards.index import mel_sums, write_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.writer import VideoRecord, write_shard

FRAME_BYTES = 7000
"""Of a JPEG of 160 pixels shorter side, as preprocessing makes them of Kinetics; others in proportion to the area."""
_PER_SHARD = 32
_BANDS = 40
Sums = tuple[np.ndarray, np.ndarray]


def draw(folder: Path, videos: int, frames: int, side: int, processes: int) -> Path:
    """Shards of so many videos, each another one, unless they are there."""
    if (folder / INDEX).is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    scratch = partial_of(folder / "scratch")
    scratch.mkdir(parents=True)
    parts = [range(first, min(first + _PER_SHARD, videos)) for first in range(0, videos, _PER_SHARD)]
    names = [folder / f"shard-{number:06d}.h5" for number in range(len(parts))]
    count = min(processes, len(parts))
    arguments = (names, parts, [frames] * len(parts), [side] * len(parts), [scratch] * len(parts))
    if count > 1:
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_shard, *arguments))
    else:
        list(map(_shard, *arguments))
    scratch.rmdir()
    write_index(folder, names, {"settings": json.dumps({"fps": 30, "bands": _BANDS})})
    return folder


def _shard(path: Path, videos: range, frames: int, side: int, scratch: Path) -> None:
    records, pixels, mels = [], np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    for video in videos:
        record, (own_pixels, own_mels) = _video(video, frames, side, scratch)
        records.append(record)
        pixels += own_pixels
        mels += own_mels
    write_shard(path, records, [], {"pixel_sums": pixels, "mel_sums": mels}, "drawn", _BANDS, scratch)


def _video(number: int, frames: int, side: int, scratch: Path) -> tuple[VideoRecord, Sums]:
    """A camera that pans over a landscape of noise, and a light that wanders at the pace of a hum."""
    rng = np.random.default_rng(number)
    height, width = side, -(-side * 4 // 3)
    landscape = _landscape(rng, height + frames, width + 2 * frames)
    pace = rng.uniform(0.5, 3)
    y, x = np.mgrid[:height, :width].astype(np.float32) / side
    jpegs: list[bytes] = []
    pixels = np.zeros((3, 3), np.int64)
    quality = 0
    for t in range(frames):
        angle = 2 * np.pi * pace * t / 30 + number
        light = np.exp(-((x - 0.66 - 0.3 * np.cos(angle)) ** 2 + (y - 0.5 - 0.3 * np.sin(angle)) ** 2) * 30)
        frame = landscape[t : t + height, 2 * t : 2 * t + width] + 80 * light[..., None] * (1, -1, 0.5)
        picture = frame.clip(0, 255).astype(np.uint8)
        quality = quality or _quality(picture, FRAME_BYTES * side**2 // 160**2)
        jpegs.append(_encoded(picture, quality))
        wide = picture.reshape(-1, 3).astype(np.int64)
        pixels += np.stack([np.full(3, len(wide)), wide.sum(0), (wide**2).sum(0)], 1)
    rows = frames * 100 // 30 + 1
    phase = 2 * np.pi * pace * np.arange(rows)[:, None] / 100 + number
    bank = (5 * np.sin(phase + 6 * np.arange(_BANDS) / _BANDS) + rng.normal(0, 2, (rows, _BANDS))).astype(np.float32)
    jpeg, logmel = scratch / f"{number}.jpeg", scratch / f"{number}.rows"
    jpeg.write_bytes(b"".join(jpegs))
    bank.tofile(logmel)
    sizes = np.array(list(map(len, jpegs)))
    columns = {"id": f"v{number:06}", "split": "train", "height": height, "width": width}
    record = VideoRecord(columns, jpeg, sizes, logmel)
    return record, (pixels, mel_sums(bank))


def _landscape(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Noise at every scale, as pictures have: float32 [height, width, 3]."""
    found = np.full((height, width, 3), 128, np.float32)
    for cells in (3, 9, 27, 81):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells * 2, 3), np.uint8))
        found += (np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32) - 128) * cells**-0.5
    return found


def _quality(picture: np.ndarray, wanted: int) -> int:
    """With which a JPEG has about so many bytes."""
    return min(range(30, 97, 6), key=lambda quality: abs(len(_encoded(picture, quality)) - wanted))


def _encoded(picture: np.ndarray, quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return file.getvalue()
