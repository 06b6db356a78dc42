"""Streams of random numbers, one for each purpose; no two coincide."""

import hashlib
from enum import StrEnum, auto

import numpy as np


class Stream(StrEnum):
    """The purpose of random numbers; each docstring lists the numbers that identify a stream of that purpose."""

    EPOCH = auto()
    """Order of the videos: seed, epoch."""
    BATCH = auto()
    """Plan of a batch: seed, epoch, batch."""
    GROUPS = auto()
    """Batch-norm groups: seed, epoch, batch, modality."""
    DROPOUT = auto()
    """Dropout masks: seed, step."""
    PROBE = auto()
    """Held-out videos that are probed while training."""
    FINETUNING = auto()
    """Initial weights of the classifier: seed, fold, and the constant 2**20."""
    FINETUNING_DROPOUT = auto()
    """Dropout masks of finetuning: seed, fold, epoch, batch."""
    FINETUNING_CLIPS = auto()
    """Clips of an epoch: seed, fold, epoch."""
    FINETUNING_VIDEOS = auto()
    """Subset of the training videos: seed, fold."""
    SHOTS = auto()
    """Few-shot galleries: seed."""
    FACTOR_VIDEOS = auto()
    """Videos of the factor probes: seed."""
    FACTOR_FOLDS = auto()
    """Cross-validation: seed."""
    FACTOR_DRAWS = auto()
    """Transformations of the probed clips: seed."""
    MOMENTS = auto()
    """Synthetic videos: seed, split, action, number; a fifth number, 1, for identity and later actions."""
    FIGURES = auto()
    """Videos in the report."""


def seed_sequence(stream: Stream, *numbers: int) -> np.random.SeedSequence:
    """The seeds of a stream.

    numpy pads seeds with zeros and splits large ones: SeedSequence([s, e]) equals [s, e, 0], and [2**32] equals
    [0, 1]. Hashing the text keeps them distinct.
    """
    text = " ".join([stream, *(str(int(number)) for number in numbers)])
    return np.random.SeedSequence(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def generator(stream: Stream, *numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed_sequence(stream, *numbers)))
