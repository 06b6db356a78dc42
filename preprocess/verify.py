"""gdt verify: check that every shard is unchanged since it was written.

Checks all checksums and offsets, and the markers at both ends of every JPEG; `--full` also decodes every frame. Damaged
shards are reported; `--remove` removes them, and preprocessing rebuilds them. Files that cannot be read do not count as
damaged: they are reported but never removed.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import h5py
import numpy as np
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from gdt.common.errors import UserError, first_line, plural
from gdt.common.files import kind
from gdt.common.lock import is_locked, locked
from gdt.pipeline.shards.index import DIGEST, Index, contents, gather, is_annotation, with_annotations
from gdt.pipeline.shards.layout import INDEX, LABELS, ROWS, SHARD, WORDS, remove_command, shard_folder, words_checksum
from gdt.pipeline.shards.seal import Damaged, OtherSchema, open_sealed, read_seal
from gdt.preprocess import cluster

_FRAMES = 1 << 12
"""Frames per read."""
_BLOCKS = 1 << 10
"""Checksummed blocks of sound per read."""

State = Literal["intact", "damaged", "missing", "stray", "foreign", "not a file", "unchecked"]


class Finding(NamedTuple):
    """State of a shard or of the index, and its problems; only `damaged` ones may be removed."""

    state: State
    problems: list[str]


_INTACT = Finding("intact", [])


@dataclass(frozen=True)
class Verify(cluster.Workers):
    """Check every shard of a data set; the exit status is 2 if one is damaged or cannot be checked."""

    dataset: str = "kinetics"
    """Name of the preprocessed data set."""
    shards: Path | None = None
    """Folder of the shards; default: data/shards/<dataset>."""
    full: bool = False
    """Also decode every frame, which takes longer."""
    remove: bool = False
    """Remove damaged shards; preprocessing rebuilds them."""

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.shards).absolute()


def check_shard(path: Path, full: bool) -> list[str]:
    """The problems of a shard; empty if it is intact. Raises OSError or `DAMAGE` if it cannot be read."""
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
    """Yield inconsistencies of the tables; after the first, other tables may be unreadable."""
    if missing := [name for name in SHARD if name not in file]:
        yield f"it has no {', '.join(missing)}"
    size = Path(file.filename).stat().st_size
    for name in SHARD:
        if file[name].chunks is not None or file[name].nbytes > size:
            yield f"{name} is not contiguous, or longer than the file"
    n = len(file["video/id"])
    for name, rows in (("frame", "frames/crc32"), ("mel", "audio/logmel"), ("text", "text/token")):
        total = len(file[rows])
        if not _cover(file[f"video/{name}"][:], n, total):
            yield f"video/{name} does not fit {n} videos and {total} rows of {rows}"
    for name in SHARD:
        if name.startswith("video/") and len(file[name]) not in (n, n + 1):
            yield f"{name} has {len(file[name])} rows for {n} videos"
    if not _cover(file["frames/offset"][:], len(file["frames/crc32"]), len(file["frames/jpeg"]), minimum=4):
        yield "frames/offset does not fit frames/jpeg"
    if len(file["audio/crc32"]) != -(-len(file["audio/logmel"]) // ROWS):
        yield "audio/crc32 does not fit audio/logmel"
    if len(file["text/crc32"]) != n or len({len(file[f"text/{name}"]) for name in WORDS}) > 1:
        yield "the tables of words do not fit each other"


def _cover(bounds: np.ndarray, parts: int, total: int, minimum: int = 0) -> bool:
    """Whether `parts` consecutive ranges cover rows 0 to `total`, each with at least `minimum` rows."""
    return len(bounds) == parts + 1 and bounds[0] == 0 and bounds[-1] == total and not (np.diff(bounds) < minimum).any()


def _frame_problems(file: h5py.File, full: bool) -> Iterator[str]:
    offset, frame = file["frames/offset"][:], file["video/frame"][:]
    size = np.stack([file["video/width"][:], file["video/height"][:]], 1)
    ids = file["video/id"][:]
    expected = file["frames/crc32"][:]
    for first in range(0, len(offset) - 1, _FRAMES):
        bounds = offset[first : first + _FRAMES + 1]
        data = file["frames/jpeg"][bounds[0] : bounds[-1]]
        start, end = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        marked = (data[start] == 0xFF) & (data[start + 1] == 0xD8) & (data[end - 2] == 0xFF) & (data[end - 1] == 0xD9)
        for k in range(len(start)):
            jpeg = data[start[k] : end[k]]
            problem = "" if zlib.crc32(jpeg) == expected[first + k] else "has a checksum mismatch"
            if not problem and not marked[k]:
                problem = "lacks the markers of a JPEG"
            video = int(np.searchsorted(frame, first + k, side="right")) - 1
            if full and not problem:
                problem = _decoding_problem(jpeg, tuple(size[video]))
            if problem:
                yield f"frame {first + k - frame[video]} of {ids[video].decode()} {problem}"


def _sound_problems(file: h5py.File) -> Iterator[str]:
    logmel, expected = file["audio/logmel"], file["audio/crc32"][:]
    bounds, ids = file["video/mel"][:], file["video/id"][:]
    for first in range(0, len(logmel), _BLOCKS * ROWS):
        data = logmel[first : first + _BLOCKS * ROWS]
        for k in range(0, len(data), ROWS):
            if zlib.crc32(data[k : k + ROWS]) != expected[(first + k) // ROWS]:
                video = int(np.searchsorted(bounds, first + k, side="right")) - 1
                yield f"the sound of {ids[video].decode()}, or of the next video, has a checksum mismatch"


def _word_problems(file: h5py.File) -> Iterator[str]:
    bounds, expected = file["video/text"][:], file["text/crc32"][:]
    columns = [file[f"text/{name}"] for name in WORDS]
    for video, name in enumerate(file["video/id"][:]):
        words = slice(bounds[video], bounds[video + 1])
        if words_checksum(*(column[words] for column in columns)) != expected[video]:
            yield f"the text of {name.decode()} has a checksum mismatch"


def _decoding_problem(jpeg: np.ndarray, size: tuple[int, ...]) -> str:
    try:
        with Image.open(io.BytesIO(jpeg.tobytes())) as image:
            image.load()
            # baseline 4:2:0, as in the schema: the fastest to decode on a GPU
            layers = getattr(image, "layer", None)
            if image.size != size or image.mode != "RGB" or image.info.get("progressive") or not _is_420(layers):
                return f"is {image.size[0]}x{image.size[1]} {image.mode}, or not a baseline 4:2:0 JPEG"
    except UnidentifiedImageError:  # its message names an object in memory
        return "cannot be decoded (not an image)"
    except (OSError, SyntaxError, ValueError) as error:
        if getattr(error, "errno", None) is not None or "out of memory" in str(error):
            raise  # an error of this machine, not of the frame
        return f"cannot be decoded ({error})"
    return ""


def _is_420(layers: object) -> bool:
    """Whether the components (id, horizontal, vertical sampling, table) halve the chroma in both directions."""
    return isinstance(layers, list) and [tuple(layer[1:3]) for layer in layers] == [(2, 2), (1, 1), (1, 1)]


def verify(settings: Verify) -> dict[str, Finding]:
    """Check the shards, also those of an unfinished run, and the index; returns what is not intact, by name.

    With --remove, no run can start during the check. Raises UserError if there are no shards, or if a worker does not
    see them.
    """
    folder = settings.shard_folder
    with contextlib.ExitStack() as stack:
        if settings.remove and folder.is_dir():
            stack.enter_context(locked(folder, "leave out --remove"))
        running = not settings.remove and is_locked(folder)
        index, seals = _check_index(folder)
        sizes = {path.name: path.lstat().st_size for path in sorted(folder.glob("shard-*.h5"))}
        if index.state == "foreign" or not (sizes or seals):
            Index.open(folder)  # raises a UserError that says what to do
        findings = {INDEX: index}
        if index.state == "missing":
            findings = {} if running else {INDEX: Finding("missing", ["it is missing: preprocessing is unfinished"])}
        hosts = _check_all(settings, seals, sizes, findings)
        if seals and all(finding.state == "intact" for finding in findings.values()):
            findings[INDEX] = _compare_index(folder, seals)
        if settings.remove:
            _remove(settings, seals, findings, hosts)
    if running:
        print(f"a run is writing to {folder}: {len(sizes)} finished shards were checked")
    return {name: finding for name, finding in findings.items() if finding.state != "intact"}


def _check_all(
    settings: Verify, seals: dict[str, int], present: dict[str, int], findings: dict[str, Finding]
) -> dict[str, str]:
    """Check the shards that are listed in the index or `present` (name -> bytes), and add them to `findings`.

    Returns the host that checked each.
    """
    folder, hosts = settings.shard_folder, {}
    sizes = dict.fromkeys(seals, 0) | present
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="verify") as bar,
    ):
        check = partial(_check_on_worker, folder, settings.full, seals)
        for name, host, finding in cluster.map_unordered(client, check, sorted(sizes), settings.workers):
            bar.update(sizes[name])
            if finding.state in ("missing", "not a file") and name in present and not kind(folder / name):
                raise UserError(cluster.explain_unmounted(folder / name, host, f"the disk of {folder}"))
            findings[name], hosts[name] = finding, host
    return hosts


def _remove(settings: Verify, seals: dict[str, int], findings: dict[str, Finding], hosts: dict[str, str]) -> None:
    """Remove damaged files, after this machine has confirmed the damage."""
    folder = settings.shard_folder
    for name in [name for name, finding in findings.items() if finding.state == "damaged"]:
        if name != INDEX:
            second = _check_file(folder / name, settings.full, seals.get(name))
        elif (second := _check_index(folder)[0]).state == "intact":
            second = _compare_index(folder, seals)
        if second.state == "damaged":
            (folder / name).unlink()
        else:
            result = "no problem" if second.state == "intact" else second.problems[0]
            first = f"{hosts.get(name, 'a first check')} reported: {findings[name].problems[0]}"
            findings[name] = Finding("unchecked", [f"{first}; a second check on this machine found {result}"])


def _check_index(folder: Path) -> tuple[Finding, dict[str, int]]:
    """The state of the index by itself, and the checksums of the seals that it lists, by shard."""
    seals: dict[str, int] = {}

    def problems() -> list[str]:
        with open_sealed(folder / INDEX) as file:
            names = file["shard/name"].asstr()[:].tolist()
            seals.update(zip(names, file["shard/seal"][:].tolist(), strict=True))
        return []

    return _check(folder / INDEX, problems), seals


def _compare_index(folder: Path, seals: dict[str, int]) -> Finding:
    """Check that the index matches the shards. Writes nothing, since the disk may be full."""
    try:
        datasets, attributes = contents(folder)
        expected, expected_attributes = gather([folder / name for name in seals], {"settings": attributes["settings"]})
        if DIGEST in attributes:  # the labels of the last run: only their hash is recorded
            shape = expected["video/id"].shape
            labels = {
                name: values
                for name, values in datasets.items()
                if is_annotation(name) and values.dtype == object and values.shape == shape
            }
            labels = {name: expected[name] for name in LABELS} | labels
            expected, expected_attributes = with_annotations(expected, expected_attributes, labels)
        same = datasets.keys() == expected.keys() and attributes == expected_attributes
        same = same and all(_equal(datasets[name], values) for name, values in expected.items())
    except Exception as error:
        return Finding("unchecked", [f"it cannot be compared with the shards ({_reason(error)})"])
    return _INTACT if same else Finding("damaged", ["it does not match the shards"])


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


def _check_on_worker(folder: Path, full: bool, seals: dict[str, int], name: str) -> tuple[str, str, Finding]:
    """Name, host and state."""
    return name, socket.gethostname(), _check_file(folder / name, full, seals.get(name))


def _check_file(path: Path, full: bool, expected: int | None) -> Finding:
    """The state of a shard; `expected` is the checksum of its seal in the index."""
    own = []

    def problems() -> list[str]:
        own.append(read_seal(path).own)
        return check_shard(path, full)

    finding = _check(path, problems)
    if finding.state == "intact" and expected not in (None, *own):
        return Finding("stray", ["it is not the shard that the index was made from"])
    return finding


def _check(path: Path, problems: Callable[[], list[str]]) -> Finding:
    """The state of a file, given a function that lists its problems."""
    try:
        if (what := kind(path)) == "missing":
            return Finding("missing", ["it is missing"])
        if what:
            return Finding("not a file", [f"it is {what}, not a file"])
        found = problems()
    except OtherSchema as error:
        return Finding("foreign", [f"it was made by another version: {error}"])
    except Damaged as damage:
        return Finding("damaged", [str(damage)])
    except Exception as error:  # from the disk, the machine or this program: the file may be intact
        return Finding("unchecked", [f"it cannot be read ({_reason(error)})"])
    return Finding("damaged", found) if found else _INTACT


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def _advice(settings: Verify, state: State) -> str:
    """What to do about files in this state."""
    rebuild = "the same preprocessing command as before rebuilds"
    remove = f"remove damaged files with {remove_command(settings.shard_folder, settings.full)}; then {rebuild} them"
    return {
        "damaged": f"damaged and removed: {rebuild} what was removed" if settings.remove else f"damaged: {remove}",
        "missing": f"missing: {rebuild} what is missing",
        "stray": f"that do not match the index: {rebuild} the index",
        "foreign": "made by another version: rebuild the shards in another folder, or delete files of that version",
        "not a file": "not regular: move them to another folder, or fix the links",
        "unchecked": "not checked, and kept: check the disk, its free space and the permissions, then run the same "
        "command again",
    }[state]


def command(settings: Verify) -> str:
    """Verify, and print what is wrong. Raises UserError, with what to do, if anything is."""
    findings = verify(settings)
    for name, (_, problems) in sorted(findings.items()):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        print(f"{settings.shard_folder / name}: {problems[0]}{more}", file=sys.stderr)
    if findings:
        counts = Counter(state for state, _ in findings.values())
        raise UserError(". ".join(f"{plural(n, 'file')} {_advice(settings, state)}" for state, n in counts.items()))
    return f"every shard in {settings.shard_folder} is intact"
