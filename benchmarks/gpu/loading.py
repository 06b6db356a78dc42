"""The loader: whether a GPU makes the crops that a processor makes, and how many clips it decodes."""

from __future__ import annotations

import itertools
import os
import time
from functools import partial

import torch

from benchmarks.gpu.device import synchronize
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import Rows, Values
from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import Tree, sampling_tree

MEAN, NEARLY_ALL = 1.5, 8
"""Grey levels by which decoders of processors and GPUs may differ: the mean over a leaf, and 99.9 % of its values.

Both take the same bytes and interpolate chroma in the same way (jpeg_fancy_upsampling); then what is left is how they
round. libjpeg-turbo's own two inverse transforms differ by 0.9 to 1.1 levels on average and 99.9 % of the values by at
most 4, on drawn and on generated frames; with chroma repeated instead of interpolated it is 1.3 to 3.7, and 12 to 49.
"""
CHOICES = {
    "": Loading(), ", without the JPEG engine": Loading(jpeg_hardware=False),
    ", decoded on the cores": Loading(decoder="cpu"), ", 64 clips at once": Loading(decode_batch_size=64),
}  # fmt: skip
"""The loader's settings, by what differs from its own."""


def loading(settings: Settings, rows: Rows, device: torch.device) -> None:
    choices = CHOICES if settings.device == "cuda" else {"": Loading()}
    for name, choice in choices.items():
        rows(f"crops of {settings.device} and cpu{name}", partial(differences, settings, device, choice))
    for name, choice in choices.items():
        # pictures alone need no DALI where the cores decode
        for row in ("e", "l", "a") if choice.decoder == "cpu" else ("e", "l"):
            rows(f"row {row}{name}", partial(rate, settings, device, row, choice))


def _tree(index: Index, settings: Settings, row: str, clips: int) -> Tree:
    """Of batches of so many decoded clips, or fewer where there are fewer videos."""

    def of(videos: int) -> Tree:
        composition = presets.composition(row, videos, settings.size.augmentation)
        return sampling_tree(index, composition, settings.size.clip, "train", 0)

    one = of(2)
    return of(min(max(2, clips // one.composition.decoded_per_video), len(one.source.videos)))


def differences(settings: Settings, device: torch.device, choice: Loading, row: str = "a", batches: int = 2) -> Values:
    """Grey levels between the crops of the device and those of a processor, of the same plans.

    Raises UserError where they are more than `MEAN` or `NEARLY_ALL`.
    """
    index = Index.open(settings.shards)
    tree = _tree(index, settings, row, 32)
    plans = [tree.plan(0, number % tree.batches_per_epoch) for number in range(batches)]
    made = []
    for place, how in ((torch.device("cpu"), Loading()), (device, choice)):
        with Loader(index, plans, settings.size.clip, place, how) as loader:
            made.append(torch.cat([batch.inputs["video"].crops.cpu() for batch in loader]))
    mean, nearly_all, most = levels(*made)
    told = f"worst leaf: {mean:.2f} grey levels on average, 99.9 % within {nearly_all}, all within {most}"
    if not (mean < MEAN and nearly_all <= NEARLY_ALL):
        raise UserError(f"{told}; it should be below {MEAN}, and within {NEARLY_ALL}")
    return {"is": f"{told}, of {len(made[0])} leaves (below {MEAN} and within {NEARLY_ALL} are as expected)"}


def levels(one: torch.Tensor, other: torch.Tensor) -> tuple[float, int, int]:
    """Of the leaf in which crops [n, ...] differ most, as bytes: the mean, what 99.9 % are within, and the most."""
    off = (one.short() - other.short()).abs().flatten(1)
    few = max(1, off.shape[1] // 1000)
    return float(off.float().mean(1).max()), int(off.topk(few, 1).values[:, -1].max()), int(off.max())


def rate(settings: Settings, device: torch.device, row: str, choice: Loading) -> Values:
    """Clips/s as a training step counts them, decoded ones, and what the cores have to do with it."""
    index, clip = Index.open(settings.shards), settings.size.clip
    tree = _tree(index, settings, row, 64)
    composition = tree.composition
    endless = (tree.plan(*divmod(step, tree.batches_per_epoch)) for step in itertools.count())
    with Loader(index, endless, clip, device, choice) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            synchronize(device)
        began, busy, count = time.perf_counter(), sum(os.times()[:2]), 0
        while time.perf_counter() - began < settings.size.loading_seconds:
            next(batches)
            synchronize(device)
            count += composition.batch_size
        seconds, used = time.perf_counter() - began, sum(os.times()[:2]) - busy
    decoded = count * composition.decoded_per_video
    return {
        "clips/s": count * composition.clips_per_video / seconds, "decoded clips/s": decoded / seconds,
        "frames/s": decoded * clip.frames / seconds, "CPU ms/decoded clip": 1000 * used / decoded,
        "cores busy": used / seconds,
    }  # fmt: skip
