"""The data set `synthetic`: ten actions that everything in a video helps to tell apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gdt.preprocess.synthetic import files
from gdt.preprocess.synthetic.actions import ACTIONS
from gdt.preprocess.synthetic.files import Recipe, Task
from gdt.preprocess.synthetic.scene import Synthetic, captions, draw_scene, render

NAME = "synthetic"
FORMAT = 1


def generate(
    destination: Path, settings: Synthetic = Synthetic(), workers: int | None = None, progress: bool = True
) -> None:
    """Make the data set: `<split>/<class>/<id>.mp4`, `captions.json` and, once complete, `synthetic.json`.

    A complete set with the same settings is left alone, a half-made one completed. `workers` processes render and
    encode, by default one per CPU core. Raises `UserError` if the destination is taken or ffmpeg fails.
    """
    actions = tuple(ACTIONS)[: settings.classes]
    files.make(destination, Recipe(NAME, FORMAT, settings, actions, render, _beside), workers, progress)


def _beside(settings: Synthetic, tasks: Sequence[Task]) -> dict[str, str]:
    spoken = {t.path.stem: captions(draw_scene(settings, t.split, t.action, t.n), settings) for t in tasks}
    return {"captions.json": json.dumps(spoken) + "\n"}
