"""python -m benchmarks.gpu: every section in turn, each in a process of its own, within the minutes that were given.

This process imports nothing heavy. It ends a section that hangs, writes that down, and goes on with the next one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.settings import SECTIONS, Settings, parsed, to_json
from benchmarks.gpu.table import ROWS, Row, append, read, text, write
from pipeline.errors import UserError, exit_with_message, quiet_until_ready

_GRACE = 20.0
"""Seconds after its time in which a section may finish what it has begun."""


def run(settings: Settings, say: Callable[[str], None] = print) -> str:
    """Measure all; the table, which is in the folder, too. Raises UserError where there is nothing to measure on."""
    settings.out.mkdir(parents=True, exist_ok=True)
    path, told = settings.out / ROWS, to_json(settings)
    path.unlink(missing_ok=True)
    deadline = time.time() + 60 * settings.minutes
    for section in SECTIONS:
        if section not in settings.sections:
            continue
        if time.time() > deadline:
            append(path, Row(section, section, failed="skipped: no time is left"))
            continue
        say(f"-- {section}, {max(0.0, deadline - time.time()) / 60:.1f} minutes left")
        ended = _run_section(section, settings, told, deadline, say)
        if section == "machine" and ended:
            raise UserError(next((row.failed for row in read(path) if row.failed), ended))
        if ended:
            append(path, Row(section, section, failed=f"{ended}; see {_log(settings, section)}"))
        write(settings.out, read(path), told)
    return write(settings.out, read(path), told)


def _run_section(section: str, settings: Settings, told: str, deadline: float, say: Callable[[str], None]) -> str:
    """How it ended, if not well."""
    path = settings.out / ROWS
    seen = len(read(path))
    with _log(settings, section).open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.section", section, str(deadline), told],
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
                    say(text(rows[seen:]))
                    write(settings.out, rows, told)
                    seen = len(rows)
                if status is not None:
                    return "" if status == 0 else f"ended with status {status}"
                if time.time() > deadline + _GRACE:
                    return "ended, as its time was up"
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
    table = run(settings)
    print(f"\n{table}\n\nthe table is in {settings.out}")


if __name__ == "__main__":
    quiet_until_ready()
    exit_with_message(main)
