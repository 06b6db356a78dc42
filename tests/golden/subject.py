"""The product, as the golden tests call it: a change of its interfaces changes this file and no recorded value."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gdt.pipeline.presets import PRESETS
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES, Optimization, Pretrain

MORE = "video:d time_shift:i:1 speed(1,2):i:2 order(2):i:2 modality:i:2:differs rotation:i:2 augmentation:i:1"
"""The factors that no preset has."""
NAMES = [name for name in PRESETS if not name.isdecimal()]


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Hash of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        found.update(f"{name} {values.dtype} {values.shape};".encode() + np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def settings(name: str, shards: Path, words: Path | None = None, dropout: float = 0.0, **changes: Any) -> Pretrain:
    """A short run of small networks over 12 videos, by default as one batch-norm group."""
    base = SIZES["tiny"][1]
    composition = {"factors": MORE} if name == "more" else {"preset": name}
    short = replace(
        base, **composition, shards=shards, word2vec=words, network=replace(base.network, dropout=dropout),
        batch_size=12, steps=20, bn_group_size=0, device="cpu", threads=1,
        # a low rate: at higher ones, rounding differences grow within three or four steps
        optimization=Optimization("sgd", lr=1e-5, base_batch_size=0, warmup_epochs=0),
    )  # fmt: skip
    return replace(short, **changes)


def train(settings: Pretrain) -> dict[str, Any]:
    """Pretrain; the loss of every step, and the norm of the change of the weights."""
    trained = load_model(pretrain(settings))
    before, after = (dict(which.model.named_parameters()) for which in (trained.untrained(), trained))
    moved = [(after[key].double() - before[key].double()).norm().item() ** 2 for key in before]
    return {"losses": losses(settings.run_folder), "moved": math.sqrt(math.fsum(moved))}


def losses(run: Path) -> list[float]:
    """The loss of every step of a run."""
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def planned(name: str, shards: Path) -> dict[str, str]:
    """Hashes of columns, leaves and draws of some plans over videos of different lengths."""
    index, found = Index.open(shards), {}
    shorter = np.arange(len(index))
    index = replace(index, frame_count=index.frame_count - shorter, mel_count=index.mel_count - 3 * shorter)
    for seed, epoch, batch in ((0, 0, 0), (0, 0, 1), (1, 7, 0)):
        plan = settings(name, shards, batch_size=5, seed=seed).tree(index).plan(epoch, batch)
        arrays = {"columns": plan.columns, "leaves": plan.leaves.arrays(), "draws": plan.leaves.draws}
        found[f"{seed} {epoch} {batch}"] = " ".join(map(digest, arrays.values()))
    return found
