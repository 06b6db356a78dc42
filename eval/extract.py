"""What networks make of clips; and features of videos, stored so that they are computed once."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.files import writing
from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import centred
from gdt.pipeline.tree import BatchPlan
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import autocast


def outputs(
    index: Index, plans: Iterable[BatchPlan], clip: Clip, device: torch.device,
    make: Callable[[Batch], Sequence[Tensor]], bar: tqdm[None], per: int = 1,
) -> list[np.ndarray]:  # fmt: skip
    """The tensors that `make` makes of a batch, each joined over the batches of all plans.

    The bar is moved by one for every `per` leaves. Raises UserError where a shard is damaged.
    """
    made: list[list[np.ndarray]] = []
    with Loader(index, plans, clip, device, Loading()) as loader, torch.inference_mode(), autocast(device), bar:
        for batch in loader:
            made.append([value.float().cpu().numpy() for value in make(batch)])
            bar.update(len(batch.plan) // per)
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


@dataclass(frozen=True)
class Features:
    """Features of n videos (section A.5), each the mean over its uniformly spread clips: float32 [n, dim]."""

    videos: np.ndarray
    """Rows of the index, int64 [n], ascending."""
    average: np.ndarray
    """Globally average-pooled maps of the last residual block, for few-shot learning and linear probes."""
    maximum: np.ndarray
    """Globally max-pooled maps of the last residual block, for retrieval."""

    def positions(self, videos: np.ndarray) -> np.ndarray:
        """Where some rows of the index are."""
        return np.searchsorted(self.videos, videos)


def extract(
    trained: Trained, index: Index, videos: np.ndarray, clips: int, device: torch.device, clips_per_batch: int = 64
) -> Features:
    """Features of `clips` uniform centre-cropped clips of every video, by what the model was trained with.

    Raises UserError where the model has no video network.
    """
    if not hasattr(trained.model, "video_network"):
        raise UserError("the model was trained without pictures, so it has no features of them; name another")
    clip, augmentation = trained.settings.clip, centred(trained.settings.augmentation.scale[0])
    index = trained.normalise(index)
    plans = uniform_plans(index, videos, clips, clip, augmentation, crops_per_plan=clips_per_batch)
    trunk = trained.model.video_network.base.to(device)

    def pooled(batch: Batch) -> list[Tensor]:
        maps: Tensor = trunk.maps(batch.inputs["video"].floats()).float()
        return [each.unflatten(0, (-1, clips)).mean(1) for each in (maps.mean((2, 3, 4)), maps.amax((2, 3, 4)))]

    bar = tqdm(total=len(videos), unit="video", desc="features", mininterval=1.0, leave=False)
    return Features(videos, *outputs(index, plans, clip, device, pooled, bar, clips))


def read(path: Path, videos: np.ndarray) -> Features | None:
    """The features in a file; None where there is none, where it is not whole, or where they are of other videos."""
    try:
        with np.load(path) as file:
            found = Features(file["videos"], file["average"], file["maximum"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return found if np.array_equal(found.videos, videos) else None


def _taken(videos: np.ndarray, path: Path, of: np.ndarray) -> Features | None:
    """The features of some videos out of a file with those of others, too; None where it lacks some."""
    if not np.isin(videos, of).all() or (all_of := read(path, of)) is None:
        return None
    places = all_of.positions(videos)
    return Features(videos, all_of.average[places], all_of.maximum[places])


def load_or_extract(
    path: Path, trained: Trained, index: Index, videos: np.ndarray, clips: int, device: torch.device,
    whole: tuple[Path, np.ndarray] | None = None,
) -> Features:  # fmt: skip
    """The features in a file, if they are those of these videos; else they are extracted, and the file is written.

    What model, data and clips the file is of is for its name to say. They are taken out of `whole`, another file and
    its videos, instead of extracted where it has them all.
    """
    if (found := read(path, videos)) is not None:
        return found
    features = _taken(videos, *whole) if whole else None
    features = features or extract(trained, index, videos, clips, device)
    with writing(path) as file:
        np.savez(file, videos=features.videos, average=features.average, maximum=features.maximum)
    return features
