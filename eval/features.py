"""Frozen features of uniformly spread clips (section A.5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from pipeline.clips import uniform_clips
from pipeline.errors import UserError
from pipeline.leaves import Clip
from pipeline.loader import Loader
from pipeline.shards.index import Index
from pipeline.sources.base import Loading
from pipeline.transformations.augmentation import EVALUATION
from pipeline.tree import BatchPlan
from train.models.gdt import GDT


@dataclass(frozen=True)
class Features:
    """Features of n videos, each the mean over its clips: float32 [n, dim]."""

    videos: np.ndarray
    """Rows of the index, int64 [n]."""
    average: np.ndarray
    """Globally average-pooled maps of the last residual block, for few-shot learning."""
    maximum: np.ndarray
    """Globally max-pooled maps of the last residual block, for retrieval."""


def extract(
    model: GDT, index: Index, videos: np.ndarray, clip: Clip, scale: int, clips: int, device: torch.device,
    clips_per_batch: int = 64,
) -> Features:  # fmt: skip
    """Features of `clips` uniform centre-cropped clips of every video, of which the shorter side is `scale` pixels.

    Raises UserError where a video is shorter than a clip, or the model has no video network.
    """
    if not hasattr(model, "video_network"):
        raise UserError("the model was trained without pictures, so it has no features of them; name another")
    starts = index.start_counts(clip.frames, clip.stride)[videos]
    if (starts < 1).any():
        short = index.id[videos[starts < 1]]
        raise UserError(
            f"{len(short)} videos are shorter than a clip of {clip.frames} frames every {clip.stride}-th "
            f"(first: {short[0]}); leave them out or use a shorter clip"
        )
    augmentation = replace(EVALUATION, scale=(scale, scale))
    per_batch = max(1, clips_per_batch // clips)

    def plans() -> Iterator[BatchPlan]:
        for first in range(0, len(videos), per_batch):
            part = slice(first, first + per_batch)
            yield uniform_clips(videos[part], starts[part], clips, clip, augmentation)

    trunk = model.video_network.base.to(device)
    average: list[np.ndarray] = []
    maximum: list[np.ndarray] = []
    bar = tqdm(total=len(videos), unit="video", desc="features", mininterval=1.0, leave=False)
    with Loader(index, plans(), clip, device, Loading()) as loader, torch.inference_mode(), bar:
        for batch in loader:
            maps = trunk.maps(batch.inputs["video"].floats())
            order = torch.from_numpy(np.argsort(batch.plan.columns["leaf"])).to(device)
            for pooled, into in ((maps.mean((2, 3, 4)), average), (maps.amax((2, 3, 4)), maximum)):
                into.append(pooled[order].unflatten(0, (-1, clips)).mean(1).cpu().numpy())
            bar.update(len(batch.plan) // clips)
    return Features(videos, np.concatenate(average), np.concatenate(maximum))
