"""Stops (SIGSTOP) this process, or kills all of the run, at a moment that a test chooses.

An audit hook sees every file before it is opened, renamed, linked or removed. GDT_STOP has the event, the name of the
file, which occurrence of it, seconds to wait after it, and the number of the signal.
"""

import os
import re
import signal
import sys
import threading
from typing import Any

EVENT, NAME, count, DELAY, SIGNAL = os.environ.get("GDT_STOP", "- - 0 0 0").split()
left = int(count)


def stop() -> None:
    os.kill(0 if int(SIGNAL) == signal.SIGKILL else os.getpid(), int(SIGNAL))


def named(path: object) -> str:
    return re.sub(r"[.][0-9]+[.]partial$", ".partial", os.path.basename(str(path)))  # noqa: PTH119


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    global left
    if event == EVENT and NAME in map(named, arguments[:2]):
        left -= 1
        if left == 0:
            threading.Timer(float(DELAY), stop).start() if float(DELAY) else stop()


if left:
    sys.addaudithook(watch)
