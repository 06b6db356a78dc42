"""The loader: whether a GPU makes the same crops as a CPU, and how many clips per second it decodes."""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import torch

from benchmarks.gpu.device import synchronize
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Rows, Values
from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.decoders import MEAN, NEARLY_ALL, levels
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import Tree, sampling_tree

CHOICES = {
    ", decoded on the CPU": Loading(decoder="cpu"), ", on the GPU": Loading(decoder="gpu"),
    ", 64 clips at once": Loading(decoder="gpu", decode_batch_size=64),
    ", on its JPEG engine": Loading(decoder="gpu", jpeg_hardware=True),
}  # fmt: skip
"""Settings of the loader."""


def loading(settings: Settings, rows: Rows, device: torch.device) -> None:
    choices = CHOICES if settings.device == "cuda" else {"": Loading()}
    for name, choice in choices.items():
        rows(f"crops of {settings.device} and cpu{name}", partial(differences, settings, device, choice))
    for name, choice in choices.items():
        for row in ("e", "l"):
            rows(f"row {row}{name}", partial(rate, settings, device, row, choice))


def _tree(index: Index, settings: Settings, row: str, clips: int) -> Tree:
    """Batches of this many decoded clips, or fewer where there are fewer videos."""

    def of(videos: int) -> Tree:
        composition = presets.composition(row, videos, settings.size.augmentation)
        return sampling_tree(index, composition, settings.size.clip, "train", 0)

    one = of(2)
    return of(min(max(2, clips // one.composition.decoded_per_video), len(one.source.videos)))


def differences(settings: Settings, device: torch.device, choice: Loading, row: str = "a", batches: int = 2) -> Values:
    """Grey levels between crops of the device and of the CPU, for the same plans.

    Raises UserError where they exceed `MEAN` or `NEARLY_ALL`.
    """
    index = Index.open(settings.shards)
    tree = _tree(index, settings, row, 32)
    plans = [tree.plan(0, number % tree.batches_per_epoch) for number in range(batches)]
    crops = []
    for where, options in ((torch.device("cpu"), Loading()), (device, choice)):
        with Loader(index, plans, settings.size.clip, where, options) as loader:
            crops.append(torch.cat([batch.inputs["video"].crops.cpu() for batch in loader]))
    mean, nearly_all, most = levels(*crops)
    report = f"worst leaf: {mean:.2f} grey levels on average, 99.9 % within {nearly_all}, all within {most}"
    if not (mean < MEAN and nearly_all <= NEARLY_ALL):
        raise UserError(f"{report}; expected: mean below {MEAN}, 99.9 % within {NEARLY_ALL}")
    return {"is": f"{report}, of {len(crops[0])} leaves (expected: below {MEAN} and within {NEARLY_ALL})"}


def rate(settings: Settings, device: torch.device, row: str, choice: Loading) -> Values:
    """Clips/s as a training step counts them, decoded clips/s, and load of the CPU."""
    index, clip = Index.open(settings.shards), settings.size.clip
    tree = _tree(index, settings, row, 64)
    composition = tree.composition
    with Loader(index, tree.plans(0, sys.maxsize), clip, device, choice) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            synchronize(device)
        start, busy, count = time.perf_counter(), sum(os.times()[:2]), 0
        while time.perf_counter() - start < settings.size.loading_seconds:
            next(batches)
            synchronize(device)
            count += composition.batch_size
        seconds, used = time.perf_counter() - start, sum(os.times()[:2]) - busy
    decoded = count * composition.decoded_per_video
    return {
        "clips/s": count * composition.clips_per_video / seconds, "decoded clips/s": decoded / seconds,
        "frames/s": decoded * clip.frames / seconds, "CPU ms/decoded clip": 1000 * used / decoded,
        "cores busy": used / seconds,
    }  # fmt: skip
