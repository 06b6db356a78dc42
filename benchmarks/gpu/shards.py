"""Shards of synthetic videos, without ffmpeg or data; frames have about the size of real ones."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Rows, Values
from gdt.pipeline.shards.index import mel_sums, write_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.writer import VideoRecord, write_shard

_QUALITY = 77
"""JPEGs of 160 pixels shorter side have about 7 kB, as those of Kinetics."""
_PER_SHARD = 32
_BANDS = 40


def shards(settings: Settings, rows: Rows) -> None:
    def measure() -> Values:
        size, folder = settings.size, settings.shards
        generate(settings)
        held = sum(path.stat().st_size for path in folder.glob("shard-*.h5"))
        return {"videos": size.videos, "frames": size.frames, "MB": held / 1e6,
                "kB/frame": held / 1e3 / size.videos / size.frames}  # fmt: skip

    rows("generated", measure)


def generate(settings: Settings) -> None:
    """Write shards of different videos, unless they exist."""
    size, folder = settings.size, settings.shards
    if (folder / INDEX).is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = [range(first, min(first + _PER_SHARD, size.videos)) for first in range(0, size.videos, _PER_SHARD)]
    names = [folder / f"shard-{number:06d}.h5" for number in range(len(parts))]
    # Pillow encodes without the GIL
    with ThreadPoolExecutor() as pool, tempfile.TemporaryDirectory(dir=folder) as scratch:
        list(pool.map(partial(_shard, size.frames, size.shorter_side, Path(scratch)), names, parts))
    write_index(folder, names, {"settings": json.dumps({"fps": 30, "bands": _BANDS})})


def _shard(frames: int, side: int, scratch: Path, path: Path, videos: range) -> None:
    records, pixels, mels = [], np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    for video in videos:
        rng = np.random.default_rng(video)
        images = draw_frames(rng, frames, side)
        jpegs = list(map(encode, images))
        bank = rng.normal(0, 4, (frames * 100 // 30 + 1, _BANDS)).astype(np.float32)
        files = scratch / f"{video}.jpeg", scratch / f"{video}.rows"
        files[0].write_bytes(b"".join(jpegs))
        bank.tofile(files[1])
        sizes = np.array(list(map(len, jpegs)))
        height, width = images[0].shape[:2]
        columns = {"id": f"v{video:06}", "split": "train", "height": height, "width": width}
        records.append(VideoRecord(columns, files[0], sizes, files[1]))
        shown = images[0].reshape(-1, 3).astype(np.int64)
        pixels += np.stack([np.full(3, len(shown)), shown.sum(0), (shown**2).sum(0)], 1)
        mels += mel_sums(bank)
    write_shard(path, records, [], {"pixel_sums": pixels, "mel_sums": mels}, "drawn", _BANDS, scratch)


def draw_frames(rng: np.random.Generator, frames: int, side: int) -> list[np.ndarray]:
    """A camera pan over noise at several scales: uint8 [height, width, 3] each."""
    height, width = side, -(-side * 4 // 3)
    whole = (width + 2 * frames, height + frames)
    landscape = np.full((whole[1], whole[0], 3), 128, np.float32)
    for cells in (3, 9, 27, 81):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells * 2, 3), np.uint8))
        landscape += (np.asarray(coarse.resize(whole, Image.Resampling.BICUBIC), np.float32) - 128) * cells**-0.5
    shown = landscape.clip(0, 255).astype(np.uint8)
    return [shown[t : t + height, 2 * t : 2 * t + width] for t in range(frames)]


def encode(frame: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=_QUALITY, subsampling="4:2:0")
    return file.getvalue()
