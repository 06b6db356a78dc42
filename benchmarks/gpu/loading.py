"""The loader: whether a GPU makes the crops that a processor makes, and how many clips it decodes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace

import torch

from benchmarks.gpu.device import Processor
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Values
from pipeline import presets
from pipeline.errors import UserError
from pipeline.leaves import Clip
from pipeline.loader import Loader
from pipeline.shards.index import Index
from pipeline.sources.loading import Loading
from pipeline.tree import Tree, sampling_tree

TOLERANCE = 2.0
"""Grey levels, mean over a leaf, that decoders of processors and GPUs may differ by (tests/test_gpu.py)."""
CHOICES: dict[str, dict[str, object]] = {
    "": {},
    "without the JPEG engine": {"jpeg_hardware": False},
    "decoded on the cores": {"decoder": "cpu"},
    "64 clips at once": {"clips_at_once": 64},
}
"""Settings of the loader that are measured beside its own, of those that it has."""


def choices() -> dict[str, Loading]:
    """The loader's settings, by what differs."""
    known = {one.name for one in fields(Loading)}
    return {name: replace(Loading(), **changes) for name, changes in CHOICES.items() if known >= changes.keys()}  # type: ignore[arg-type]


def _tree(index: Index, settings: Settings, row: str, clips: int) -> Tree:
    """Of batches of so many decoded clips, or fewer where there are fewer videos."""

    def of(videos: int) -> Tree:
        composition = presets.composition(row, videos, settings.augmentation)
        return sampling_tree(index, composition, settings.clip, "train", 0)

    one = of(2)
    return of(min(max(2, clips // one.composition.decoded_per_video), len(one.source.videos)))


def differences(settings: Settings, device: Processor, row: str = "l", batches: int = 2) -> Values:
    """Grey levels between the crops of the device and those of a processor, of the same plans."""
    index, clip = Index.open(settings.shards), settings.clip
    tree = _tree(index, settings, row, 32)
    plans = [tree.plan(0, number % tree.batches_per_epoch) for number in range(batches)]
    found: list[list[torch.Tensor]] = []
    sounds: list[list[torch.Tensor]] = []
    for place in (torch.device("cpu"), device.device):
        with Loader(index, plans, clip, place, Loading()) as loader:
            made = [(batch.inputs["video"].crops.cpu().clone(), batch.inputs["audio"].cpu().clone()) for batch in loader]
        found.append([crops for crops, _ in made])
        sounds.append([sound for _, sound in made])
    off = torch.cat([(a.short() - b.short()).abs().flatten(1) for a, b in zip(*found, strict=True)])
    sound = max(float((a - b).abs().max()) for a, b in zip(*sounds, strict=True))
    mean = off.float().mean(1)
    values: dict[str, float | str] = {
        "leaves": len(off), "mean level": float(mean.mean()), "worst leaf's mean": float(mean.max()),
        "largest": float(off.max()), "worst leaf's 99.9 %": float(_quantile(off)), "sound": sound,
    }  # fmt: skip
    if not mean.max() < TOLERANCE:
        raise UserError(f"a leaf is off by {mean.max():.2f} grey levels, more than {TOLERANCE}: {values}")
    return values | {"is": f"within {TOLERANCE} grey levels in every leaf"}


def _quantile(off: torch.Tensor) -> float:
    """The level that one in a thousand values of the worst leaf is above."""
    few = max(1, off.shape[1] // 1000)
    return float(off.topk(few, 1).values[:, -1].max())


def rate(settings: Settings, device: Processor, row: str, loading: Loading) -> Values:
    """Decoded clips/s, and processor seconds of each clip, all threads together."""
    index, clip = Index.open(settings.shards), settings.clip
    tree = _tree(index, settings, row, 64)
    decoded = tree.composition.videos_per_batch * tree.composition.decoded_per_video
    with Loader(index, _endless(tree), clip, device.device, loading) as loader:
        batches = iter(loader)
        for _ in range(2):
            _take(batches, device)
        began, busy, count = time.perf_counter(), _busy(), 0
        while time.perf_counter() - began < settings.loading_seconds:
            _take(batches, device)
            count += decoded
        seconds, used = time.perf_counter() - began, _busy() - busy
    return {
        "clips/s": count / seconds, "frames/s": count * _frames(clip) / seconds,
        "leaves per clip": tree.composition.clips_per_video / tree.composition.decoded_per_video,
        "CPU s/clip": used / count, "cores busy": used / seconds,
    }  # fmt: skip


def _frames(clip: Clip) -> int:
    return clip.frames


def _take(batches: Iterator[object], device: Processor) -> None:
    next(batches)
    device.synchronize()


def _endless(tree: Tree) -> Iterator[object]:
    return (tree.plan(*divmod(step, tree.batches_per_epoch)) for step in itertools.count())


def _busy() -> float:
    """Processor seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])
