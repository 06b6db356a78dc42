"""python -m benchmarks.gpu: every section in turn, each in a process of its own, within the minutes that were given.

This process imports nothing heavy. What crashes or hangs in the middle of a row has failed that row, which is written
down, and another process goes on with the next one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.settings import SECTIONS, Settings, parsed
from benchmarks.gpu.table import AGAIN, BEGUN, ROWS, Begun, Row, append, read, told, write
from gdt.common.errors import UserError, exit_with_message, quiet_until_ready
from gdt.common.serialization import to_json

_GRACE = 20.0
"""Seconds after its time in which a section may finish what it has begun."""


def run(settings: Settings, say: Callable[[str], None] = print) -> str:
    """Measure all; the table, which is in the folder, too. Raises UserError where there is nothing to measure on."""
    settings.out.mkdir(parents=True, exist_ok=True)
    path, values = settings.out / ROWS, to_json(settings)
    for old in (path, settings.out / BEGUN, *(_log(settings, section) for section in SECTIONS)):
        old.unlink(missing_ok=True)
    deadline = time.time() + 60 * settings.minutes
    for section in settings.measured:
        if time.time() > deadline:
            append(path, Row(section, section, failed="skipped: no time is left"))
            continue
        say(f"-- {section}, {max(0.0, deadline - time.time()) / 60:.1f} minutes left")
        _run_section(section, settings, values, deadline, say)
        failed = [row.failed for row in read(path) if row.failed]
        if section == "machine" and failed:
            raise UserError(failed[0])
        write(settings.out, read(path), values)
    return write(settings.out, read(path), values)


def _run_section(section: str, settings: Settings, values: str, deadline: float, say: Callable[[str], None]) -> None:
    while ended := _run_process(section, settings, values, deadline, say):
        begun = Begun.read(settings.out)
        (settings.out / BEGUN).unlink(missing_ok=True)
        if begun or ended != AGAIN:
            what = begun.what if begun else section
            append(settings.out / ROWS, Row(section, what, failed=f"{ended}; see {_log(settings, section)}"))
        if time.time() > deadline or not (begun or ended == AGAIN):
            return


def _run_process(section: str, settings: Settings, values: str, deadline: float, say: Callable[[str], None]) -> str:
    """How it ended, if not well; AGAIN where another one should go on."""
    path = settings.out / ROWS
    seen = len(read(path))
    with _log(settings, section).open("a") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.section", section, str(deadline), values],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,  # so that what it starts ends with it
        )  # fmt: skip
        try:
            while True:
                try:
                    status: int | None = child.wait(0.2)
                except subprocess.TimeoutExpired:
                    status = None
                rows = read(path)
                if len(rows) > seen:
                    say("\n".join(map(told, rows[seen:])))
                    write(settings.out, rows, values)
                    seen = len(rows)
                if status is not None:
                    return {0: "", int(AGAIN): AGAIN}.get(status, f"ended with status {status}")
                if time.time() > deadline + _GRACE:
                    return "ended, as its time was up"
                begun = Begun.read(settings.out)
                if begun and time.time() > begun.until:
                    return "ended, as it took many times as long as expected"
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """A section and all that it has started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def _log(settings: Settings, section: str) -> Path:
    return settings.out / f"{section}.log"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    settings = parsed(sys.argv[1:])
    table = run(settings, lambda text: print(text, flush=True))
    print(f"\n{table}\n\nthe table is in {settings.out}")


if __name__ == "__main__":
    quiet_until_ready()
    exit_with_message(main)
