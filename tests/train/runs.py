"""Start runs of the command line, wait for them and read their logs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.conftest import ROOT


def losses(run: Path) -> list[float]:
    """Losses of all steps so far; empty without a log."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait; only pytest's timeout ends a test that hangs, since no other time is enough on every busy machine."""
    while not condition():
        time.sleep(0.01)


def stopping(moment: str, number: signal.Signals) -> dict[str, str]:
    """The environment of a run that gets a signal at a moment, as tests/hooks understands it."""
    hooks = os.pathsep.join(map(str, (ROOT / "tests" / "hooks", ROOT, ROOT / "src")))
    return {"GDT_STOP": f"{moment} {number.value}", "PYTHONPATH": hooks}


def pausing(count: int) -> dict[str, str]:
    """The environment of a run that stops before its checkpoint is written for the `count`th time; see `paused`."""
    return stopping(f"os.rename checkpoint.pt {count} 0", signal.SIGSTOP)


def paused(run: int) -> list[int]:
    """Wait until a process or children of it have stopped; their ids. SIGCONT makes them go on."""
    found: list[int] = []

    def look() -> list[int]:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                process, (state, parent, *_) = int(path.parent.name), path.read_text().rpartition(")")[2].split()
                if state == "T" and run in (process, int(parent)):
                    found.append(process)
        return found

    wait_until(look)
    return found


def of_ranks(world: int) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun sets it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
    common["MASTER_ADDR"] = "127.0.0.1"
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def go_on(processes: list[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGCONT)


def start_gdt(arguments: Iterable[object], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start `gdt` with these arguments in a new session."""
    return subprocess.Popen(
        [sys.executable, "-m", "gdt", *map(str, arguments)], cwd=folder, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
