"""The folder of the cache of shards, which all processes of a machine share; its files are all of its state."""

import fcntl
import os
import re
import shutil
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from gdt.common.files import lock, locked

_SILENT = 120.0
"""Seconds without a byte after which, on a disk without locks, whoever fetches a file counts as dead."""
_OURS = re.compile(r"[0-9a-f]{12}-.+-[0-9a-f]{8}\.h5(?:\.\d+\.partial)?")
"""Names of shards: digest of their folder, name and checksum; of one that is being fetched, also its size."""


class CacheFolder:
    def __init__(self) -> None:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdt"
        self.path = Path(os.environ.get("GDT_CACHE") or usual)

    def __str__(self) -> str:
        return str(self.path)

    def bound(self, asked: int) -> int:
        """Bytes that it may hold: as asked or, for 0, four fifths of what is free on its disk and in it."""
        with self.locked():
            kept = sum(self.files().values())
        return asked or (shutil.disk_usage(self.path).free + kept) * 4 // 5

    def locked(self) -> AbstractContextManager[None]:
        return locked(self.path, "set GDT_CACHE to another folder", wait=True)

    def files(self) -> dict[Path, int]:
        """The shards of all data sets, the oldest first, and their sizes; a partial one counts as whole.

        Those of processes that are gone are removed; files of other programs stay. The folder must be locked, as a
        partial file appears unlocked.
        """
        ours = [path for path in self.path.glob("*.h5*") if _OURS.fullmatch(path.name)]
        for path in ours:
            if path.suffix == ".partial" and not is_coming(path):
                path.unlink(missing_ok=True)
        sizes = []
        for path in ours:
            with suppress(FileNotFoundError):
                status = path.stat()
                size = int(path.name.split(".")[-2]) if path.suffix == ".partial" else status.st_size
                sizes.append((status.st_mtime, path, size))
        return {path: size for _, path, size in sorted(sizes)}


def is_coming(partial: Path) -> bool:
    """Whether a process fetches into a file."""
    with suppress(FileNotFoundError), partial.open("rb") as file:
        free = lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if free is None:  # no locks on this disk
            return time.time() - os.fstat(file.fileno()).st_mtime < _SILENT
        return not free
    return False
