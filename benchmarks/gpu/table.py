"""What was measured: rows that are kept as soon as they are there, and the table of them."""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.errors import UserError, first_line, is_out_of_memory
from pipeline.files import write_text

Values = Mapping[str, float | str]
ROWS, TEXT, JSON = "rows.jsonl", "table.txt", "table.json"


@dataclass(frozen=True)
class Row:
    """One measurement."""

    section: str
    what: str
    values: Values = field(default_factory=dict)
    failed: str = ""
    """Why there are no values."""
    seconds: float = 0.0
    """That it took."""


class Rows:
    """Measurements of one process: each is written down when it is done, failed or skipped, and the next one goes on."""

    def __init__(self, path: Path, deadline: float, clean: Callable[[], None] = lambda: None) -> None:
        """`deadline` as of time.time(); `clean` gives memory back after a measurement."""
        self._path, self._deadline, self._clean = path, deadline, clean
        self._took: dict[str, float] = {}

    def __call__(
        self, section: str, what: str, measure: Callable[[], Values], expected: float = 30.0, kind: str = ""
    ) -> Values | None:
        """What `measure` returns; None where it failed, or where what is left is less than the expected seconds.

        Those of another measurement of the same kind are expected again.
        """
        expected = self._took.get(kind, expected)
        left = self._deadline - time.time()
        began = time.perf_counter()
        if left < expected:
            self._add(Row(section, what, failed=f"skipped: it needs about {expected:.0f} s, and {max(0, left):.0f} are left"))
            return None
        values: Values | None = None
        why = ""
        try:
            values = measure()
        except Exception as error:  # whatever compilers, drivers and libraries raise
            kind_of_error = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            why = "out of memory: " * is_out_of_memory(error) + kind_of_error + first_line(error)[:300]
            traceback.print_exc()
            del error
        gc.collect()
        self._clean()
        seconds = time.perf_counter() - began
        if values is not None:
            self._took[kind or what] = seconds
        self._add(Row(section, what, values or {}, why, round(seconds, 1)))
        return values

    def note(self, section: str, what: str, values: Values) -> None:
        """What follows from measurements."""
        self._add(Row(section, what, values))

    def _add(self, row: Row) -> None:
        append(self._path, row)
        print(f"[{row.section}] {row.what}: {_told(row)}", flush=True)
        sys.stderr.flush()


def append(path: Path, row: Row) -> None:
    """Write a row down."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """The rows that were written down; a last one that is not whole is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(Row(**json.loads(line)))
        except ValueError:
            break
    return rows


def write(folder: Path, rows: Sequence[Row], settings: str) -> str:
    """The table as text and as JSON; returns the text."""
    written = text(rows)
    write_text(folder / TEXT, written + "\n")
    listed = {"settings": json.loads(settings), "rows": [asdict(row) for row in rows]}
    write_text(folder / JSON, json.dumps(listed, indent=1) + "\n")
    return written


def text(rows: Sequence[Row]) -> str:
    """A table per section."""
    parts = []
    for section in dict.fromkeys(row.section for row in rows):
        own = [row for row in rows if row.section == section]
        names = list(dict.fromkeys(name for row in own for name in row.values if name not in _LONG))
        lines = [["", *names]]
        lines += [[row.what, *(_shown(row.values.get(name, "")) for name in names)] for row in own]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        told = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        after = ["", *(row.failed or "; ".join(str(row.values[name]) for name in _LONG if name in row.values) for row in own)]
        parts.append("\n".join([f"== {section}", *(f"{a}  {b}".rstrip() for a, b in zip(told, after, strict=True))]))
    return "\n\n".join(parts)


_LONG = ("why", "is", "arithmetic")
"""Values that are sentences; they come last, without a column."""


def _told(row: Row) -> str:
    return row.failed or ", ".join(f"{name} {_shown(value)}" for name, value in row.values.items())


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
