"""The paper's deviation: the standard deviation of normalised features over the clips of a video ("Qualitative
analysis"), beside that over clips of different videos of a class, and of any videos.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError
from gdt.common.streams import Stream, generator
from gdt.eval.extract import outputs, require_network
from gdt.eval.retrieval import unit
from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.train.models.gdt import any_device
from gdt.train.trained import Trained

CLIPS = 10
"""Clips per video."""
_PER_CLASS, _VIDEOS = 10, 60
"""Most videos of a class and in total."""


@dataclass(frozen=True)
class Deviation:
    """Deviations over clips of a video, of a class where some videos share one, and of any videos: float64 [n] each."""

    videos: int
    own: dict[str, np.ndarray]
    """Of a model, by "a video", "a class" and "any videos"."""
    random: dict[str, np.ndarray]
    """Of random weights of its network."""


def deviation(trained: Trained, index: Index, split: str) -> Deviation:
    """Deviations of a model's video features on some videos of a split.

    Raises UserError if the model has no video network, or the split fewer than two videos with as many starts as clips.
    """
    require_network(trained, "video")
    videos = _choose(trained, index, split)
    own, random = (_groups(values, index.label[videos]) for values in _features(trained, index, videos))
    return Deviation(len(videos), own, random)


def _choose(trained: Trained, index: Index, split: str) -> np.ndarray:
    """Random rows of the index, up to ten of a class, of as few classes as fill the plot: int64 [n], ascending."""
    clip = trained.settings.clip
    long_enough = index.start_counts(clip.frames, clip.stride) >= CLIPS
    order = generator(Stream.FIGURES).permutation(np.flatnonzero((index.split == split) & long_enough))
    classes = dict.fromkeys(index.label[order])
    grouped = [order[index.label[order] == name][: _PER_CLASS if name else _VIDEOS] for name in classes]
    videos = np.sort(np.concatenate([np.zeros(0, np.int64), *grouped])[:_VIDEOS])
    if len(videos) < 2:
        raise UserError(f"the split '{split}' has {len(videos)} videos with {CLIPS} different starts; hold out more")
    return videos


def _features(trained: Trained, index: Index, videos: np.ndarray) -> list[np.ndarray]:
    """Features of length 1 of uniform, centre-cropped clips, of the model and of random weights: [n, clips, d] each."""
    clip, crop, device = trained.settings.clip, centred(trained.settings.augmentation.scale[0]), any_device()
    networks = [each.model.video_network.to(device).eval() for each in (trained, trained.untrained())]

    def forward(batch: Batch) -> list[Tensor]:
        return [network(batch.inputs["video"]).unflatten(0, (-1, CLIPS)) for network in networks]

    bar = tqdm(total=len(videos), unit="video", desc="deviation", mininterval=1.0, leave=False)
    plans = uniform_plans(index, videos, CLIPS, clip, crop)
    found = outputs(trained.normalise(index), plans, clip, device, forward, bar, CLIPS)
    return [unit(each.reshape(-1, each.shape[-1])).reshape(each.shape) for each in found]


def _groups(features: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Deviations over the clips of each video, of videos of a class where some share one, and of any videos."""
    everything = np.arange(len(features))
    classes = [np.flatnonzero(labels == name) for name in sorted(set(labels) - {""})]
    groups = {"a video": [features], "a class": [mixed(features[rows]) for rows in classes if len(rows) > 1]}
    groups["any videos"] = [mixed(features[generator(Stream.FIGURES).permutation(everything)])]
    return {name: np.concatenate([spread(each) for each in parts]) for name, parts in groups.items() if parts}


def mixed(features: np.ndarray) -> np.ndarray:
    """Sets of clips [n, k, d] of k different videos from those [n, s, d] of each: clip j of video i + j; k <= s, n."""
    n, s, _ = features.shape
    j = np.arange(min(n, s))
    return features[(np.arange(n)[:, None] + j) % n, j]


def spread(features: np.ndarray) -> np.ndarray:
    """Standard deviation (n - 1) over the second axis of [n, s, d], mean over dimensions: float64 [n]."""
    return features.std(1, ddof=1, dtype=np.float64).mean(1)
