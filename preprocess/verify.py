"""Whether every shard is still what was written: gdt verify.

Checksums of everything, offsets that fit, the markers at both ends of every JPEG; with `--full` every frame is decoded
too. A damaged shard is named with what is wrong; `--remove` removes it, and preprocessing then makes it again. Damaged
is only what was read and is not what was written: what could not be read is named, and never removed.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
import tyro
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from gdt.common.errors import UserError, first_line
from gdt.common.files import kind
from gdt.common.lock import is_locked, locked
from gdt.common.variables import Variables, options_of
from gdt.pipeline.shards.index import Index, contents, gather, is_annotation, with_annotations
from gdt.pipeline.shards.layout import INDEX, LABELS, ROWS, SHARD, WORDS, remove_command, shard_folder, words_checksum
from gdt.pipeline.shards.seal import Damaged, OtherSchema, open_sealed, read_seal
from gdt.preprocess import cluster

_FRAMES = 1 << 12
"""Frames looked at together."""
_PIECES = 1 << 10
"""Pieces of sound looked at together."""

State = Literal["whole", "damaged", "missing", "stray", "foreign", "no file", "unchecked"]


class Finding(NamedTuple):
    """What is wrong with a shard or the index; of all states, only what is damaged may be removed."""

    state: State
    problems: list[str]


_WHOLE = Finding("whole", [])


@dataclass(frozen=True)
class Verify(cluster.Workers):
    """Check every shard of a data set; the exit status is 2 where one is damaged or cannot be checked."""

    dataset: str = "folder"
    """The data set, as given to preprocessing."""
    shards: Path | None = None
    """Folder of the shards; default data/shards/<dataset>."""
    full: bool = False
    """Decode every frame, which takes longer."""
    remove: bool = False
    """Remove the damaged shards; preprocessing makes them again."""

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.shards).absolute()


def check_shard(path: Path, full: bool) -> list[str]:
    """What in a shard is not what was written, in the order in which it was found; empty where nothing is.

    Raises whatever keeps it from being read.
    """
    try:
        with open_sealed(path) as file:
            return list(_problems(file, full))
    except Damaged as damage:
        return [str(damage)]


def _problems(file: h5py.File, full: bool) -> Iterator[str]:
    if misfit := next(_misfits(file), ""):
        yield misfit
        return
    yield from _frame_problems(file, full)
    yield from _sound_problems(file)
    yield from _word_problems(file)


def _misfits(file: h5py.File) -> Iterator[str]:
    """What in the tables of a shard does not fit; after the first, the others may not be read."""
    if missing := [name for name in SHARD if name not in file]:
        yield f"it has no {', '.join(missing)}"
    size = Path(file.filename).stat().st_size
    for name in SHARD:
        if file[name].chunks is not None or file[name].nbytes > size:
            yield f"{name} is not stored in one piece, or longer than the file"
    n = len(file["video/id"])
    for name, rows in (("frame", "frames/crc32"), ("mel", "audio/logmel"), ("text", "text/token")):
        total = len(file[rows])
        if not _cover(file[f"video/{name}"][:], n, total):
            yield f"video/{name} does not fit {n} videos and {total} rows of {rows}"
    for name in SHARD:
        if name.startswith("video/") and len(file[name]) not in (n, n + 1):
            yield f"{name} has {len(file[name])} rows for {n} videos"
    if not _cover(file["frames/offset"][:], len(file["frames/crc32"]), len(file["frames/jpeg"]), least=4):
        yield "frames/offset does not fit frames/jpeg"
    if len(file["audio/crc32"]) != -(-len(file["audio/logmel"]) // ROWS):
        yield "audio/crc32 does not fit audio/logmel"
    if len(file["text/crc32"]) != n or len({len(file[f"text/{name}"]) for name in WORDS}) > 1:
        yield "the tables of words do not fit each other"


def _cover(bounds: np.ndarray, parts: int, total: int, least: int = 0) -> bool:
    """Whether so many parts, from one bound to the next, cover rows 0 to `total`, each at least `least`."""
    return len(bounds) == parts + 1 and bounds[0] == 0 and bounds[-1] == total and not (np.diff(bounds) < least).any()


def _frame_problems(file: h5py.File, full: bool) -> Iterator[str]:
    offset, frame = file["frames/offset"][:], file["video/frame"][:]
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
    except UnidentifiedImageError:  # whose message is of an object in memory
        return "cannot be decoded (it is no image)"
    except (OSError, SyntaxError, ValueError) as error:
        if getattr(error, "errno", None) is not None or "out of memory" in str(error):
            raise  # of this machine, not of the frame
        return f"cannot be decoded ({error})"
    return ""


def _is_420(layers: object) -> bool:
    """Whether the components (id, horizontal, vertical sampling, table) halve the colour both ways."""
    return isinstance(layers, list) and [tuple(layer[1:3]) for layer in layers] == [(2, 2), (1, 1), (1, 1)]


def verify(settings: Verify) -> dict[str, Finding]:
    """What is wrong, by name. Raises UserError where there are no shards, or a worker does not see them.

    Where a run is still at work, or was stopped, the shards that it has finished are checked; none can start while
    what is damaged is to be removed.
    """
    folder = settings.shard_folder
    with contextlib.ExitStack() as stack:
        if settings.remove and folder.is_dir():
            stack.enter_context(locked(folder, "leave out --remove"))
        running = not settings.remove and is_locked(folder)
        index, seals = _look_at_index(folder)
        found = {path.name: path.lstat().st_size for path in sorted(folder.glob("shard-*.h5"))}
        if index.state == "foreign" or not (found or seals):
            Index.open(folder)  # says what to do
        findings = {INDEX: index}
        if index.state == "missing":
            findings = {} if running else {INDEX: Finding("missing", [_NO_INDEX])}
        hosts = _check_all(settings, seals, found, findings)
        if seals and all(finding.state == "whole" for finding in findings.values()):
            findings[INDEX] = _compare(folder, seals)
        if settings.remove:
            _remove(settings, seals, findings, hosts)
    if running:
        print(f"a run is writing to {folder}: {len(found)} finished shards were checked")
    return {name: finding for name, finding in findings.items() if finding.state != "whole"}


def _check_all(
    settings: Verify, seals: dict[str, int], found: dict[str, int], findings: dict[str, Finding]
) -> dict[str, str]:
    """Add what the shards are like to `findings`; returns who found it, by name."""
    folder, hosts = settings.shard_folder, {}
    sizes = dict.fromkeys(seals, 0) | found
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="verify") as bar,
    ):
        check = partial(_check, folder, settings.full, seals)
        for name, host, state, problems in cluster.unordered(client, check, sorted(sizes), settings.workers):
            bar.update(sizes[name])
            if state in ("missing", "no file") and name in found and not kind(folder / name):
                raise UserError(cluster.unseen(folder / name, host, f"the disk of {folder}"))
            findings[name], hosts[name] = Finding(state, problems), host
    return hosts


def _remove(settings: Verify, seals: dict[str, int], findings: dict[str, Finding], hosts: dict[str, str]) -> None:
    """Remove what is damaged, where this machine finds so too just before."""
    folder = settings.shard_folder
    for name in [name for name, finding in findings.items() if finding.state == "damaged"]:
        if name != INDEX:
            again = _look_at_shard(folder / name, settings.full, seals.get(name))
        elif (again := _look_at_index(folder)[0]).state == "whole":
            again = _compare(folder, seals)
        if again.state == "damaged":
            (folder / name).unlink()
        else:
            told = "nothing" if again.state == "whole" else again.problems[0]
            found = f"{hosts.get(name, 'a first look')} found that {findings[name].problems[0]}"
            findings[name] = Finding("unchecked", [f"{found}, and a second look on this machine found {told}"])


_NO_INDEX = "it is missing: preprocessing has not come to its end"


def _look_at_index(folder: Path) -> tuple[Finding, dict[str, int]]:
    """What the index is like by itself, and what it says: shard -> checksum of its seal."""
    seals: dict[str, int] = {}

    def problems() -> list[str]:
        with open_sealed(folder / INDEX) as file:
            names = file["shard/name"].asstr()[:].tolist()
            seals.update(zip(names, file["shard/seal"][:].tolist(), strict=True))
        return []

    return _look(folder / INDEX, problems), seals


def _compare(folder: Path, seals: dict[str, int]) -> Finding:
    """Whether the index is what the shards give; nothing is written, as a disk may be full."""
    try:
        found, attributes = contents(folder)
        datasets, expected = gather([folder / name for name in seals], {"settings": attributes["settings"]})
        if "said" in attributes:  # labels are the last run's to say, of which nothing but its hash is left
            datasets, expected = _as_said(datasets, expected, found)
        same = found.keys() == datasets.keys() and attributes == expected
        same = same and all(_equal(found[name], values) for name, values in datasets.items())
    except Exception as error:
        return Finding("unchecked", [f"it cannot be compared with the shards ({_told(error)})"])
    return _WHOLE if same else Finding("damaged", ["it is not what the shards say"])


def _as_said(
    datasets: dict[str, np.ndarray], attributes: dict[str, Any], found: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What the shards give, with what the index says of their videos, as far as that has the shape of it."""
    shape = datasets["video/id"].shape
    said = {
        name: values
        for name, values in found.items()
        if is_annotation(name) and values.dtype == object and values.shape == shape
    }
    return with_annotations(datasets, attributes, {name: datasets[name] for name in LABELS} | said)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


def _check(folder: Path, full: bool, seals: dict[str, int], name: str) -> tuple[str, str, State, list[str]]:
    """Name, this machine, and what there is to say: no class of this file, which workers do not know as `__main__`."""
    finding = _look_at_shard(folder / name, full, seals.get(name))
    return name, socket.gethostname(), finding.state, finding.problems


def _look_at_shard(path: Path, full: bool, expected: int | None) -> Finding:
    """What a shard is like; `expected` is the checksum of its seal in the index."""
    own = []

    def problems() -> list[str]:
        own.append(read_seal(path).own)
        return check_shard(path, full)

    finding = _look(path, problems)
    if finding.state == "whole" and expected not in (None, *own):
        return Finding("stray", ["it is not the one that the index was made of"])
    return finding


def _look(path: Path, problems: Callable[[], list[str]]) -> Finding:
    """What a file is like in which there are these problems."""
    try:
        if (what := kind(path)) == "missing":
            return Finding("missing", ["it is missing"])
        if what:
            return Finding("no file", [f"it is {what}, not a file"])
        found = problems()
    except OtherSchema as error:
        return Finding("foreign", [f"it was made by another version: {error}"])
    except Damaged as damage:
        return Finding("damaged", [str(damage)])
    except Exception as error:  # of the disk, of this machine or of this program: nothing is known of the file
        return Finding("unchecked", [f"it cannot be read ({_told(error)})"])
    return Finding("damaged", found) if found else _WHOLE


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def _advice(settings: Verify, state: State) -> str:
    """What is so of some shards, and what to do about it."""
    remake = "the same 'make preprocess' command as before makes them"
    first = (
        "they were removed"
        if settings.remove
        else f"remove them with {remove_command(settings.shard_folder, settings.full)}"
    )
    return {
        "damaged": f"are damaged: {first}; then {remake} again",
        "missing": f"are missing: {remake}",
        "stray": "do not belong to the index: the same 'make preprocess' command as before makes the index anew",
        "foreign": "were made by another version: make them anew into another folder, or delete them",
        "no file": "are no files: take them away, or mend the links",
        "unchecked": "could not be checked, and were kept: look at the disk, its room and the permissions, then run "
        "the same command again",
    }[state]


def options(_: Sequence[str]) -> Variables:
    return options_of(Verify)


def main(arguments: Sequence[str]) -> None:
    settings = tyro.cli(Verify, prog="gdt verify", args=arguments)
    findings = verify(settings)
    for name, (_, problems) in sorted(findings.items()):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        print(f"{settings.shard_folder / name}: {problems[0]}{more}", file=sys.stderr)
    if findings:
        counts = Counter(state for state, _ in findings.values())
        raise UserError(". ".join(f"{n} shards or indexes {_advice(settings, state)}" for state, n in counts.items()))
    print(f"every shard in {settings.shard_folder} is as it was written")
