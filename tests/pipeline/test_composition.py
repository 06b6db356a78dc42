"""The paper's algebra: products, counts, conditions."""

from __future__ import annotations

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.composition import check, contrast, counts, weight
from gdt.pipeline.factors import Contrast, Factor, Weight
from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.augmentation import Augment
from gdt.pipeline.transformations.base import Choice, Draw, Source
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.video import Video
from gdt.pipeline.tree import sample

D, I = Contrast.DISTINCTIVE, Contrast.INVARIANT  # noqa: E741  the paper's letters


class Finite(Choice):
    """A set of so many values, which do nothing."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.values = name, tuple(map(str, range(size)))  # type: ignore[misc]

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        pass


class Endless(Augment):
    """A continuous set of some name."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)


def batch(factors: tuple[Factor, ...], seed: int = 0) -> dict[str, np.ndarray]:
    draw = Draw(seed, 0, 0)
    return sample(factors, Source(np.arange(50), np.full(50, 50), 30), draw.generator(), draw)


def random_factors(rng: np.random.Generator) -> tuple[Factor, ...]:
    """1 to 5 factors of random kinds, sizes and contrasts; a distinctive one after an invariant one is exhausted."""
    factors = [Factor(Video(), int(rng.integers(1, 5)), rng.choice([D, I]))]
    for m in range(1, int(rng.integers(1, 6))):
        k, kind = int(rng.integers(1, 4)), rng.choice([D, I])
        exhausted = kind is D and any(factor.contrast is I for factor in factors)
        size = k if exhausted else int(rng.integers(k, 6))
        endless = rng.random() < 0.3 and not exhausted
        factors.append(Factor(Endless(f"f{m}") if endless else Finite(f"f{m}", size), k, kind))
    return tuple(factors)


@pytest.mark.parametrize("seed", range(40))
def test_counts_of_the_lemmas_hold_for_random_trees(seed: int) -> None:
    factors = random_factors(np.random.default_rng(seed))
    table = batch(factors, seed)
    c = contrast(factors, table, table)
    k = np.prod([factor.k for factor in factors])
    invariant = np.prod([factor.k for factor in factors if factor.contrast is I])
    # lemma: (prod K)(prod_I K) pairs with c = 1, prod K of them trivial; prod K - prod_I K negatives for every T
    assert len(c) == k
    assert c.sum() == k * invariant
    assert np.trace(c) == k
    assert ((~c).sum(1) == k - invariant).all()
    assert counts(factors) == (k, k * (invariant - 1), k - invariant)


@pytest.mark.parametrize("seed", range(20))
def test_contrast_is_the_product_of_the_factors_and_an_equivalence(seed: int) -> None:
    factors = random_factors(np.random.default_rng(seed))
    table = batch(factors, seed)
    c = contrast(factors, table, table)
    n = len(c)
    for a in range(n):
        for b in range(n):
            terms = [f.contrast is I or table[f.name][a] == table[f.name][b] for f in factors]
            assert c[a, b] == all(terms)
    assert (c == c.T).all() and c.diagonal().all()
    assert (((c.astype(int) @ c.astype(int)) > 0) == c).all()  # transitive: what two steps reach, one step reaches


@pytest.mark.parametrize("preset", presets.TABLE_1)
def test_every_preset_meets_the_conditions_for_every_leaf(preset: str) -> None:
    factors = presets.composition(preset, 3).factors
    check(factors)
    table = batch(factors)
    c, w = contrast(factors, table, table), weight(factors, table, table)
    positive = c & w
    assert positive.any(1).all()  # (i) and (ii): every T has a T' != T with c = 1
    assert not (positive & np.eye(len(c), dtype=bool)).any()
    assert (~c & w).any(1).all()  # (iii): and a T'' with c = 0 in its denominator
    composition = presets.composition(preset, 3)
    assert len(table["leaf"]) == 3 * composition.clips_per_video * len(composition.modalities)


def test_table_1_as_printed() -> None:
    printed = "a..V bi.V c.iV diiV e..AV fi.AV g.iAV hiiAV id.AV j.dAV kdiAV lidAV mddAV"
    for entry in printed.split():
        name, reversal, shift, modalities = entry[0], entry[1], entry[2], entry[3:]
        factors = {factor.name: factor for factor in presets.composition(name, 8).factors}
        assert list(factors) == ["video", "time_shift", "modality", "time_reversal", "augmentation"]
        for factor, role in ((factors["time_reversal"], reversal), (factors["time_shift"], shift)):
            assert (factor.k, factor.contrast) == ((1, I) if role == "." else (2, D if role == "d" else I))
        two = modalities == "AV"
        assert (factors["modality"].k, factors["modality"].weight is Weight.DIFFERS) == (
            (2, True) if two else (1, False)
        )
        assert factors["augmentation"].k == (1 if two else 2) and factors["video"].contrast is D
    assert len(printed.split()) == len(presets.TABLE_1)


def test_cross_modal_weight_keeps_only_pairs_of_two_modalities() -> None:
    factors = presets.composition("l", 3).factors
    table = batch(factors)
    w = weight(factors, table, table)
    assert (w == (table["modality"][:, None] != table["modality"][None])).all()


def test_simclr_is_a_special_case() -> None:
    size = 10
    factors = (Factor(Video(), size // 2, D), Factor(Augment(), 2, I))
    assert counts(factors) == (size, size, size - 2)
    table = batch(factors)
    positive = contrast(factors, table, table) & weight(factors, table, table)
    pairs = np.kron(np.eye(size // 2), np.array([[0, 1], [1, 0]])).astype(bool)
    assert (positive == pairs).all()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (
            (Factor(Endless("g"), 2, I), Factor(Endless("shift"), 2, D)),
            "'shift' is sampled anew in every branch of the invariant factor 'g'",
        ),
        ((Factor(Video(), 1, D), Factor(Endless("g"), 2, I)), r"distinctive factor: video \(K = 1"),
        ((Factor(Video(), 2, D), Factor(Endless("g"), 1, I)), r"invariant factor: g \(K = 1\)"),
        ((Factor(Video(), 2, D),), "invariant factor: there is none"),
        ((Factor(Video(), 2, D), Factor(Endless("g"), 0, I)), "K of factor 'g' is 0"),
        (
            (Factor(Video(), 2, D), Factor(Endless("g"), 2, I),
             Factor(Modality(), 1, I, Weight.DIFFERS)),
            "differ in factor 'modality' but its K is 1",
        ),
        (
            (Factor(Video(), 2, D), Factor(Modality(), 2, D, Weight.DIFFERS)),
            "factor 'modality' is distinctive",
        ),
    ],
)  # fmt: skip
def test_a_degenerate_batch_is_refused_by_the_name_of_the_factor(factors: tuple[Factor, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(factors)
