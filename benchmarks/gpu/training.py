"""Whole training, through the function that trains; and what it comes to on a real data set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu import absent
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.step import batch_of, run_settings
from benchmarks.gpu.table import Values
from gdt.pipeline.loader import Batch
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import BatchPlan
from gdt.train.pretrain import pretrain
from gdt.train.settings import METRICS, Pretrain

EPOCHS, VIDEOS, GPUS = 100, 240_000, 8
"""Of the paper's training on Kinetics-400, with as many GPUs as are asked about."""


class Ready:
    """In the place of the loader: the batches of plans, all with the bytes that were made for the first of them."""

    def __init__(self, run: Pretrain, plans: Iterable[BatchPlan], device: torch.device) -> None:
        self._run, self._plans, self._device = run, plans, device

    def __iter__(self) -> Iterator[Batch]:
        made: Batch | None = None
        for plan in self._plans:
            made = made or batch_of(plan, self._run, self._device)
            table = {name: torch.from_numpy(values).to(self._device) for name, values in plan.columns.items()}
            yield replace(made, table=table, joined=table, plan=plan)

    def __enter__(self) -> Ready:
        return self

    def __exit__(self, *error: object) -> None:
        return


def whole(settings: Settings, row: str, videos: int) -> Values:
    """Some steps of pretraining on the drawn videos, the first third of which do not count.

    Without DALI the cores decode, and where there is sound, too, nothing is loaded.
    """
    base = run_settings(settings, row, 4 * videos)
    out = settings.out / f"run-{row}-{videos}"
    shutil.rmtree(out, ignore_errors=True)
    bare = "nvidia.dali" in absent.MISSING
    run = replace(
        base, videos_per_batch=videos, shards=settings.shards, out=out, steps=settings.training_steps,
        checkpoint_minutes=1e6, loading=Loading(decoder="cpu") if bare else Loading(),
    )  # fmt: skip
    ready = bare and "audio" in base.composition.modalities

    def made(index: Any, plans: Iterable[BatchPlan], clip: Any, device: torch.device, *others: Any) -> Ready:
        return Ready(run, plans, device)

    with mock.patch("gdt.train.trainer.Loader", made) if ready else nullcontext():
        path = pretrain(run)
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    path.unlink()
    counted = lines[len(lines) // 3 :]
    names = {"clips/s": ("clips_per_second", 1), "waiting %": ("waiting", 100), "MFU %": ("mfu", 100)}
    values: dict[str, float | str] = {
        name: scale * median(line[key] for line in counted) for name, (key, scale) in names.items() if key in lines[0]
    }
    values |= {"GiB": max(line["memory_gib"] for line in lines), "steps": len(lines), "loss": lines[-1]["loss"]}
    kept = json.loads((out / "settings.json").read_text())
    told = f"norm leaves {kept['norm_leaves']}, chunk leaves {kept['chunk_leaves']}, {kept['precision']}"
    if ready:
        told += "; nothing was loaded, as DALI is not installed: batches were ready, and waiting says nothing"
    return values | {
        "is": told, "arithmetic": arithmetic(row, base.composition.clips_per_video, float(values["clips/s"]))
    }  # fmt: skip


def arithmetic(row: str, clips_per_video: int, clips_per_second: float) -> str:
    """How long the paper's training takes at such a rate of each GPU."""
    clips = EPOCHS * VIDEOS * clips_per_video
    hours = clips / (GPUS * clips_per_second) / 3600
    return (
        f"{EPOCHS} epochs x {VIDEOS} videos x {clips_per_video} clips of row {row} / ({GPUS} GPUs x "
        f"{clips_per_second:.0f} clips/s) = {hours:.1f} h, without what ranks wait for each other"
    )
