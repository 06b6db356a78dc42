"""Commands in forks of a process that has imported everything: what `gdt` does, but for its seconds of start.

This process must stay without work of its own: what uses threads cannot be forked safely.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdt.command import console
from gdt.eval.command import COMMANDS as EVAL
from gdt.studies.command import COMMANDS as STUDIES

_HEAVY = (
    "torch", "torch._dynamo", "nvidia.dali.fn", "sklearn", "distributed", "librosa", "matplotlib.figure",
    "gdt.preprocess.command", "gdt.preprocess.verify", "gdt.train.command", "gdt.train.pretrain", "gdt.eval.command",
    "gdt.studies.command",
    *(one.run.partition(":")[0] for commands in (EVAL, STUDIES) for one in commands.values()),
)  # fmt: skip


class Fork:
    """A command in a fork of this process, with the part of `subprocess.Popen` that is needed."""

    def __init__(
        self, command: Sequence[str], folder: Path, said: Path, errors: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Run `gdt command` in a folder; its outputs go into the files `said` and `errors`, or both into one."""
        for name in _HEAVY:
            importlib.import_module(name)
        sys.stdout.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code: Any = 1
        try:
            os.setsid()
            os.chdir(folder)
            os.environ.update(environment or {})
            tempfile.tempdir = None  # as TMPDIR says now
            for number, path in ((1, said), (2, errors or said)):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(file, number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["gdt", *command]
            sys.path.insert(0, str(folder))
            console()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit status, as subprocess has it, None while there is none."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """The exit status once there is one."""
        while (code := self.poll()) is None:
            time.sleep(0.005)
        return code


def serve() -> None:
    """Run what comes on standard input, a line of JSON each, and answer with its exit status."""
    for line in sys.stdin:
        request = json.loads(line)
        paths = {name: Path(request[name]) for name in ("folder", "said", "errors")}
        print(Fork(request["command"], **paths, environment=request["environment"]).wait(), flush=True)


if __name__ == "__main__":
    serve()
