"""A run with everything decided: `resolve` makes it once, from settings, shards and device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.notation import TRANSFORMATIONS, Transformations
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.tree import Tree, sampling_tree
from gdt.pipeline.word2vec import WordVectors
from gdt.train.models.network import Architecture, Network, OwnNetwork
from gdt.train.record import Record
from gdt.train.schedule import Schedule
from gdt.train.settings import SIZES, Pretrain, RunSettings

if TYPE_CHECKING:  # slow to import, and compositions need only the settings
    import torch

    from gdt.train.models.own import Maker, Makers
    from gdt.train.trained import Trained

_SMALLEST_GROUP = 8
"""The fewest videos of a group that are chosen by default."""
_FPS = 30
"""Frames per second for which the stride of a size is given."""
_SHORT = 0.05
"""Share of the videos that may be shorter than a clip."""
_ROOM = 0.9
"""Length of a clip that would be too long, relative to the shortest of the other videos: starts can vary."""


@dataclass(frozen=True)
class Experiment:
    """All that decides the numbers of a run."""

    record: Record
    """That of the run before its first step: it holds the settings, without the Python file of the factors."""
    tree: Tree
    words: WordVectors | None = None
    """Word vectors of the shards; None without text."""
    makers: Mapping[str, Maker] = field(default_factory=dict)
    """Those of networks of the user's own, by modality."""
    start: Trained | None = None
    """The model of --init."""

    @property
    def settings(self) -> RunSettings:
        return self.record.settings

    @property
    def inputs(self) -> Inputs:
        """With the normalisation of the shards or of --init."""
        return self.record.inputs

    @property
    def schedule(self) -> Schedule:
        s = self.settings
        return Schedule(s.optimization, s.batch_size, self.tree.batches_per_epoch, self.record.steps)

    @property
    def composition(self) -> Composition:
        return self.tree.composition


def resolve(
    settings: Pretrain,
    index: Index,
    device: torch.device,
    earlier: RunSettings | None = None,
    start: Trained | None = None,
    given: Makers = MappingProxyType({}),
    say: Callable[[str, str], None] = lambda name, text: None,
) -> Experiment:
    """Fill in the defaults that decide numbers, and make what a run consists of.

    `earlier` are the settings of the run to resume, whose batch and groups are the defaults. `start` is the model of
    --init, `given` the networks of the user's own. `say` gets the names and texts of lines that describe the run. Reads
    the files that the settings name, and runs that of --factors-from. Raises UserError if they do not fit each other,
    the shards or the device.
    """
    if settings.factors_from and not settings.factors:
        raise UserError("--factors-from has no effect on a preset; set --factors")
    transformations, checksum = notation.read_transformations(settings.factors_from)
    batch_size, group_size = _given(settings, earlier)
    composition = compose(settings, transformations, batch_size or 2)
    settings = replace(settings, clip=fitted_clip(settings, index, composition.reach, earlier))
    words = _words_of(settings, composition, index)
    # which videos are usable does not depend on the batch size, which depends on them
    tree = tree_of(settings, composition, index, lambda text: say("data", text))
    batch_size, group_size = fitted(
        SIZES[settings.size], batch_size, group_size, len(tree.pool.videos), _memory(device)
    )
    composition = compose(settings, transformations, batch_size)
    tree = replace(tree, composition=composition)
    if start is not None and words is not None:
        start.require_same_words(words, settings.init or "the model", str(settings.word2vec))
    network, own = architecture(settings.network, given, composition, settings.clip, device, words, start)
    for modality, own_network in network.own.items():
        say(modality, str(own_network))
    if settings.precision == "bfloat16" and device.type != "cuda":
        raise UserError("--precision bfloat16 needs a GPU: on CPUs, torch's bfloat16 gradients are wrong")
    filled = RunSettings.of(
        settings,
        cuda=device.type == "cuda",
        dataset=settings.dataset_name,
        factors_from=None,
        batch_size=batch_size,
        group_size=group_size,
        network=network,
    )
    if start is not None and "video" in composition.modalities:
        start.inputs.warn_of_other_rate(index)
    record = Record(
        filled,
        _statistics(index.statistics, start),
        index.fps,
        fingerprint=fingerprint(index),
        words=words.checksum if words else "",
        factors=checksum,
        start=start.digest() if start else "",
        steps=steps_of(filled, tree.batches_per_epoch),
    )
    return Experiment(record, tree, words, own, start)


def _statistics(here: Statistics, start: Trained | None) -> Statistics:
    """The normalisation of the modalities that the model of --init has, and that of the shards for the others."""
    pixels, sound = (start.inputs.statistics if start and m in start.model.modalities else here for m in MODALITIES[:2])
    return replace(pixels, mel_mean=sound.mel_mean, mel_std=sound.mel_std)


def compose(settings: Pretrain, known: Transformations = TRANSFORMATIONS, batch_size: int = 0) -> Composition:
    """The factors of a batch, of known transformations, by default with the planned number of videos."""
    factors = settings.factors or presets.preset(settings.preset).factors
    return notation.parse(factors, batch_size or settings.planned_batch_size, settings.augmentation, known)


def tree_of(
    settings: Pretrain, composition: Composition, index: Index, say: Callable[[str], None] = lambda text: None
) -> Tree:
    """The sampling tree over these shards; `say` gets their number of videos. Raises UserError if too few."""
    return sampling_tree(index, composition, settings.clip, settings.split, settings.seed, say, settings.shuffle_shards)


def steps_of(settings: Pretrain, batches_per_epoch: int) -> int:
    """The length of a run."""
    return settings.planned_epochs * batches_per_epoch or settings.steps


def fitted_clip(settings: Pretrain, index: Index, reach: float = 1.0, earlier: RunSettings | None = None) -> Clip:
    """The clip, with lengths that are not set as long as the size's at the frame rate of the shards, or shorter.

    If one in twenty videos is shorter than `reach` times that, nine tenths of it. Those of the run to resume stay.
    """
    size = SIZES[settings.size].clip
    clip = earlier.clip if earlier else _within(size, index, settings.split, reach)
    lengths = {name: getattr(clip, name) for name in ("frames", "stride", "mel_frames")}
    unset = {name: value for name, value in lengths.items() if getattr(settings.clip, name) == getattr(size, name)}
    return replace(settings.clip, **unset)


def _within(clip: Clip, index: Index, split: str, reach: float) -> Clip:
    """A clip for 30 frames/s at the rate of the index, `reach` times as long as which most videos of a split are."""
    clip = replace(clip, stride=max(1, round(clip.stride * index.fps / _FPS)))
    videos = index.split == split
    frames = index.length[videos] / index.fps
    sound = index.mel_count[videos] / MEL_RATE
    seconds = np.quantile(np.where(sound > 0, np.minimum(frames, sound), frames), _SHORT) if videos.any() else math.inf
    seconds /= reach
    if seconds >= max(clip.frames * clip.stride / index.fps, clip.mel_frames / MEL_RATE):
        return clip
    seconds *= _ROOM
    most = int(seconds * index.fps)
    stride = max(1, min(clip.stride, round(most / clip.frames)))
    return replace(
        clip,
        frames=max(1, min(clip.frames, (most - 1) // stride + 1)),
        stride=stride,
        mel_frames=max(1, min(clip.mel_frames, int(seconds * MEL_RATE) - 1)),
    )


def _given(settings: Pretrain, earlier: RunSettings | None) -> tuple[int, int | None]:
    """Batch and group as they are set, or those of the run to resume; 0 and None if neither decides."""
    batch_size = settings.fixed_batch_size
    group_size = settings.group_size if settings.is_set("group_size") else None
    if earlier:
        batch_size = batch_size or earlier.batch_size
        group_size = earlier.group_size if group_size is None else group_size
    return batch_size, group_size


def fitted(size: Pretrain, batch_size: int, group_size: int | None, videos: int, memory: int) -> tuple[int, int]:
    """Batch and group of a size, lowered to the `videos` that can be used and a GPU's `memory` in bytes (0: a CPU).

    A batch size that is not 0, and a group size that is not None, are set and stay. A clip of the paper's size keeps
    about 0.45 GiB in bfloat16. Raises UserError if a batch that is set does not divide into groups.
    """
    batch = batch_size or min(size.batch_size, videos)
    most = size.group_size if group_size is None else group_size
    if not batch_size:
        batch = batch - batch % max(1, most) or batch
    if group_size is not None or not most:
        return batch, most
    if memory and memory < 40e9:
        most = 32 if memory >= 20e9 else 16
    while not _group_of(batch, most) and not batch_size:
        batch -= 1
    group = _group_of(batch, most)
    if group:
        return batch, group
    others = [n for n in range(batch - _SMALLEST_GROUP, batch + _SMALLEST_GROUP + 1) if n <= videos]
    divided = [n for n in others if _group_of(n, most)]
    near = {max((n for n in divided if n < batch), default=0), min((n for n in divided if n > batch), default=0)} - {0}
    raise UserError(
        f"{batch} videos do not make groups of {_SMALLEST_GROUP} to {most}; set --batch-size to "
        f"{' or '.join(map(str, sorted(near)))}, or --group-size to 0, for one pass"
    )


def _group_of(batch: int, most: int) -> int:
    """The largest group up to `most` that divides a batch, if it is not too small; 0 if there is none."""
    group = next(group for group in range(min(most, batch), 0, -1) if batch % group == 0)
    return group if group >= _SMALLEST_GROUP or group == batch else 0


def architecture(
    network: Network,
    given: Makers,
    composition: Composition,
    clip: Clip,
    device: torch.device,
    words: WordVectors | None = None,
    start: Trained | None = None,
) -> tuple[Architecture, dict[str, Maker]]:
    """The networks of a run, those of the user's own checked, and their makers; text padding as in `start`.

    Raises UserError for a network that has no effect.
    """
    from gdt.train.models.inspection import check_network

    checked: dict[str, OwnNetwork] = {}
    makers: dict[str, Maker] = {}
    for modality, (maker, *others) in given.items():
        if others:
            raise UserError(f"a run has one network per modality; {modality} has {1 + len(others)}")
        if modality not in composition.modalities:
            raise UserError(f"--{modality}-network has no effect: '{composition}' has no {modality}")
        checked[modality] = check_network(modality, maker, clip, device)
        makers[modality] = maker
    values = network.sizes | {
        **checked,
        "word_dimensions": words.dimensions if words else 0,
        "text_padding": bool(words and start and start.model.network.text_padding),
    }
    return Architecture(**values), makers


def _memory(device: torch.device) -> int:
    """Bytes of a GPU; 0 for a CPU."""
    import torch

    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def _words_of(settings: Pretrain, composition: Composition, index: Index) -> WordVectors | None:
    """Word vectors of these shards; None without text. Raises UserError if they do not fit."""
    if "text" in composition.modalities:
        return WordVectors.of(index, settings.word2vec)
    if settings.word2vec:
        raise UserError(f"--word2vec has no effect: '{composition}' has no text; leave it out")
    return None
