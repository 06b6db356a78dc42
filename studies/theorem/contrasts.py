"""How many pairs of a real batch differ in one factor alone: the limitation of section A.2, counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from gdt.eval.show_tree import toy
from gdt.pipeline.composition import Composition
from gdt.pipeline.factors import Weight
from gdt.pipeline.transformations.base import Draw
from gdt.pipeline.tree import sample

_BATCHES = 10
"""Whose counts are averaged: two branches may draw the same value by chance."""


@dataclass(frozen=True)
class Contrasts:
    """Ordered pairs (T, T') of a batch that differ in one factor: means over batches."""

    composition: str
    """Its name."""
    factor: str
    contrast: str
    k: int
    differ: float
    """Pairs with t_m != t'_m."""
    alone: float
    """Of these, pairs that agree in every other factor."""
    but_for: float
    """The same, apart from factors whose values are never the same in two leaves, as augmentations."""
    weighed: float
    """Of `but_for`, pairs with w = 1, which the loss looks at."""
    beside: float
    """Pairs with w = 1 that differ, besides, in the factors in which w asks for it; apart from the same factors."""
    never_agree: tuple[str, ...]
    """The factors that `but_for` and what follows it leave aside."""


def counted(name: str, composition: Composition, seed: int) -> list[Contrasts]:
    """Of each factor that is varied, in batches of a composition from videos of 10 s."""
    source = toy(composition).source
    batches = []
    for epoch in range(_BATCHES):
        draw = Draw(seed, epoch, 0)
        batches.append(contrasts(name, composition, sample(composition.factors, source, draw.generator(), draw)))
    found = []
    for of_factor in zip(*batches, strict=True):
        means = {
            field: float(np.mean([getattr(one, field) for one in of_factor]))
            for field in ("differ", "alone", "but_for", "weighed", "beside")
        }
        found.append(Contrasts(**{**vars(of_factor[0]), **means}))
    return found


def contrasts(name: str, composition: Composition, columns: Mapping[str, np.ndarray]) -> list[Contrasts]:
    """The same of one batch, given by its factor values, int64 [n] each."""
    factors = composition.factors
    n = len(columns["leaf"])
    aside = {f.name for f in factors if len(np.unique(columns[f.name])) == n}
    asked = {f.name for f in factors if f.weight is Weight.DIFFERS}
    names = {f.name for f in factors}

    def pairs(differ: set[str], ignored: set[str]) -> int:
        """Ordered pairs that differ in every one of some factors and agree in those that are not ignored."""
        agree = names - differ - ignored
        return sum((-1) ** len(some) * _agreeing(columns, agree | set(some), n) for some in _subsets(differ))

    found = []
    for factor in factors:
        if factor.k > 1:
            own = {factor.name}
            but_for, beside = pairs(own, aside - own), pairs(own | asked, aside - own - asked)
            weighed = beside if asked <= own else 0  # pairs that differ in nothing that w asks for have no weight
            found.append(
                Contrasts(
                    name, factor.name, factor.contrast.value, factor.k, pairs(own, names), pairs(own, set()), but_for,
                    weighed, beside, tuple(sorted(aside)),
                )
            )  # fmt: skip
    return found


def _agreeing(columns: Mapping[str, np.ndarray], names: Iterable[str], n: int) -> int:
    """Ordered pairs of leaves, T = T' among them, that agree in some factors."""
    group = np.zeros(n, np.int64)
    for name in names:
        value = np.unique(columns[name], return_inverse=True)[1]
        group = np.unique(group * (value.max() + 1) + value, return_inverse=True)[1]  # small again: it cannot overflow
    return int((np.bincount(group).astype(np.int64) ** 2).sum())


def _subsets(names: set[str]) -> Iterable[tuple[str, ...]]:
    return chain.from_iterable(combinations(sorted(names), size) for size in range(len(names) + 1))
