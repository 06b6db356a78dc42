"""Shards drawn by formulas, without ffmpeg and identical on every machine."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gdt.common.folders import Folder
from gdt.pipeline.shards.index import gather_tables, write_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.statistics import mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.pipeline.word2vec import digest, load
from tests.conftest import write_word2vec

WORDS = ["left right up down slowly quickly"]
FRAMES, ROWS, SIZE = 75, 250, 48


def draw(folder: Path, videos: int, splits: Sequence[str] = ("train",)) -> tuple[Path, Path]:
    """Shards of `videos` videos (moving blobs with a hum of the same pace), and word vectors for their captions.

    Video n is in split n modulo their number; its label is its pace, and its folds are its split and the next one.
    """
    words = folder / "vectors.txt"
    write_word2vec(words, WORDS, 10)
    (folder / "scratch").mkdir()
    y, x = np.mgrid[:SIZE, :SIZE]
    said: dict[str, list[str]] = {"label": [], "split": [], "folds": []}
    records, pixels, mels = [], np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    for n in range(videos):
        pace = 1 + n % 4
        rng = np.random.default_rng(n)
        # texture everywhere: batch norm amplifies rounding in channels that hardly vary
        texture = np.kron(rng.uniform(-70, 70, (SIZE // 4, SIZE // 4, 3)), np.ones((4, 4, 1)))
        jpegs = []
        for t in range(FRAMES):
            angle = 2 * np.pi * (pace * t / FRAMES + n / 12)
            blob = np.exp(-((x - 24 - 14 * np.cos(angle)) ** 2 + (y - 24 - 14 * np.sin(angle)) ** 2) / 40)
            frame = np.roll(texture, (t, 2 * n), (0, 1)) + 128 + 100 * blob[..., None] * [1, -1, 0.5]
            frame = frame.clip(0, 255).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(frame).save(file, "JPEG", quality=95)
            jpegs.append(file.getvalue())
            pixels += [[c.size, int(c.sum()), int((c.astype(np.int64) ** 2).sum())] for c in frame.reshape(-1, 3).T]
        bands = np.arange(40)[None] / 40
        bank = (5 * np.sin(2 * np.pi * pace * np.arange(ROWS)[:, None] / ROWS + n + 6 * bands)).astype(np.float32)
        bank += rng.normal(0, 2, bank.shape).astype(np.float32)
        mels += mel_sums(bank)
        (folder / f"{n}.jpeg").write_bytes(b"".join(jpegs))
        bank.tofile(folder / f"{n}.rows")
        spoken = np.arange(0, 2.4, 0.3)
        split, other = (splits[k % len(splits)] for k in (n, n + 1))
        said["label"].append(f"pace {pace}")
        said["split"].append(split)
        said["folds"].append(f"{split},{other}" if len(splits) > 1 else "")
        records.append(
            VideoRecord(
                {"id": f"v{n:02}", "height": SIZE, "width": SIZE}, folder / f"{n}.jpeg",
                np.array(list(map(len, jpegs))), folder / f"{n}.rows",
                ((np.arange(8) + n) % 6, spoken, spoken + 0.2),
            )
        )  # fmt: skip
    shards = folder / "shards"
    shards.mkdir()
    write_shard(shards / "shard-000000.h5", records, {"pixels": pixels, "mels": mels}, folder / "scratch")
    settings = {"fps": 30, "bands": 40, "vocabulary": digest(load(words).index_to_key)}
    tables = gather_tables(Folder(shards), ["shard-000000.h5"])
    write_index(shards / INDEX, tables, json.dumps(settings), said)
    return shards, words
