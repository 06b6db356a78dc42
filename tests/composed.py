"""Compositions of presets, the counts of their batches, and inputs of models."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from gdt.pipeline.composition import Composition, Contrast, Factor
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Clip
from gdt.pipeline.notation import parse
from gdt.pipeline.presets import preset
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augmentation


def composed(name: str, videos: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The composition of a preset."""
    return parse(preset(name).factors, videos, augmentation)


def inputs_of(index: Index, clip: Clip, augmentation: Augmentation = Augmentation()) -> Inputs:
    """Those of a model that is trained on these shards."""
    return Inputs(clip, augmentation, index.statistics)


class Counts(NamedTuple):
    """Counts of a batch (lemmas of A.1.2)."""

    leaves: int
    """|T| = prod K_m."""
    positives: int
    """Pairs (T, T') with c = 1 and T != T'."""
    negatives_per_leaf: int
    """T'' with c(T, T'') = 0, for every T."""


def counts(factors: Sequence[Factor]) -> Counts:
    """Counts of a batch from the K_m (lemmas of A.1.2)."""
    leaves = prod(factor.k for factor in factors)
    invariant = prod(factor.k for factor in factors if factor.contrast is Contrast.INVARIANT)
    return Counts(leaves, leaves * (invariant - 1), leaves - invariant)
