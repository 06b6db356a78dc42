"""Stops the process (SIGSTOP) just before a file is renamed to a name for the nth time, where a test finds it."""

import os
import signal
import sys
from typing import Any

name, count = os.environ.get("GDT_PAUSE", "- 0").split()
left = int(count)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    global left
    if event == "os.rename" and os.path.basename(str(arguments[1])) == name:  # noqa: PTH119
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)


if left:
    sys.addaudithook(watch)
