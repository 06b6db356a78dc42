"""The one way in which files are written, whole or not at all; and opening none that would be waited for."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from gdt.common.errors import UserError

_UNREADABLE = (
    errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT,
)  # fmt: skip
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_disk_full(error: Exception) -> bool:
    """Whether a disk, or a user's share of it, has no room left; HDF5 tells of that with a RuntimeError."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(f"errno = {number}," in str(error) for number in full)


def require_readable(what: object, error: OSError) -> None:
    """Raise UserError where an error kept `what` from being read and says nothing of what is in it."""
    if error.errno in _UNREADABLE:
        raise UserError(
            f"{what} cannot be read ({error.strerror}); see whether its disk and permissions are in order, then run "
            "the same command again"
        ) from error


@contextmanager
def writing(path: Path, scratch: Path | None = None) -> Iterator[BinaryIO]:
    """Write a file that appears whole or not at all.

    Gives a new binary file, `<name>.partial` beside `path` (or one in `scratch`, a folder of the same file system),
    which at the end is flushed to disk and renamed. A leftover of a killed writer is removed first, and after an error
    what was written so far. For example:

        with writing(out / "features.npz") as file:
            np.savez(file, features=features)
        with writing(out / "table.png") as file:
            figure.savefig(file, format="png", dpi=150)
        with writing(out / "checkpoint.pt") as file:
            torch.save(state, file)
        with writing(out / "rows.h5") as file, h5py.File(file.name, "w") as rows:
            rows["id"] = ids
        write_text(out / "table.txt", text)
        write_lines(out / "rows.jsonl", map(dump_row, rows))
    """
    partial = path.with_name(path.name + ".partial") if scratch is None else scratch / path.name
    partial.unlink(missing_ok=True)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file with `writing`."""
    write_lines(path, [text])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file with `writing`, from lines that end with their line breaks and come one at a time."""
    with writing(path) as file:
        file.writelines(line.encode() for line in lines)


def dump_row(row: Mapping[str, Any]) -> str:
    """One JSON line."""
    return json.dumps(dict(row), ensure_ascii=False) + "\n"


def with_checksum(lines: Iterable[str]) -> Iterator[str]:
    """The lines, then one with the checksum of them all."""
    value = 0
    for line in lines:
        value = zlib.crc32(line.encode(), value)
        yield line
    yield dump_row({"crc32": value})


def checked_lines(path: Path) -> Iterator[str]:
    """The lines of a file that was written `with_checksum`. Raises ValueError, before the first, where they are not."""
    value, last = 0, b""
    with path.open("rb") as file:
        for line in file:
            value, last = zlib.crc32(last, value), line
    if last != dump_row({"crc32": value}).encode():
        raise ValueError("the checksum at its end does not match")
    return _without_the_last(path)


def _without_the_last(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line, _ in itertools.pairwise(file):
            yield line


def kind(path: Path) -> str:
    """What a path leads to, links followed: "" where that is a regular file.

    Else "a folder", "a FIFO", "a socket", "a device", "made up by the system", "a broken link" or "missing", which
    is also what a name is that no file can have. Raises UserError where it cannot be looked at.
    """
    try:
        return _kind(path.stat())
    except ValueError:  # a NUL in the name, or half a character
        return "missing"
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise UserError(f"cannot look at {path}: {error.strerror}") from error
        return "a broken link" if os.path.islink(path) else "missing"  # noqa: PTH114 - raises for too long a name


def is_regular(status: os.stat_result) -> bool:
    """Whether this is a file on a disk, and not one that the system makes up, of which some never end."""
    return stat.S_ISREG(status.st_mode) and status.st_dev not in _made_up()


@lru_cache(maxsize=1)
def _made_up() -> frozenset[int]:
    """File systems without a disk, whose files look like regular ones."""
    roots = (Path(name) for name in ("/proc", "/sys", "/sys/kernel/debug"))
    return frozenset(root.stat().st_dev for root in roots if root.is_dir())


def _kind(status: os.stat_result) -> str:
    """The same of what stat gives."""
    if stat.S_ISREG(status.st_mode):
        return "" if is_regular(status) else "made up by the system"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises UserError for anything else: a FIFO would be waited for without end."""
    if (what := kind(path)) not in ("", "missing"):  # looked at first, since some devices act on being opened
        raise _no_file(path, what)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if what := _kind(os.fstat(descriptor)):  # it has changed in between
        os.close(descriptor)
        raise _no_file(path, what)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _no_file(path: Path, what: str) -> UserError:
    return UserError(f"{path} is {what}, not a file; put a regular file there, or take it away")


def require_new_file(out: Path, overwrite: bool) -> None:
    """Raise UserError, naming --out, unless a file can be written there without replacing one unasked."""
    if (what := kind(out)) not in ("", "missing"):
        raise UserError(f"{out} is {what}, not a file; set --out to a file")
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already; set --out to another file, or --overwrite to replace it")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write to; set --out to a file in one there is")
