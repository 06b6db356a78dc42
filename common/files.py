"""Atomic writes, and safe opening of files: only regular files are opened, since opening a FIFO blocks."""

from __future__ import annotations

import errno
import glob
import json
import os
import stat
import struct
import zipfile
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
DAMAGE = (
    ValueError, TypeError, LookupError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error,
    struct.error,
)  # fmt: skip
"""What h5py, zipfile and numpy raise for damaged files, besides OSError."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_disk_full(error: Exception) -> bool:
    """Whether an error means a full disk or an exceeded quota; HDF5 raises a RuntimeError for these."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(f"errno = {number}," in str(error) for number in full)


def require_readable(what: object, error: OSError) -> None:
    """Raise UserError if `error` comes from the disk or permissions, not from the content of `what`."""
    if error.errno in _UNREADABLE:
        message = f"cannot read {what} ({error.strerror}); check its disk and permissions, then run the command again"
        raise UserError(message) from error


@contextmanager
def writing(path: Path, scratch: Path | None = None) -> Iterator[BinaryIO]:
    """Write a binary file atomically: it appears complete or not at all.

    Yields `<name>.<process>.partial` next to `path`, or `<name>` in `scratch`, a folder of the same file system. It is
    synced to disk and renamed at the end, and removed after an error. Removes what killed writers left; of two writers
    at once, the first fails. For example:

        with writing(out / "features.npz") as file:
            np.savez(file, features=features)
        with writing(out / "rows.h5") as file, h5py.File(file.name, "w") as rows:
            rows["id"] = ids
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.[0-9]*.partial"):
        left.unlink()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial") if scratch is None else scratch / path.name
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            error = error.__context__  # torch.save hides why a file cannot be written
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            error.filename = str(path)  # for the message
        raise error


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    write_lines(path, [text])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, which include their line breaks, atomically; bytes of names that are not UTF-8 are escaped."""
    with writing(path) as file:
        file.writelines(line.encode(errors="backslashreplace") for line in lines)


def dump_row(row: Mapping[str, Any]) -> str:
    """A row as a line of JSON."""
    return json.dumps(dict(row), ensure_ascii=False) + "\n"


def kind(path: Path) -> str:
    """Kind of file at a path, following links: "" for a regular file.

    Else "a folder", "a FIFO", "a socket", "a device", "a virtual file", "a broken link" or "missing" (also for a name
    that no file can have). Raises UserError if the path cannot be accessed.
    """
    try:
        return _kind(path.stat())
    except ValueError:  # NUL or a lone surrogate in the name
        return "missing"
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise UserError(f"cannot access {path}: {error.strerror}; check its disk and permissions") from error
        return "a broken link" if os.path.islink(path) else "missing"  # noqa: PTH114 - pathlib raises for long names


def is_regular(status: os.stat_result) -> bool:
    """Whether this is a regular file on a disk, not a virtual file of the kernel, which may be endless."""
    return stat.S_ISREG(status.st_mode) and status.st_dev not in _virtual_devices()


@lru_cache(maxsize=1)
def _virtual_devices() -> frozenset[int]:
    """Device numbers of the kernel's file systems, whose files look regular."""
    roots = (Path(name) for name in ("/proc", "/sys", "/sys/kernel/debug"))
    return frozenset(root.stat().st_dev for root in roots if root.is_dir())


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "" if is_regular(status) else "a virtual file"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises UserError for anything else."""
    if (what := kind(path)) not in ("", "missing"):  # checked before opening: opening has effects on some devices
        raise _not_a_file(path, what)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise UserError(f"cannot read {path}: {reason}; check the path and its permissions") from error
    if what := _kind(os.fstat(descriptor)):  # changed since the first check
        os.close(descriptor)
        raise _not_a_file(path, what)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _not_a_file(path: Path, what: str) -> UserError:
    return UserError(f"{path} is {what}, not a file; replace it with a regular file, or remove it")


def require_new_file(out: Path, overwrite: bool) -> None:
    """Raise UserError unless `out` can be written; replacing an existing file needs `overwrite`."""
    if (what := kind(out)) not in ("", "missing"):
        raise UserError(f"{out} is {what}, not a file; set --out to a file")
    if out.exists() and not overwrite:
        raise UserError(f"{out} already exists; set --out to another file, or pass --overwrite to replace it")
    if not out.absolute().parent.is_dir():
        raise UserError(f"the folder {out.parent} does not exist; create it, or set --out to a file in another")
