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


def start(
    command: Sequence[str], folder: Path, said: Path, errors: Path, environment: Mapping[str, str], status: Path
) -> int:
    """Start `gdt command` in a folder, with its outputs in two files; its process ID.

    A process that waits for it writes its exit status, as in subprocess, to a file.
    """
    ours, theirs = os.pipe()
    if not os.fork():
        if not (pid := os.fork()):
            _child(command, folder, said, errors, environment)
        os.write(theirs, str(pid).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status.with_suffix(".part").write_text(str(code))
        status.with_suffix(".part").rename(status)
        os._exit(0)
    pid = int(os.read(ours, 20))
    os.close(ours)
    os.close(theirs)
    return pid


def _child(command: Sequence[str], folder: Path, said: Path, errors: Path, environment: Mapping[str, str]) -> None:
    """Set up the process as a new one, and run the command; never returns."""
    code: Any = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None  # as TMPDIR says now
        for number, path in ((1, said), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["gdt", *command]
        sys.path.insert(0, str(folder))
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
        request = json.loads(line)
        paths = {name: Path(request.pop(name)) for name in ("folder", "said", "errors", "status")}
        for name in _HEAVY:
            importlib.import_module(name)
        print(start(**request, **paths), flush=True)


if __name__ == "__main__":
    serve()
