"""Atomic writes, locks, and reasons why files cannot be read."""

import errno
import fcntl
import glob
import hashlib
import io
import json
import os
import shutil
import stat
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, cast

from gdt.common.errors import UserError

_UNREADABLE = (
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ETIMEDOUT,
)
DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What h5py, zipfile and numpy raise for damaged files, besides OSError."""
_TRIED = 1 << 30
"""Most bytes that are allocated to try whether they fit; on some disks that takes seconds."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
"""What flock fails with where the file system has no locks: Lustre without -o flock, NFS without lockd, some FUSE."""


def is_disk_full(error: Exception) -> bool:
    """Whether an error means a full disk or an exceeded quota; HDF5 raises a RuntimeError for these."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(f"errno = {number}," in str(error) for number in full)


TEMPORARY = "gdt-"
"""Begin of the names of our folders in the system's folder for temporary files; of shards, a dot and theirs."""


def no_space(folder: Path) -> str:
    """What to say of a full disk, and what to do."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # tempfile takes another folder once the disk is full
    elsewhere = ""
    if folder == temporary or (
        folder.is_relative_to(temporary) and folder.relative_to(temporary).parts[0].startswith((TEMPORARY, ".shard-"))
    ):
        elsewhere = ", or set TMPDIR to a folder on another"
    return f"no space left on the disk of {folder}; free some{elsewhere}"


def require_space(path: Path, size: int) -> None:
    """Raise UserError unless `size` bytes fit beside a file that is to be written there at the end of a long run."""
    needed = f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
    full = (
        f"no space on the disk of {path.absolute().parent} for {path.name}, which needs {needed} while it is written; "
        "free some, or set --out to another disk"
    )
    disk = shutil.disk_usage(path.absolute().parent)
    if disk.free < size and disk.total:  # some network disks report zeros
        raise UserError(full)
    with suppress(OSError), tempfile.TemporaryFile(dir=path.absolute().parent) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, min(max(size, 1), _TRIED))  # a quota may leave less
        except OSError as error:
            if is_disk_full(error):
                raise UserError(full) from error


def require_readable(what: object, error: Exception) -> None:
    """Raise UserError if `error` comes from the disk or permissions, not from the content of `what`."""
    if isinstance(error, OSError) and error.errno in _UNREADABLE:
        message = f"cannot read {what} ({error.strerror}); check its disk and permissions, then run the command again"
        raise UserError(message) from error


class _Forward(io.BufferedWriter):
    """A file that libraries write from its beginning to its end; some network disks take nothing else."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> NoReturn:
        raise io.UnsupportedOperation("seek")


@contextmanager
def writing(path: Path, scratch: Path | None = None) -> Iterator[BinaryIO]:
    """Write a binary file atomically: it appears complete or not at all.

    Yields `<name>.<process>.partial` next to `path`, or `<name>` in `scratch`, a folder of the same file system. It is
    synced to disk and renamed at the end, and removed after an error. It cannot be sought in. Removes what killed
    writers left; of two writers at once, the first fails. For example:

        with writing(out / "features.npz") as file:
            np.savez(file, features=features)
    """
    if scratch:  # nothing is left next to `path`, and a folder of shards is long to list
        partial = scratch / path.name
    else:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        for left in path.parent.glob(f"{glob.escape(path.name)}.[0-9]*.partial"):
            left.unlink()
    try:
        with _Forward(io.FileIO(str(partial), "w")) as file:
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            error = error.__context__  # torch.save hides why a file cannot be written
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
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
    return json.dumps(dict(row), ensure_ascii=False) + "\n"


def kind(path: Path) -> str:
    """What is at a path, following links: "" for a regular file, else "a folder", "a special file", "inaccessible" or
    "missing".
    """
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return "inaccessible"
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return "missing"
    if stat.S_ISREG(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "a special file"


def hash_of(path: Path) -> str:
    """BLAKE2b of a regular file, in hexadecimal; empty for anything else, and for a file that cannot be read."""
    with suppress(OSError):
        if not kind(path):
            with path.open("rb", buffering=0) as file:
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises UserError if that fails."""
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise UserError(f"cannot read {path}: {reason}; check the path and its permissions") from error


def require_new_file(out: Path, overwrite: bool) -> None:
    """Raise UserError unless `out` can be written; replacing an existing file needs `overwrite`."""
    if out.exists() and not overwrite:
        raise UserError(f"{out} already exists; name another, or pass --overwrite to replace it")
    if not out.absolute().parent.is_dir():
        raise UserError(f"the folder {out.parent} does not exist; create it, or set --out to a file in another")
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise UserError(f"{out} is a folder, or its folder is not writable; set --out to another file")


def lock(file: IO[Any], how: int = fcntl.LOCK_EX) -> bool | None:
    """Lock an open file until it is closed; False if another process has it, None on a file system without locks.

    There, one run at a time in a folder is safe, also when killed; of two, one may remove what the other is writing.
    """
    try:
        fcntl.flock(file, how)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise


LOCK = ".lock"
"""The file that `locked` makes."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in the system's folder for temporary files. Removes those that killed processes have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/{LOCK}"):
        with suppress(OSError), left.open() as file:  # another process may remove its own now
            if lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(left.parent)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY))
    taken = folder / "taken"
    with taken.open("a") as file:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken.rename(folder / LOCK)  # only now, or another process could take the folder for one that was left
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(
    destination: Path, alternative: str = "set --destination to another folder", wait: bool = False
) -> Iterator[None]:
    """Create and lock a folder that a run writes to, see `lock`.

    Raises UserError, ending in `alternative`, if the folder is not writable or another run holds the lock, unless this
    one is to `wait` for it.
    """
    try:
        destination.mkdir(parents=True, exist_ok=True)
        file = (destination / LOCK).open("a")
    except OSError as error:
        reason = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot write to {destination}: {reason}; {alternative}") from error
    with file:  # the system releases the lock when this process ends
        free = lock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if free is False:
            raise UserError(f"another run is writing to {destination}; wait for it, or {alternative}")
        if free is None and not wait:
            print(f"warning: {destination} has no file locks; let only one run at a time write there", file=sys.stderr)
        yield
