"""The cores of this machine, and child processes that do not outlive the process that starts them."""

import contextlib
import os
import subprocess
from functools import cache
from pathlib import Path


def cores() -> int:
    """CPU cores that this process may use, within the limit of its cgroup."""
    here = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # without a limit its first word is max
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        here = min(here, quota // period)
    return max(1, here)


@cache
def killed_with_parent() -> tuple[str, ...]:
    """Command prefix that ends a process with its parent; empty without util-linux, or before its version 2.33."""
    prefix = ("setpriv", "--pdeathsig", "KILL")
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else ()
    except OSError:
        return ()
