"""What is wrong with a shard, frame by frame: an oracle for what preprocessing writes."""

import io
import json
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from gdt.pipeline.shards import container
from gdt.pipeline.shards.layout import ROWS, SHARD, WORDS


def rejected_of(path: Path) -> list[dict[str, str]]:
    """The rejected videos of a shard: id and reason."""
    with h5py.File(path) as file:
        rows = map(json.loads, file["rejected"][:])
        return [{"id": row["id"], "reason": row["reason"]} for row in rows]


def problems(path: Path) -> list[str]:
    """Every frame decodes as a baseline 4:2:0 JPEG of the size of its video; all checksums and bounds fit."""
    container.check_shard(path)
    with h5py.File(path) as file:
        return list(_problems({name: file[name][:] for name in SHARD}))


def _problems(shard: dict[str, np.ndarray]) -> Iterator[str]:
    ids, offset = shard["video/id"], shard["frames/offset"]
    totals = {"frame": len(shard["frames/crc32"]), "mel": len(shard["audio/logmel"]), "text": len(shard["text/token"])}
    for name, total in totals.items():
        bounds = shard[f"video/{name}"]
        if len(bounds) != len(ids) + 1 or bounds[0] or bounds[-1] != total or (np.diff(bounds) < 0).any():
            yield f"video/{name} does not fit"
    for video, (first, last) in enumerate(pairwise(shard["video/frame"])):
        for frame in range(first, last):
            jpeg = shard["frames/jpeg"][offset[frame] : offset[frame + 1]].tobytes()
            with Image.open(io.BytesIO(jpeg)) as image:
                image.load()
                sampling = [tuple(layer[1:3]) for layer in image.layer]
                size = image.size == (shard["video/width"][video], shard["video/height"][video])
                baseline = image.mode == "RGB" and not image.info.get("progressive")
            if not (size and baseline and sampling == [(2, 2), (1, 1), (1, 1)]):
                yield f"frame {frame} is not a baseline 4:2:0 JPEG of its size"
            if zlib.crc32(jpeg) != shard["frames/crc32"][frame]:
                yield f"frame {frame} has another checksum"
    bank = shard["audio/logmel"]
    pieces = [zlib.crc32(bank[k : k + ROWS].tobytes()) for k in range(0, len(bank), ROWS)]
    if pieces != shard["audio/crc32"].tolist():
        yield "the sound has other checksums"
    words = [shard[f"text/{name}"] for name in WORDS]
    spoken = [zlib.crc32(b"".join(column[a:b].tobytes() for column in words)) for a, b in pairwise(shard["video/text"])]
    if spoken != shard["text/crc32"].tolist():
        yield "the words have other checksums"
