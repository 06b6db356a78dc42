"""Whole training with `pretrain`, and the hours that it predicts for Kinetics-400."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from benchmarks.gpu.settings import PREDICTED, Settings
from benchmarks.gpu.step import run_settings
from benchmarks.gpu.table import Rows, Values
from gdt.pipeline import presets
from gdt.pipeline.sources.loading import Loading
from gdt.train.pretrain import pretrain
from gdt.train.settings import METRICS

EPOCHS, VIDEOS, GPUS = 100, 240_000, 8
"""Settings of the training on Kinetics-400 whose hours are predicted."""


def training(settings: Settings, rows: Rows, device: torch.device) -> None:
    videos = settings.size.videos
    for row in settings.size.rows:
        rows(f"row {row}, {videos // GPUS} videos, as on each of {GPUS}", partial(share, settings, row, videos // GPUS))
    rows(f"row l, {videos} videos", partial(whole, settings, "l", videos))


def share(settings: Settings, row: str, videos: int) -> Values:
    """One GPU's share of a batch, and the hours that follow."""
    values = whole(settings, row, videos)
    clips = presets.composition(row, videos).clips_per_video
    hours = EPOCHS * VIDEOS * clips / (GPUS * float(values["clips/s"])) / 3600
    arithmetic = (
        f"{EPOCHS} epochs x {VIDEOS} videos x {clips} clips / ({GPUS} GPUs x {values['clips/s']:.0f} clips/s) = "
        f"{hours:.1f} h, without communication; predicted with it: {PREDICTED['hours'][row]} h on H100"
    )
    return {**values, "is": f"{values['is']}; {arithmetic}"}


def whole(settings: Settings, row: str, videos: int) -> Values:
    """Some steps of pretraining on the synthetic videos; the first third is warm-up."""
    base = run_settings(settings, row, 4 * videos)
    out = settings.out / f"run-{row}-{videos}"
    shutil.rmtree(out, ignore_errors=True)
    run = replace(
        base, batch_size=videos, shards=settings.shards, out=out, steps=settings.size.training_steps,
        checkpoint_minutes=1e6, loading=Loading(),
    )  # fmt: skip
    pretrain(run).unlink()
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    counted = lines[len(lines) // 3 :]
    names = {"clips/s": ("clips_per_second", 1), "waiting %": ("data_wait", 100), "MFU %": ("mfu", 100)}
    values: dict[str, float | str] = {
        name: scale * median(line[key] for line in counted) for name, (key, scale) in names.items() if key in lines[0]
    }
    values |= {"GiB": max(line["memory_gib"] for line in lines), "steps": len(lines), "loss": lines[-1]["loss"]}
    kept = json.loads((out / "settings.json").read_text())
    how = f"bn_group_size {kept['bn_group_size']}, micro_batch_size {kept['micro_batch_size']}, {kept['precision']}"
    return values | {"is": how}
