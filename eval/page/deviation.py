"""The paper's deviation: the standard deviation of normalised features over the clips of a video ("Qualitative
analysis"), beside that over clips of different videos of a class, and of any videos.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from gdt.common.errors import UserError
from gdt.common.randomness import Stream, generator
from gdt.eval.drawing import COLOURS, STYLE, marker, picture
from gdt.eval.similarity import unit
from gdt.pipeline.clips import start_counts, usable
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index, labels_in, names_in
from gdt.train.inference import over_videos
from gdt.train.models.gdt import any_device
from gdt.train.trained import Trained

_CLIPS = 10
"""Clips per video."""
_PER_CLASS = 10
_VIDEOS = 60
"""Most videos of a class and in total."""


@rc_context(STYLE)
def deviation(trained: Trained, index: Index, split: str, modalities: Sequence[str]) -> str:
    """Histograms of a model's deviations on videos of a split, with their medians and those of random weights.

    Those of frames, or of sounds without them. Raises UserError if the split has fewer than two videos with as many
    starts as clips.
    """
    modality = "video" if "video" in modalities else "audio"
    videos = _choose(trained, index, split, modality)
    features, random_features = _features(trained, index, videos, modality)
    deviations = group_deviations(features, index.label[videos])
    random = group_deviations(random_features, index.label[videos])
    largest = max(float(values.max()) for values in deviations.values())
    edges = np.linspace(0, 1.02 * largest or 1.0, 31)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    names = []
    for k, (name, values) in enumerate(deviations.items()):
        share = np.histogram(values, edges)[0] * (100 / len(values))
        axes.stairs(share, edges, color=COLOURS[k], linewidth=1.3)
        axes.plot((edges[share.argmax()] + edges[share.argmax() + 1]) / 2, share.max(), **marker(k))
        medians = f"{np.median(values):.4f} (random weights {np.median(random[name]):.4f})"
        names.append(f"clips of {name}: median {medians}")
    axes.set(xlabel="standard deviation of features, mean over dimensions", ylabel="share, %", ylim=(0, None))
    axes.set_title(f"{len(videos)} videos, {_CLIPS} clips each")
    return picture(figure, names, 1)


def _choose(trained: Trained, index: Index, split: str, modality: str) -> np.ndarray:
    """Random rows of the index, up to ten of a class, of as few classes as fill the plot: int64 [n], ascending."""
    clip = trained.settings.clip
    long_enough = usable(index, clip, [modality]) & (start_counts(index, clip, [modality]) >= _CLIPS)
    order = generator(Stream.FIGURES).permutation(np.flatnonzero((index.split == split) & long_enough))
    if len(order) < 2:
        raise UserError(f"the split '{split}' has {len(order)} videos with {_CLIPS} different starts; hold out more")
    label = index.label[order]
    grouped = [order[label == name][: _PER_CLASS if name else _VIDEOS] for name in dict.fromkeys(label)]
    return np.sort(np.concatenate(grouped)[:_VIDEOS])


def _features(trained: Trained, index: Index, videos: np.ndarray, modality: str) -> list[np.ndarray]:
    """Features of length 1 of uniform, centre-cropped clips, of the model and of random weights: [n, clips, d] each."""
    device = any_device()
    networks = [which.model.trunk(modality).to(device).eval() for which in (trained, trained.untrained())]

    def forward(batch: Batch) -> list[Tensor]:
        return [network(batch.inputs[modality]) for network in networks]

    by_network = over_videos(trained, index, videos, _CLIPS, device, forward, modality)
    return [unit(values).reshape(len(videos), _CLIPS, -1) for values in by_network]


def group_deviations(features: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Deviations [n] over clips of "a video", of "a class" where some videos share one, and of "any videos"."""
    shuffled = features[generator(Stream.FIGURES).permutation(len(features))]
    classes = [features[[name in labels_in(cell) for cell in labels]] for name in names_in(labels)]
    parts = {
        "a video": [features],
        "a class": [mixed(of_class) for of_class in classes if len(of_class) > 1],
        "any videos": [mixed(shuffled)],
    }
    return {name: np.concatenate([spread(clips) for clips in sets]) for name, sets in parts.items() if sets}


def mixed(features: np.ndarray) -> np.ndarray:
    """Sets of clips [n, k, d] of k different videos from those [n, s, d] of each: clip j of video i + j; k <= s, n."""
    n, s, _ = features.shape
    j = np.arange(min(n, s))
    return features[(np.arange(n)[:, None] + j) % n, j]


def spread(features: np.ndarray) -> np.ndarray:
    """Standard deviation (n - 1) over the second axis of [n, s, d], mean over dimensions: float64 [n]."""
    return features.std(1, ddof=1, dtype=np.float64).mean(1)
