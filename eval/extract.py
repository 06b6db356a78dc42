"""Features of videos for evaluation, cached in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gdt.common.errors import UserError
from gdt.common.files import DAMAGE, require_readable, writing
from gdt.eval.results import key_of
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.train.inference import over_videos
from gdt.train.models.gdt import as_floats
from gdt.train.trained import Trained

_VERSION = 6
"""Of features; increase it when they change, and those of the protocols that use them."""
_GROUP = 128
"""Least videos whose features are extracted before they are written."""


@dataclass(frozen=True)
class PooledFeatures:
    """Features of n videos (section A.3.6), averaged over uniform clips: float32 [n, dim]."""

    videos: np.ndarray
    """Rows of the index, int64 [n], ascending."""
    average: np.ndarray
    """Average-pooled output of the last residual block, for few-shot learning and linear probes."""
    maximum: np.ndarray
    """Max-pooled output of the last residual block, for retrieval."""

    def positions(self, videos: np.ndarray) -> np.ndarray:
        """Positions of rows of the index among these features. Raises UserError if some are not there."""
        lacking = len(np.setdiff1d(videos, self.videos))
        if lacking:
            raise UserError(f"there are no features of {lacking} of the {len(videos)} videos; evaluate again")
        return np.searchsorted(self.videos, videos)


def extract(
    trained: Trained, index: Index, videos: np.ndarray, clips: int, device: torch.device, modality: str = "video"
) -> PooledFeatures:
    """Features of `clips` uniform clips per video, centre-cropped, from the network of a modality, video or audio.

    Raises UserError if the model has no such network.
    """
    require_network(trained, modality)
    backbone = trained.model.backbone(modality).to(device)

    def pooled(batch: Batch) -> list[Tensor]:
        with torch.autocast(device.type, enabled=False):  # stored features are of float32 pixels
            inputs = as_floats(batch.inputs[modality])
        maps = backbone.maps(inputs).float()
        inner = tuple(range(2, maps.ndim))
        average = maps.mean(inner).unflatten(0, (-1, clips)).mean(1)
        maximum = maps.amax(inner).unflatten(0, (-1, clips)).mean(1)
        return [average, maximum]

    return PooledFeatures(videos, *over_videos(trained, index, videos, clips, device, pooled, modality))


def require_network(trained: Trained, modality: str, option: str = "--modalities") -> None:
    """Raise UserError if a model has no network for a modality, which `option` names."""
    if modality not in trained.model.modalities:
        others = [name for name in trained.model.modalities if name != "text"]
        instead = f", or {option} to {' '.join(others)}" if others else ""
        raise UserError(
            f"the model was trained without {modality}, so it has no {modality} features; set --ckpt to another"
            f"{instead}"
        )


def features_file(weights: str, data: str, clips: int, device: str, modality: str) -> str:
    """The name of a file of features, by all that decides them; `weights` is the digest of the model, `data` the
    fingerprint of the shards.
    """
    decisive = {"version": _VERSION, "weights": weights, "data": data, "clips": clips, "device": device}
    return f"features-{modality}-{key_of(decisive)}.npz"


def cached_features(path: Path, videos: np.ndarray, compute: Callable[[np.ndarray], PooledFeatures]) -> PooledFeatures:
    """Features of at least these videos from a file, whose name must identify model, data and clips.

    Those that it lacks are computed and added to it group by group, so that a killed run loses one at most.
    """
    known = read(path)
    missing = np.setdiff1d(videos, known.videos) if known else np.unique(videos)
    path.parent.mkdir(parents=True, exist_ok=True)
    while len(missing) or known is None:
        # the file is written whole, so the more it has, the more are added at once
        group, missing = np.split(missing, [max(_GROUP, len(known.videos) // 8 if known else 0)])
        features = compute(group)
        if known:
            order = np.argsort(np.concatenate([known.videos, group]))
            average = np.concatenate([known.average, features.average])[order]
            maximum = np.concatenate([known.maximum, features.maximum])[order]
            features = PooledFeatures(np.concatenate([known.videos, group])[order], average, maximum)
        with writing(path) as file:
            np.savez(file, videos=features.videos, average=features.average, maximum=features.maximum)
        known = features
    return known


def read(path: Path) -> PooledFeatures | None:
    """Read a file of features; None if it is missing or damaged. Raises UserError if the disk or permissions fail."""
    try:
        with np.load(path) as file:
            return PooledFeatures(file["videos"], file["average"], file["maximum"])
    except (OSError, *DAMAGE) as error:
        require_readable(path, error)
        return None
