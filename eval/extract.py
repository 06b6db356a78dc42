"""Outputs of networks on videos, and features cached in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.files import DAMAGE, require_readable, require_space, writing
from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.tree import BatchPlan
from gdt.train.models.gdt import as_floats, autocast
from gdt.train.trained import Trained


def outputs(
    index: Index,
    plans: Iterable[BatchPlan],
    inputs: Inputs,
    device: torch.device,
    compute: Callable[[Batch], Sequence[Tensor]],
    bar: tqdm[None],
    per: int = 1,
) -> list[np.ndarray]:
    """The tensors that `compute` returns, each concatenated over the batches of all plans.

    The bar advances by one for every `per` leaves. Raises UserError if a shard is damaged.
    """
    parts: list[list[np.ndarray]] = []
    with Loader(index, plans, inputs, device) as loader, torch.inference_mode(), autocast(device), bar:
        for batch in loader:
            parts.append([value.float().cpu().numpy() for value in compute(batch)])
            bar.update(len(batch.plan) // per)
    return [np.concatenate(batches) for batches in zip(*parts, strict=True)]


def uniform_outputs(
    trained: Trained,
    index: Index,
    videos: np.ndarray,
    clips: int,
    device: torch.device,
    compute: Callable[[Batch], Sequence[Tensor]],
    modality: str = "video",
) -> list[np.ndarray]:
    """The `outputs` of `clips` uniform clips per video, centre-cropped, of one modality."""
    at_once = 64 if device.type == "cuda" else 16  # on a CPU, more would only move the bar less often
    plans = uniform_plans(index, videos, clips, trained.inputs, [modality], at_once)
    bar = tqdm(total=len(videos), unit="video", desc=f"{modality} features", mininterval=1.0, leave=False)
    return outputs(index, plans, trained.inputs, device, compute, bar, clips)


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

    return PooledFeatures(videos, *uniform_outputs(trained, index, videos, clips, device, pooled, modality))


def require_network(trained: Trained, modality: str, option: str = "--modalities") -> None:
    """Raise UserError if a model has no network for a modality, which `option` names."""
    if modality not in trained.model.modalities:
        others = [name for name in trained.model.modalities if name != "text"]
        instead = f", or {option} to {' '.join(others)}" if others else ""
        raise UserError(
            f"the model was trained without {modality}, so it has no {modality} features; set --ckpt to another"
            f"{instead}"
        )


def cached_features(
    path: Path,
    trained: Trained,
    index: Index,
    videos: np.ndarray,
    clips: int,
    device: torch.device,
    modality: str = "video",
) -> PooledFeatures:
    """Features of at least these videos from a file, whose name must identify model, data and clips.

    Those that it lacks are extracted and added to it.
    """
    known = read(path)
    missing = np.setdiff1d(videos, known.videos) if known else np.unique(videos)
    if not len(missing) and known:
        return known
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(missing) + (len(known.videos) if known else 0)
    require_space(path, 2 * 4 * count * trained.model.backbone(modality).dim)
    features = extract(trained, index, missing, clips, device, modality=modality)
    if known:
        order = np.argsort(np.concatenate([known.videos, missing]))
        average = np.concatenate([known.average, features.average])[order]
        maximum = np.concatenate([known.maximum, features.maximum])[order]
        features = PooledFeatures(np.concatenate([known.videos, missing])[order], average, maximum)
    with writing(path) as file:
        np.savez(file, videos=features.videos, average=features.average, maximum=features.maximum)
    return features


def read(path: Path) -> PooledFeatures | None:
    """Read a file of features; None if it is missing or damaged. Raises UserError if the disk or permissions fail."""
    try:
        with np.load(path) as file:
            return PooledFeatures(file["videos"], file["average"], file["maximum"])
    except (OSError, *DAMAGE) as error:
        require_readable(path, error)
        return None
