"""gdt verify: check that every shard is as it was written.

Damaged shards are reported; `--remove` removes them, and preprocessing rebuilds them. Files that cannot be read do not
count as damaged: they are reported but never removed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, plural
from gdt.common.lock import is_locked, locked
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, OtherSchema
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import INDEX, shard_folder

State = Literal["damaged", "missing", "stray", "foreign", "unchecked"]


class Finding(NamedTuple):
    """What is wrong with a file; only `damaged` ones may be removed."""

    state: State
    problem: str


@dataclass(frozen=True)
class Verify:
    """Check every shard of a data set; the exit status is 2 if one is damaged or cannot be checked."""

    dataset: str = "kinetics"
    """Name of the preprocessed data set."""
    shards: Path | None = None
    """Folder of the shards; default: data/shards/<dataset>."""
    remove: bool = False
    """Remove damaged shards; preprocessing rebuilds them."""

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.shards)


def verify(settings: Verify) -> dict[str, Finding]:
    """Check the shards, also those of an unfinished run, and the index; returns what is wrong, by name of the file.

    With --remove, no run can start during the check. Raises UserError if there are no shards.
    """
    folder = settings.shard_folder
    with contextlib.ExitStack() as stack:
        if settings.remove and folder.is_dir():
            stack.enter_context(locked(folder, "leave out --remove"))
        running = not settings.remove and is_locked(folder)
        sizes = {path.name: path.lstat().st_size for path in sorted(folder.glob("shard-*.h5"))}
        findings, lines = {}, {}
        if (folder / INDEX).is_file():
            try:
                index, _ = container.read(folder / INDEX)
                lines = dict(zip(map(bytes.decode, index["shard/name"]), index["shard/line"], strict=True))
            except (Damaged, OSError) as error:
                findings[INDEX] = _finding(error)
        elif not sizes:
            Index.open(folder)  # raises a UserError that says what to do
        elif not running:
            findings[INDEX] = Finding("missing", "it is missing: preprocessing is unfinished")
        sizes = dict.fromkeys(lines, 0) | sizes
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="verify") as bar,
        ):
            for name, finding in zip(sizes, pool.map(partial(_check, folder, lines), sizes), strict=True):
                bar.update(sizes[name])
                if finding:
                    findings[name] = finding
        if settings.remove:
            for name, finding in findings.items():
                if finding.state == "damaged":
                    (folder / name).unlink()
    if running:
        print(f"a run is writing to {folder}: {len(sizes)} finished shards were checked")
    return findings


def _check(folder: Path, lines: Mapping[str, bytes], name: str) -> Finding | None:
    """What is wrong with a shard, given the first lines of those in the index."""
    try:
        head = container.check(folder / name)
    except (Damaged, OSError) as error:
        return _finding(error)
    if name in lines and lines[name] != head.line:
        return Finding("stray", "it is not the shard that the index was made from")
    return None


def _finding(error: Damaged | OSError) -> Finding:
    if isinstance(error, OtherSchema):
        return Finding("foreign", str(error))
    if isinstance(error, FileNotFoundError):
        return Finding("missing", "it is missing")
    if isinstance(error, OSError):
        return Finding("unchecked", f"it cannot be read ({error.strerror})")
    return Finding("damaged", str(error))


def command(settings: Verify) -> str:
    """Verify, and print what is wrong. Raises UserError, with what to do, if anything is."""
    findings = verify(settings)
    for name, finding in sorted(findings.items()):
        print(f"{settings.shard_folder / name}: {finding.problem}", file=sys.stderr)
    if not findings:
        return f"every shard in {settings.shard_folder} is intact"
    remove = gdt_command("verify", "--shards", settings.shard_folder, "--remove")
    rebuild = "the same preprocessing command as before rebuilds"
    advice: dict[State, str] = {
        "damaged": f"damaged and removed: {rebuild} what was removed"
        if settings.remove
        else f"damaged: remove damaged files with `{remove}`; then {rebuild} them",
        "missing": f"missing: {rebuild} what is missing",
        "stray": f"other than in the index: {rebuild} the index",
        "foreign": "of another version: rebuild the shards in another folder",
        "unchecked": "not checked, and kept: check the disk and the permissions, then run the same command again",
    }
    states = [finding.state for finding in findings.values()]
    counts = {state: states.count(state) for state in advice if state in states}
    raise UserError(". ".join(f"{plural(n, 'file')} {advice[state]}" for state, n in counts.items()))
