"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def publish(partial: Path, path: Path) -> None:
    """Flush a finished temporary file to disk and give it its name: it appears whole or not at all."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    write_lines(path, [text])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file atomically, from lines that end with their line breaks and come one at a time."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)
    publish(partial, path)


def dump_row(row: Mapping[str, Any]) -> str:
    """One JSON line."""
    return json.dumps(dict(row), ensure_ascii=False) + "\n"
