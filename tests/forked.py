"""gdt commands and scripts in forks of a process that has imported everything, to save seconds of imports.

This process must not start threads: it could not be forked safely.
"""

import contextlib
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdt.cli import COMMANDS, console

_HEAVY = (
    "torch", "torch._dynamo", "nvidia.dali.fn", "sklearn", "distributed", "librosa", "matplotlib.figure",
    "tyro", *(f"gdt.{one.run.partition(':')[0]}" for one in COMMANDS.values()),
)  # fmt: skip


def start(command: Sequence[str], folder: str, environment: Mapping[str, str], files: str) -> int:
    """Start `gdt command` in a folder, with its outputs in files with .said and .errors; its process ID.

    A process that waits for it writes its exit status, as in subprocess, to one with .status.
    """
    ours, theirs = os.pipe()
    if not os.fork():
        if not (pid := os.fork()):
            _child(command, folder, environment, files)
        os.write(theirs, str(pid).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        Path(f"{files}.part").write_text(str(code))
        Path(f"{files}.part").rename(f"{files}.status")
        os._exit(0)
    pid = int(os.read(ours, 20))
    os.close(ours)
    os.close(theirs)
    return pid


def _child(command: Sequence[str], folder: str, environment: Mapping[str, str], files: str) -> None:
    """Set up the process as a new one, and run the command; never returns."""
    code: Any = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None  # as TMPDIR says now
        for number, name in ((1, "said"), (2, "errors")):
            os.dup2(os.open(f"{files}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["gdt", *command]
        sys.path.insert(0, folder)
        runpy.run_path(str(Path(__file__).with_name("hooks") / "sitecustomize.py"))
        runpy.run_path(command[0], run_name="__main__") if command[0].endswith(".py") else console()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Start commands from standard input, a line of JSON each; print their process IDs."""
    for line in sys.stdin:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that waited for earlier commands
                pass
        for name in _HEAVY:
            importlib.import_module(name)
        print(start(*json.loads(line)), flush=True)


if __name__ == "__main__":
    serve()
