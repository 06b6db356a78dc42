"""The data set `synthetic-hard`: its videos, and beside them labels.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from gdt.preprocess.synthetic import files
from gdt.preprocess.synthetic.files import Recipe, Task
from gdt.preprocess.synthetic.hard.actions import ACTIONS
from gdt.preprocess.synthetic.hard.rendering import render
from gdt.preprocess.synthetic.hard.scene import SyntheticHard, draw_scene

NAME = "synthetic-hard"
FORMAT = 2


def generate(
    destination: Path, settings: SyntheticHard = SyntheticHard(), workers: int | None = None, progress: bool = True
) -> None:
    """Make the data set: `<split>/<class>/<id>.mp4`, `labels.csv` and, once complete, `synthetic-hard.json`.

    A complete set with the same settings is left alone, a half-made one completed. `workers` processes render and
    encode, by default one per CPU core. Raises `UserError` if the destination is taken or ffmpeg fails.
    """
    files.make(destination, Recipe(NAME, FORMAT, settings, tuple(ACTIONS), render, _beside), workers, progress)


def _beside(settings: SyntheticHard, tasks: Sequence[Task]) -> dict[str, str]:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for number, task in enumerate(tasks):
        labels = draw_scene(settings, task.split, task.action, task.n).labels
        if number == 0:
            rows.writerow(["path", *labels])
        rows.writerow([f"{task.split}/{task.action}/{task.path.name}", *labels.values()])
    return {"labels.csv": text.getvalue()}
