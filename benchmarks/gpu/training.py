"""Whole training, through the command that trains; and what it comes to on a real data set."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from statistics import median

from benchmarks.gpu.settings import Settings
from benchmarks.gpu.step import run_settings
from benchmarks.gpu.table import Values
from pipeline.sources.loading import Loading
from train.pretrain import pretrain
from train.settings import METRICS

EPOCHS, VIDEOS, GPUS = 100, 240_000, 8


def whole(settings: Settings, row: str, videos: int) -> Values:
    """Some steps of pretraining on the drawn videos, the first third of which do not count."""
    base = run_settings(settings, row, 4 * videos)
    out = settings.out / f"run-{row}-{videos}"
    shutil.rmtree(out, ignore_errors=True)
    run = replace(
        base, videos_per_batch=videos, shards=settings.shards, out=out, steps=settings.training_steps,
        checkpoint_minutes=1e6, loading=Loading(),
    )  # fmt: skip
    path = pretrain(run)
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    path.unlink()
    counted = lines[len(lines) // 3 :]
    values: dict[str, float | str] = {
        name: scale * median(line[key] for line in counted)
        for name, key, scale in (("clips/s", "clips_per_second", 1), ("waiting %", "waiting", 100), ("MFU %", "mfu", 100))
        if key in lines[0]
    }
    values |= {"GiB": max(line["memory_gib"] for line in lines), "steps": len(lines), "loss": lines[-1]["loss"]}
    kept = json.loads((out / "settings.json").read_text())
    return values | {
        "is": f"norm leaves {kept['norm_leaves']}, chunk leaves {kept['chunk_leaves']}, {kept['precision']}",
        "arithmetic": arithmetic(row, base.composition.clips_per_video, float(values["clips/s"])),
    }


def arithmetic(row: str, clips_per_video: int, clips_per_second: float) -> str:
    """How long the paper's training takes at such a rate of each GPU."""
    clips = EPOCHS * VIDEOS * clips_per_video
    hours = clips / (GPUS * clips_per_second) / 3600
    return (
        f"{EPOCHS} epochs x {VIDEOS} videos x {clips_per_video} clips of row {row} / ({GPUS} GPUs x "
        f"{clips_per_second:.0f} clips/s) = {hours:.1f} h, without what ranks wait for each other"
    )
