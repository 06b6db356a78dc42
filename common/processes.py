"""Child processes that do not outlive the process that starts them."""

from __future__ import annotations

import subprocess
from functools import cache


@cache
def killed_with_parent() -> tuple[str, ...]:
    """Command prefix that ends a process with its parent; empty without util-linux, or before its version 2.33."""
    prefix = ("setpriv", "--pdeathsig", "KILL")
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else ()
    except OSError:
        return ()
