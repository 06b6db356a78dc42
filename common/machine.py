"""The cores of this machine, and child processes that do not outlive the process that starts them."""

import contextlib
import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")
_MEMBER = Path("/proc/self/cgroup")
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of mallopt, from malloc.h."""


def cores() -> int:
    """CPU cores that this process may use, within the quotas of its control groups."""
    here = float(len(os.sched_getaffinity(0)))
    return max(1, int(min([here, *_quotas()])))


def limit_threads() -> None:
    """Where a quota leaves fewer cores than there are, let torch and other libraries that start use no more threads.

    They would all run at once, and then wait for the rest of each period. OMP_NUM_THREADS wins.
    """
    if cores() < len(os.sched_getaffinity(0)) and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(cores())
        if "torch" in sys.modules:  # which has read that already
            sys.modules["torch"].set_num_threads(cores())


def keep_freed_memory() -> None:
    """Let this process use freed memory again, where glibc would return large blocks to the system at once.

    On a CPU, a training step would get its activations anew, zeroed page by page.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def _quotas() -> Iterator[float]:
    """Cores by the quota of each control group that this process is in, of version 2 and of version 1."""
    with contextlib.suppress(OSError):
        for line in _MEMBER.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # a container may see its own group at the root, and others by their paths
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                yield from _quota(_GROUPS / controllers / group.relative_to("/"))
    yield from _quota(_GROUPS)
    yield from _quota(_GROUPS / "cpu")


def _quota(group: Path) -> Iterator[float]:
    """Without a limit, the file of version 2 begins with max, and that of version 1 has -1."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, (group / "cpu.max").read_text().split())
        yield quota / period
    with contextlib.suppress(OSError, ValueError):
        quota = int((group / "cpu.cfs_quota_us").read_text())
        if quota > 0:
            yield quota / int((group / "cpu.cfs_period_us").read_text())


def leave_terminal() -> None:
    """Write to the null device instead of a terminal that has hung up, or a pipe to a program on it (tee).

    There, each write would fail.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        mode = os.fstat(number).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            os.dup2(null, number)
    os.close(null)


@cache
def killed_with_parent() -> tuple[str, ...]:
    """Command prefix that ends a process with its parent; empty without util-linux, or before its version 2.33."""
    prefix = ("setpriv", "--pdeathsig", "KILL")
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else ()
    except OSError:
        return ()
