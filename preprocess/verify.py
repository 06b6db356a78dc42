"""Whether every shard is still what was written: python -m preprocess.verify.

Checksums of everything, offsets that fit, the markers at both ends of every JPEG; with `--full` every frame is decoded
too. A damaged shard is named with what is wrong; `--remove` removes it, and preprocessing then makes it again.
"""

from __future__ import annotations

import filecmp
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import tyro
from PIL import Image
from tqdm import tqdm

from pipeline.errors import UserError, exit_with_message
from pipeline.shards.index import Index, write_index
from pipeline.shards.layout import INDEX, SCHEMA, SHARD, attributes_checksum, checksum, shard_folder
from preprocess import cluster

_FRAMES = 1 << 12
"""Frames looked at together."""


@dataclass(frozen=True)
class Verify:
    """Check every shard of a data set; the exit status is 2 where one is damaged."""

    dataset: str = "folder"
    """The data set, as given to preprocessing."""
    shards: Path | None = None
    """Folder of the shards; default data/shards/<dataset>."""
    full: bool = False
    """Decode every frame, which takes longer."""
    remove: bool = False
    """Remove the damaged shards; preprocessing makes them again."""
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Worker processes on this machine. SLURM jobs with --scheduler slurm; unused with an address."""
    scheduler: str = ""
    """Address of a running Dask scheduler (tcp://host:8786), or slurm; empty starts workers on this machine."""

    @property
    def shard_folder(self) -> Path:
        return (self.shards or shard_folder(self.dataset)).absolute()


def check_shard(path: Path, full: bool) -> list[str]:
    """What is wrong with a shard, in the order in which it was found; empty where nothing is."""
    try:
        with h5py.File(path, "r") as file:
            return list(_problems(file, full))
    except Exception as error:  # h5py meets damage with errors of many kinds
        return [f"it cannot be read ({type(error).__name__}: {error})"]


def _problems(file: h5py.File, full: bool) -> Iterator[str]:
    if file.attrs.get("schema") != SCHEMA:
        yield f"it has schema {file.attrs.get('schema')} instead of {SCHEMA}"
        return
    if file.attrs.get("crc32") != attributes_checksum(dict(file.attrs)):
        yield "the checksum of its attributes does not match"
    missing = [name for name in SHARD if name not in file]
    if missing:
        yield f"it has no {', '.join(missing)}"
        return
    for name in SHARD:
        if checksum(file[name]) != file[name].attrs.get("crc32"):
            yield f"the checksum of {name} does not match"
    n = len(file["video/id"])
    for name, rows in (("frame", "frames/offset"), ("mel", "audio/logmel"), ("text", "text/token")):
        bounds, total = file[f"video/{name}"][:], len(file[rows]) - (name == "frame")
        if len(bounds) != n + 1 or bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
            yield f"video/{name} does not fit {n} videos and {total} rows of {rows}"
            return
    for name in SHARD:
        if name.startswith("video/") and len(file[name]) not in (n, n + 1):
            yield f"{name} has {len(file[name])} rows for {n} videos"
    offset = file["frames/offset"][:]
    if offset[0] != 0 or offset[-1] != len(file["frames/jpeg"]) or (np.diff(offset) < 4).any():
        yield "frames/offset does not fit frames/jpeg"
        return
    yield from _frame_problems(file, offset, full)


def _frame_problems(file: h5py.File, offset: np.ndarray, full: bool) -> Iterator[str]:
    frame = file["video/frame"][:]
    size = np.stack([file["video/width"][:], file["video/height"][:]], 1)
    ids = file["video/id"][:]
    for first in range(0, len(offset) - 1, _FRAMES):
        bounds = offset[first : first + _FRAMES + 1]
        data = file["frames/jpeg"][bounds[0] : bounds[-1]]
        start, end = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        whole = (data[start] == 0xFF) & (data[start + 1] == 0xD8) & (data[end - 2] == 0xFF) & (data[end - 1] == 0xD9)
        for k in range(len(start)):
            problem = "" if whole[k] else "does not begin and end as a JPEG does"
            video = int(np.searchsorted(frame, first + k, side="right")) - 1
            if full and not problem:
                problem = _decoding_problem(data[start[k] : end[k]], tuple(size[video]))
            if problem:
                yield f"frame {first + k - frame[video]} of {ids[video].decode()} {problem}"


def _decoding_problem(jpeg: np.ndarray, size: tuple[int, ...]) -> str:
    try:
        with Image.open(io.BytesIO(jpeg.tobytes())) as image:
            image.load()
            # baseline 4:2:0, as the schema says and decoders on the GPU are fastest with
            layers = getattr(image, "layer", None)
            if image.size != size or image.mode != "RGB" or image.info.get("progressive") or not _is_420(layers):
                return f"is {image.size[0]}x{image.size[1]} {image.mode}, or no baseline 4:2:0 JPEG"
    except (OSError, SyntaxError, ValueError) as error:
        return f"cannot be decoded ({error})"
    return ""


def _is_420(layers: object) -> bool:
    """Whether the components (id, horizontal, vertical sampling, table) halve the colour both ways."""
    return isinstance(layers, list) and [tuple(layer[1:3]) for layer in layers] == [(2, 2), (1, 1), (1, 1)]


def verify(settings: Verify) -> dict[str, list[str]]:
    """Problems of the damaged shards by name. Raises UserError where there are no shards."""
    folder = settings.shard_folder
    damaged: dict[str, list[str]] = {}
    try:
        with h5py.File(folder / INDEX, "r") as file:
            names = [name.decode() for name in file["shard/name"][:]]
            expected = dict(zip(names, file["shard/bytes"][:].tolist(), strict=True))
            settings_text = file.attrs["settings"]
    except Exception as error:
        Index.open(folder)  # says which command makes it
        raise UserError(f"{folder / INDEX} is damaged ({error}); 'make preprocess' makes it again") from error
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=sum(expected.values()), unit="B", unit_scale=True, desc="verify") as bar,
    ):
        check = partial(_check, folder, settings.full, expected)
        for name, problems in cluster.unordered(client, check, names, settings.workers):
            bar.update(expected[name])
            if problems:
                damaged[name] = problems
                if settings.remove:
                    (folder / name).unlink(missing_ok=True)
    if not damaged and not _index_agrees(folder, names, settings_text):
        damaged[INDEX] = ["it is not what the shards say"]
        if settings.remove:
            (folder / INDEX).unlink()
    return damaged


def _index_agrees(folder: Path, names: list[str], settings_text: str) -> bool:
    """Whether the index, made again from the shards, is the same."""
    with tempfile.TemporaryDirectory(prefix="gdt-verify-") as scratch:
        write_index(Path(scratch), [folder / name for name in names], {"settings": settings_text})
        return filecmp.cmp(Path(scratch) / INDEX, folder / INDEX, shallow=False)


def _check(folder: Path, full: bool, expected: dict[str, int], name: str) -> tuple[str, list[str]]:
    path = folder / name
    if not path.is_file():
        return name, ["it is missing"]
    if (size := path.stat().st_size) != expected[name]:
        return name, [f"it has {size} bytes instead of {expected[name]}: it was cut or changed"]
    return name, check_shard(path, full)


def main() -> None:
    settings = tyro.cli(Verify, prog="python -m preprocess.verify")
    damaged = verify(settings)
    for name in sorted(damaged):
        problems = damaged[name]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        print(f"{settings.shard_folder / name}: {problems[0]}{more}", file=sys.stderr)
    if damaged:
        first = "they were removed" if settings.remove else "remove them with 'make verify ARGS=--remove'"
        raise UserError(
            f"{len(damaged)} shards or indexes are damaged: {first}; then 'make preprocess' makes them again"
        )
    print(f"every shard in {settings.shard_folder} is as it was written")


if __name__ == "__main__":
    exit_with_message(main)
