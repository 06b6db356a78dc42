"""How many pairs of a batch differ in one factor only (section A.1.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from gdt.eval.show_tree import toy
from gdt.pipeline.composition import Composition, Weight
from gdt.pipeline.transformations.base import Draw
from gdt.pipeline.tree import sample

_BATCHES = 10


@dataclass(frozen=True)
class Contrasts:
    """Ordered pairs (T, T') of a batch that differ in one factor: means over batches."""

    preset: str
    factor: str
    """As typed: name, d(istinctive) or i(nvariant), K."""
    differ: float
    """Pairs that differ in the factor."""
    only: float
    """Pairs that differ in the factor and agree in every other one."""
    nearly: float
    """Like `only`, but ignoring factors in which all leaves differ, such as augmentation."""
    weighted: float
    """Pairs of `nearly` with w = 1, which the loss uses."""
    required: float
    """Pairs with w = 1 that differ in the factor and in those with `:differs`, and agree in the rest as in `nearly`."""


def mean_contrasts(preset: str, composition: Composition, seed: int) -> list[Contrasts]:
    """Contrasts of every factor with K > 1: means over ten batches of 10 s videos, as branches may agree by chance."""
    source = toy(composition).source
    draws = [Draw(seed, epoch, 0) for epoch in range(_BATCHES)]
    batches = [
        count_contrasts(composition, sample(composition.factors, source, draw.generator(), draw)) for draw in draws
    ]
    return [
        Contrasts(preset, f"{f.name}:{f.contrast.value[0]}:{f.k}", *np.mean([b[f.name] for b in batches], 0).tolist())
        for f in composition.factors
        if f.k > 1
    ]


def count_contrasts(composition: Composition, columns: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    """The counts of `Contrasts` by factor, in one batch given by its factor values, int64 [n] each."""
    factors = composition.factors
    n = len(columns["leaf"])
    unequal = {f.name for f in factors if len(np.unique(columns[f.name])) == n}
    required = {f.name for f in factors if f.weight is Weight.DIFFERS}
    names = {f.name for f in factors}

    def pairs(differ: set[str], ignored: set[str]) -> int:
        """Ordered pairs that differ in all of some factors and agree in the others, except those ignored."""
        agree = names - differ - ignored
        subsets = chain.from_iterable(combinations(sorted(differ), size) for size in range(len(differ) + 1))
        return sum((-1) ** len(some) * _agreeing(columns, agree | set(some), n) for some in subsets)

    counts = {}
    for own in ({f.name} for f in factors if f.k > 1):
        with_required = pairs(own | required, unequal - own - required)
        weighted = with_required if required <= own else 0
        counts[min(own)] = [pairs(own, names), pairs(own, set()), pairs(own, unequal - own), weighted, with_required]
    return counts


def _agreeing(columns: Mapping[str, np.ndarray], names: Iterable[str], n: int) -> int:
    """Ordered pairs of leaves, including T = T', that agree in some factors."""
    group = np.zeros(n, np.int64)
    for name in names:
        value = np.unique(columns[name], return_inverse=True)[1]
        group = np.unique(group * (value.max() + 1) + value, return_inverse=True)[1]  # renumbered, so never overflows
    return int((np.bincount(group).astype(np.int64) ** 2).sum())
