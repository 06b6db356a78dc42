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
import zlib
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
from pipeline.shards.layout import INDEX, ROWS, SHARD, WORDS, shard_folder, words_checksum
from pipeline.shards.seal import Damaged, OtherSchema, open_sealed, seal_of
from preprocess import cluster
from preprocess.lock import is_locked

_FRAMES = 1 << 12
"""Frames looked at together."""
_PIECES = 1 << 10
"""Pieces of sound looked at together."""


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

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers is {self.workers}; it must be 1 or more")

    @property
    def shard_folder(self) -> Path:
        return (self.shards or shard_folder(self.dataset)).absolute()


def check_shard(path: Path, full: bool) -> list[str]:
    """What is wrong with a shard, in the order in which it was found; empty where nothing is."""
    try:
        with open_sealed(path) as file:
            return list(_problems(file, full))
    except Damaged as damage:
        return [str(damage)]
    except Exception as error:  # what a sealed file holds that no writer of ours wrote
        return [f"it cannot be read ({type(error).__name__}: {error})"]


def _problems(file: h5py.File, full: bool) -> Iterator[str]:
    missing = [name for name in SHARD if name not in file]
    if missing:
        yield f"it has no {', '.join(missing)}"
        return
    size = Path(file.filename).stat().st_size
    for name in SHARD:
        if file[name].chunks is not None or file[name].nbytes > size:
            yield f"{name} is not stored in one piece, or longer than the file"
            return
    n = len(file["video/id"])
    for name, rows in (("frame", "frames/crc32"), ("mel", "audio/logmel"), ("text", "text/token")):
        bounds, total = file[f"video/{name}"][:], len(file[rows])
        if len(bounds) != n + 1 or bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
            yield f"video/{name} does not fit {n} videos and {total} rows of {rows}"
            return
    for name in SHARD:
        if name.startswith("video/") and len(file[name]) not in (n, n + 1):
            yield f"{name} has {len(file[name])} rows for {n} videos"
            return
    offset = file["frames/offset"][:]
    if len(offset) != len(file["frames/crc32"]) + 1 or offset[0] != 0 or offset[-1] != len(file["frames/jpeg"]):
        yield "frames/offset does not fit frames/jpeg"
        return
    if (np.diff(offset) < 4).any():
        yield "frames/offset does not fit frames/jpeg"
        return
    yield from _frame_problems(file, offset, full)
    yield from _sound_problems(file)
    yield from _word_problems(file)


def _frame_problems(file: h5py.File, offset: np.ndarray, full: bool) -> Iterator[str]:
    frame = file["video/frame"][:]
    size = np.stack([file["video/width"][:], file["video/height"][:]], 1)
    ids = file["video/id"][:]
    expected = file["frames/crc32"][:]
    for first in range(0, len(offset) - 1, _FRAMES):
        bounds = offset[first : first + _FRAMES + 1]
        data = file["frames/jpeg"][bounds[0] : bounds[-1]]
        start, end = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        whole = (data[start] == 0xFF) & (data[start + 1] == 0xD8) & (data[end - 2] == 0xFF) & (data[end - 1] == 0xD9)
        for k in range(len(start)):
            jpeg = data[start[k] : end[k]]
            problem = "" if zlib.crc32(jpeg) == expected[first + k] else "is not what was written"
            if not problem and not whole[k]:
                problem = "does not begin and end as a JPEG does"
            video = int(np.searchsorted(frame, first + k, side="right")) - 1
            if full and not problem:
                problem = _decoding_problem(jpeg, tuple(size[video]))
            if problem:
                yield f"frame {first + k - frame[video]} of {ids[video].decode()} {problem}"


def _sound_problems(file: h5py.File) -> Iterator[str]:
    logmel, expected = file["audio/logmel"], file["audio/crc32"][:]
    if len(expected) != -(-len(logmel) // ROWS):
        yield "audio/crc32 does not fit audio/logmel"
        return
    bounds, ids = file["video/mel"][:], file["video/id"][:]
    for first in range(0, len(logmel), _PIECES * ROWS):
        data = logmel[first : first + _PIECES * ROWS]
        for k in range(0, len(data), ROWS):
            if zlib.crc32(data[k : k + ROWS]) != expected[(first + k) // ROWS]:
                video = int(np.searchsorted(bounds, first + k, side="right")) - 1
                yield f"the sound of {ids[video].decode()}, or of the next, is not what was written"


def _word_problems(file: h5py.File) -> Iterator[str]:
    bounds, expected = file["video/text"][:], file["text/crc32"][:]
    columns = [file[f"text/{name}"] for name in WORDS]
    if len(expected) != len(bounds) - 1 or len({len(column) for column in columns}) > 1:
        yield "the tables of words do not fit each other"
        return
    for video, name in enumerate(file["video/id"][:]):
        words = slice(bounds[video], bounds[video + 1])
        if words_checksum(*(column[words] for column in columns)) != expected[video]:
            yield f"the words of {name.decode()} are not what was written"


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
    """Problems of what is damaged, by name. Raises UserError where there are no shards.

    Where a run is still at work, or was stopped, the shards that it has finished are checked.
    """
    folder = settings.shard_folder
    running = is_locked(folder)
    if running and settings.remove:
        raise UserError(f"a run is writing to {folder}; wait for it before you set --remove")
    table, damaged = _read_table(folder, running)
    found = {path.name: path.stat().st_size for path in sorted(folder.glob("shard-*.h5"))}
    if not found and not table.seals:
        Index.open(folder)  # says which command makes them
    sizes = dict.fromkeys(table.seals, 0) | found
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="verify") as bar,
    ):
        check = partial(_check, folder, settings.full, table.seals)
        for name, problems in cluster.unordered(client, check, sorted(sizes), settings.workers):
            bar.update(sizes[name])
            if problems:
                damaged[name] = problems
    if not damaged and table.seals and not _index_agrees(folder, table):
        damaged[INDEX] = ["it is not what the shards say"]
    if settings.remove:
        for name in damaged:
            (folder / name).unlink(missing_ok=True)
    if running:
        print(f"a run is writing to {folder}: {len(found)} finished shards were checked")
    return damaged


@dataclass(frozen=True)
class _Table:
    """What the index says of the shards."""

    seals: dict[str, int] = field(default_factory=dict)
    """Shard -> checksum of its seal; empty where there is no index."""
    settings: str = ""


def _read_table(folder: Path, running: bool) -> tuple[_Table, dict[str, list[str]]]:
    """The index's table of shards, and what is wrong with the index."""
    path = folder / INDEX
    if not path.is_file():
        some = next(folder.glob("shard-*.h5"), None) is not None
        problem = "it is missing: preprocessing has not come to its end; run the same 'make preprocess' command again"
        return _Table(), {INDEX: [problem]} if some and not running else {}
    try:
        with open_sealed(path) as file:
            names = file["shard/name"].asstr()[:].tolist()
            seals = dict(zip(names, file["shard/seal"][:].tolist(), strict=True))
            return _Table(seals, file.attrs["settings"]), {}
    except OtherSchema:
        Index.open(folder)  # says what to do
        raise
    except Damaged as damage:
        return _Table(), {INDEX: [str(damage)]}


def _index_agrees(folder: Path, table: _Table) -> bool:
    """Whether the index, made again from the shards, is the same."""
    with tempfile.TemporaryDirectory(prefix="gdt-verify-") as scratch:
        write_index(Path(scratch), [folder / name for name in table.seals], {"settings": table.settings})
        return filecmp.cmp(Path(scratch) / INDEX, folder / INDEX, shallow=False)


def _check(folder: Path, full: bool, seals: dict[str, int], name: str) -> tuple[str, list[str]]:
    path = folder / name
    try:
        seal = seal_of(path)
    except FileNotFoundError:
        return name, ["it is missing"]
    except Damaged as damage:
        return name, [str(damage)]
    except OSError as error:
        return name, [f"it cannot be read ({error.strerror or error})"]
    if name in seals and seal.own != seals[name]:
        return name, ["it is not the one that the index was made of"]
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
