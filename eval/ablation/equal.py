"""What every row of an ablation gets: the same videos, video clips or arithmetic (`--equal`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gdt.eval.ablation.settings import Ablation
from gdt.pipeline.shards.index import Index
from gdt.train.cost import step_flops
from gdt.train.settings import Pretrain

REFERENCE = "l"
"""The row whose arithmetic every row gets with --equal compute: the paper's best."""
_CLIPS_PER_STEP = 64


def equalise(settings: Ablation, rows: Mapping[str, Pretrain], index: Index) -> tuple[dict[str, Pretrain], str]:
    """The runs of the rows with their batch size and steps, and what they share, as text.

    Raises UserError if there are too few videos.
    """
    first = next(iter(rows.values()))
    length = f"{first.steps} steps" if first.steps else f"{first.epochs} epochs"
    if settings.equal == "clips":
        clips = settings.clips_per_step or _CLIPS_PER_STEP
        own = {row: replace(run, batch_size=clips // run.composition.clips_per_video) for row, run in rows.items()}
        return own, f"clips: {clips} video clips per step, {length}"
    videos = settings.batch_size or min(run.with_batch_size(index).composition.batch_size for run in rows.values())
    own = {row: replace(run, batch_size=videos) for row, run in rows.items()}
    if settings.equal == "videos":
        return own, f"videos: {videos} videos per step, {length}"
    steps = first.steps or first.epochs * (len(own[next(iter(own))].tree(index).source.videos) // videos)
    reference = replace(first, preset=REFERENCE, factors="", factors_from=None, batch_size=videos)
    spent = steps * step_flops(reference, index.bands)
    own = {
        row: replace(run, steps=max(1, round(spent / step_flops(run, index.bands))), epochs=0)
        for row, run in own.items()
    }
    return own, f"compute: {videos} videos per step, the arithmetic of {steps} steps of row {REFERENCE}"
