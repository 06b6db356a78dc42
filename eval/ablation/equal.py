"""What every row of an ablation gets: the same videos, video clips or FLOPs (`--equal`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gdt.common.errors import UserError, plural
from gdt.eval.ablation.settings import CLIPS_PER_STEP, Ablation
from gdt.pipeline.groups import check_groups
from gdt.pipeline.shards.index import Index
from gdt.train.flops import step_flops
from gdt.train.settings import Pretrain

REFERENCE = "l"
"""The row whose FLOPs every row gets with --equal compute: the paper's best."""


class Equal(NamedTuple):
    """What every row gets."""

    runs: dict[str, Pretrain]
    """By row, with batch size and steps."""
    text: str
    """What the rows share."""
    lowered: str
    """A note on the default that was lowered because there are too few videos; empty if none was."""


def equalise(settings: Ablation, rows: Mapping[str, Pretrain], index: Index) -> Equal:
    """Give every row the same. Raises UserError if there are too few videos, or a set option does not fit a row."""
    first = next(iter(rows.values()))
    usable = {row: len(replace(run, batch_size=2).tree(index).source.videos) for row, run in rows.items()}
    length = f"{first.planned_epochs} epochs" if first.planned_epochs else f"{first.schedule(1).steps} steps"
    if settings.equal == "clips":
        per_video = {row: run.composition.clips_per_video for row, run in rows.items()}
        clips, lowered = _per_step("clips_per_step", settings.clips_per_step, CLIPS_PER_STEP, per_video, usable)
        own = {row: _with_videos(run, clips // per_video[row]) for row, run in rows.items()}
        return Equal(own, f"clips: {clips} video clips per step, {length}", lowered)
    videos, lowered = _per_step(
        "batch_size", settings.batch_size, first.default_batch_size, dict.fromkeys(rows, 1), usable
    )
    videos = videos if settings.batch_size else first.whole_groups(videos)
    own = {row: _with_videos(run, videos) for row, run in rows.items()}
    if settings.equal == "videos":
        return Equal(own, f"videos: {videos} videos per step, {length}", lowered)
    steps = first.schedule(next(iter(usable.values())) // videos).steps
    reference = replace(first, preset=REFERENCE, factors="", factors_from=None, batch_size=videos)
    spent = steps * step_flops(reference, index.bands)
    for row, run in own.items():
        as_costly = max(1, round(spent / step_flops(run, index.bands)))
        if as_costly != run.schedule(usable[row] // videos).steps:
            own[row] = replace(run, steps=as_costly, epochs=0)
    return Equal(own, f"compute: {videos} videos per step, the FLOPs of {steps} steps of row {REFERENCE}", lowered)


def _per_step(
    name: str, given: int, default: int, per_video: Mapping[str, int], usable: Mapping[str, int]
) -> tuple[int, str]:
    """Videos or clips per step, at least two videos of every row, and a note if the default was lowered.

    `per_video`: what a video counts for; `usable`: number of videos; both by row. Raises UserError if `given`, the
    value of option `name` (0: not set), does not fit a row, or no value fits all rows.
    """
    option, common = f"--{name.replace('_', '-')}", math.lcm(*per_video.values())
    largest = max(per_video, key=lambda row: per_video[row])
    scarce = min(per_video, key=lambda row: per_video[row] * usable[row])
    least, most = 2 * per_video[largest], per_video[scarce] * usable[scarce] // common * common
    few = f"row {scarce} can use only {plural(usable[scarce], 'video')}"
    if given > most >= least:
        raise UserError(f"{option} is {given}, but {few}; set it to {most} or less")
    if most < least:
        raise UserError(
            f"{few}, too few to fill a step of {least} clips, the minimum for two videos of row {largest}; add videos, "
            "or set --equal videos"
        )
    if given:
        if given < least:
            raise UserError(
                f"{option} is {given}; set it to {least} or more, the minimum for two videos of row {largest}"
            )
        return given, ""
    wanted = max(default // common, math.ceil(least / common)) * common
    return min(wanted, most), f"{name} {most} (default {default}, but {few})" if most < wanted else ""


def _with_videos(run: Pretrain, videos: int) -> Pretrain:
    """The run with a batch size. Raises UserError if its batch-norm groups do not fit."""
    check_groups(videos, run.composition.clips_per_video, run.group_size or 0, 1)
    return replace(run, batch_size=videos)
