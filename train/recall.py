"""Cross-modal recall among held-out videos, which needs no labels."""

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.pipeline.clips import uniform_plans, usable
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.cache import Cache
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.word2vec import WordVectors
from gdt.train.experiment import Experiment
from gdt.train.health import measures
from gdt.train.inference import over_clips
from gdt.train.models.gdt import GDT
from gdt.train.trained import Trained

KS = (1, 5, 10)
_PROBE_VIDEOS = 256
"""Maximum number of videos of a probe."""
_PROBE_CLIPS = 2
"""Clips per video of a probe."""


class Embedded(NamedTuple):
    """Embeddings of n videos."""

    videos: np.ndarray
    """Rows of the index, int64 [n]."""
    embeddings: dict[str, torch.Tensor]
    """By modality, the mean over the clips, of length 1: float32 [n, d]."""


def embed_videos(
    trained: Trained,
    index: Index,
    videos: np.ndarray,
    clips: int,
    device: torch.device,
    modalities: Sequence[str],
    words: WordVectors | None = None,
    loading: Loading = Loading(),
    cache: Cache | None = None,
) -> Embedded:
    """Mean embeddings over `clips` uniform centre-cropped clips of each video; all have these modalities.

    Leaves the model on the device, in evaluation mode. With text, skips videos whose clips all lack captions.
    """
    order = [name for name in MODALITIES if name in modalities]
    plans = uniform_plans(index, videos, clips, trained.inputs, modalities=order)
    model = trained.model.to(device).eval()

    def summed(batch: Batch) -> list[torch.Tensor]:
        """Sums over the clips of a video, of each modality, and how many clips they are of."""
        counted = batch.table.get("usable", torch.ones(len(batch.plan), device=device)).float()
        weights = [part.unflatten(0, (-1, clips)) for part in counted.chunk(len(order))]
        embeddings = [
            model.embed(name, inputs).float().unflatten(0, (-1, clips)) for name, inputs in batch.inputs.items()
        ]
        sums = [(values * part[..., None]).sum(1) for values, part in zip(embeddings, weights, strict=True)]
        return [*sums, *(part.sum(1) for part in weights)]

    parts = over_clips(index, plans, trained.inputs, device, summed, loading=loading, words=words, cache=cache)
    sums = {name: torch.from_numpy(values) for name, values in zip(order, parts, strict=False)}
    if not all(bool(value.isfinite().all()) for value in sums.values()):
        raise UserError(
            "embeddings contain NaN or infinity: the weights are damaged, or training has diverged; use another "
            "checkpoint, or train with a lower learning rate"
        )
    # embeddings of 0, of a network that has died, count
    valid = torch.from_numpy(np.all(parts[len(order) :], axis=0))
    means = {name: functional.normalize(value[valid], dim=1) for name, value in sums.items()}
    return Embedded(videos[valid.numpy()], means)


def places(query: torch.Tensor, gallery: torch.Tensor, at_once: int = 1024) -> torch.Tensor:
    """Place of each query's own row in the gallery by inner product, both [n, d]: int64 [n], 0 for the nearest.

    In ties, the own row comes last.
    """
    parts = []
    for first in range(0, len(query), at_once):
        similarity = query[first : first + at_once] @ gallery.T
        own = similarity.diagonal(first)[:, None]
        parts.append((similarity >= own).sum(1) - 1)
    return torch.cat(parts)


class Probe:
    """Measures cross-modal recall and collapse on a fixed set of held-out videos during training."""

    def __init__(self, experiment: Experiment, index: Index, device: torch.device) -> None:
        """`videos` stays empty if fewer than two are held out."""
        settings = experiment.settings
        self._experiment = experiment
        self._index = index
        self._device = device
        self._modalities = experiment.composition.modalities
        splits = [split for split in ("val", "test") if split != settings.split and (index.split == split).any()]
        self.split = splits[0] if splits else "val"
        held_out = np.flatnonzero((index.split == self.split) & usable(index, settings.clip, self._modalities))
        # at random, since the first ids may be of few classes
        chosen = generator(Stream.PROBE).permutation(held_out)[:_PROBE_VIDEOS]
        self.videos = np.sort(chosen) if len(chosen) > 1 else chosen[:0]

    def require_videos(self) -> None:
        """Raise UserError if too few videos are held out."""
        if not len(self.videos):
            raise UserError(
                f"--probe-every needs 2 videos with {' and '.join(self._modalities)} in the split '{self.split}' of "
                f"{self._index.folder}; leave it out, or preprocess again with --val 0.05 and start a new run"
            )

    def __call__(self, model: GDT, cache: Cache | None = None) -> dict[str, float]:
        """R@k in percent by query modality, gallery modality and k, measures of collapse, and the number of videos.

        Empty if no two videos have clips of all modalities: words may lie between the clips.
        """
        experiment = self._experiment
        settings = experiment.settings
        embedded = embed_videos(
            Trained(model, experiment.record),
            self._index,
            self.videos,
            _PROBE_CLIPS,
            self._device,
            self._modalities,
            experiment.words,
            settings.loading,
            cache,
        )
        if len(embedded.videos) < 2:
            return {}
        recall = {
            f"{query} to {gallery} R@{k}": 100 * float(right.mean())
            for (query, gallery, k), right in hits(embedded.embeddings).items()
        }
        return recall | measures(embedded.embeddings) | {"videos": float(len(embedded.videos))}


def hits(embeddings: dict[str, torch.Tensor], ks: Sequence[int] = KS) -> dict[tuple[str, str, int], np.ndarray]:
    """Whether the own row is among the k nearest, bool [n], by query modality, gallery modality and k."""
    right: dict[tuple[str, str, int], np.ndarray] = {}
    for query, gallery in permutations(embeddings, 2):
        place = places(embeddings[query], embeddings[gallery]).numpy()
        right |= {(query, gallery, k): place < k for k in ks}
    return right
