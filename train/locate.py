"""Finds checkpoints, and recognises other files. Does not import torch, so that a wrong path is refused at once."""

from __future__ import annotations

import difflib
import os
import re
import zipfile
from pathlib import Path

from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.train.settings import CHECKPOINT

PREVIOUS = "checkpoint.previous.pt"
"""The previous checkpoint, in case the newest is damaged."""
_HEAD = 4096 + 8
"""Bytes to read of a file; in shards, HDF5 begins at byte 4096."""
_MAX_LISTED = 3
"""Maximum number of available checkpoints in a message."""
_HDF5 = b"\x89HDF\r\n\x1a\n"
_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Start of a file of torch before 1.6."""


def require_checkpoint(path: Path) -> Path:
    """The checkpoint at a path, which may be its folder. Raises UserError if there is none, or a file of another kind.

    Only the first bytes are read.
    """
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise UserError(_explain_missing(path))
    if kind := detect_other_kind(path):
        raise UserError(f"{path} cannot be read as a checkpoint: it is {kind}; {suggest_other(path)}")
    return path


def suggest_other(path: Path) -> str:
    """Advice on what to use in place of an unusable checkpoint."""
    previous = path.with_name(PREVIOUS)
    if path.name == CHECKPOINT and previous.is_file():
        return f"use the previous one, {previous}"
    return "use the checkpoint.pt of a run, or external weights (.pt, .pth, .safetensors)"


def detect_other_kind(path: Path) -> str:
    """Kind of a file that is not a torch or safetensors file, by its first bytes; empty if it may be one."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "an empty file"
    if _HDF5 in (head[:8], head[4096:]):
        return "an HDF5 file, such as shards or features"
    if head.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            has_weights = any(name.endswith("data.pkl") for name in archive.namelist())
        return "" if has_weights else "a zip archive without weights"
    if head[:1] == b"\x80" and head[1:2] <= b"\x05" and not head.startswith(_TORCH):
        return "a pickle that torch did not write"
    text = head.decode("utf-8", errors="ignore")  # a character may be cut at the end
    if len(text.encode()) > len(head) - 4 and all(char.isprintable() or char.isspace() for char in text):
        return "a text file"
    return ""


def _in_folder(folder: Path) -> Path:
    """Path of the checkpoint in a folder. Raises UserError if only its subfolders have one."""
    path = folder / CHECKPOINT
    if not path.is_file() and not (folder / PREVIOUS).is_file() and (runs := sorted(folder.glob(f"*/{CHECKPOINT}"))):
        raise UserError(f"the folder {folder} has no {CHECKPOINT}; did you mean {runs[0]}?")
    return path


def _explain_missing(path: Path) -> str:
    given = str(path.parent if path.name == CHECKPOINT else path)
    if len(paths := given.split()) > 1 and all(map(os.path.exists, paths)):
        return f"'{given}' are {len(paths)} checkpoints, and this command takes one"
    previous = path.with_name(PREVIOUS)
    if previous.is_file() and path.name == CHECKPOINT:
        return f"there is no checkpoint {path}; use the previous one, {previous}"
    runs = Path("runs")
    found = sorted(runs.glob(f"*/{CHECKPOINT}")) + sorted(runs.glob(f"*/*/{CHECKPOINT}"))  # studies have subfolders
    available = {str(each.parent.relative_to(runs)): each for each in found}
    run = path.parent.name if path.name == CHECKPOINT else path.stem
    if similar := difflib.get_close_matches(run, available, 1):
        return (
            f"there is no checkpoint {path}; did you mean {available[similar[0]]}? Otherwise {_suggest_command(path)}"
        )
    more = f" and {len(available) - _MAX_LISTED} more" if len(available) > _MAX_LISTED else ""
    listed = f"; available: {', '.join(map(str, list(available.values())[:_MAX_LISTED]))}{more}" if available else ""
    return f"there is no checkpoint {path}{listed}; {_suggest_command(path)}, or give the path of yours"


def _suggest_command(path: Path) -> str:
    """The command that writes this checkpoint by default."""
    run = path.parent.name if path.parent.parent == Path("runs") else ""
    run, _, seed = run.partition("-seed")
    more = f" SEED={seed}" if seed else ""
    for preset in sorted(presets.PRESETS, key=len, reverse=True):
        if dataset := re.fullmatch(f"(.+)-{preset}", run):
            more = " WORD2VEC=<file of word vectors>" * ("text" in presets.modalities(preset)) + more
            return f"make it with 'make pretrain DATASET={dataset[1]} PRESET={preset}{more}'"
    if dataset := re.fullmatch(r"(.+?)(-\w+[di]\d+x?)+(-[0-9a-f]{8})?", run):
        return f"make it with 'make pretrain DATASET={dataset[1]} FACTORS=\"<its factors>\"{more}'"
    if run:
        return "make runs/<dataset>-<preset> with 'make pretrain'"
    return "make one with 'make pretrain'"
