"""The paper's algebra: products, counts, conditions."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import presets
from pipeline.composition import check, contrast, counts, weight
from pipeline.errors import UserError
from pipeline.factors import Choices, Continuum, Contrast, Draw, Factor, Videos, Weight
from pipeline.tree import sample

D, I = Contrast.DISTINCTIVE, Contrast.INVARIANT  # noqa: E741  the paper's letters


def batch(factors: tuple[Factor, ...], seed: int = 0) -> dict[str, np.ndarray]:
    draw = Draw(seed, 0, 0)
    return sample(factors, draw.generator(), draw)


def random_factors(rng: np.random.Generator) -> tuple[Factor, ...]:
    """1 to 5 factors of random kinds, sizes and contrasts; a distinctive one after an invariant one is exhausted."""
    factors = [Factor("f0", Videos(tuple(range(20))), int(rng.integers(1, 5)), rng.choice([D, I]))]
    for m in range(1, int(rng.integers(1, 6))):
        k, kind = int(rng.integers(1, 4)), rng.choice([D, I])
        exhausted = kind is D and any(factor.contrast is I for factor in factors)
        size = k if exhausted else int(rng.integers(k, 6))
        space = Continuum() if rng.random() < 0.3 and not exhausted else Choices(tuple(range(size)))
        factors.append(Factor(f"f{m}", space, k, kind))
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
    factors = presets.factors(preset, np.arange(9), np.full(9, 50), 3)
    check(factors)
    table = batch(factors)
    c, w = contrast(factors, table, table), weight(factors, table, table)
    positive = c & w
    assert positive.any(1).all()  # (i) and (ii): every T has a T' != T with c = 1
    assert not (positive & np.eye(len(c), dtype=bool)).any()
    assert (~c & w).any(1).all()  # (iii): and a T'' with c = 0 in its denominator
    assert len(table["leaf"]) == 3 * presets.clips_per_video(preset) * (2 if presets.row(preset).uses_audio else 1)


def test_table_1_as_printed() -> None:
    rows = {name: (spec.time_reversal, spec.time_shift, spec.modalities) for name, spec in presets.TABLE_1.items()}
    printed = "a..V bi.V c.iV diiV e..AV fi.AV g.iAV hiiAV id.AV j.dAV kdiAV lidAV mddAV"
    assert rows == {entry[0]: (entry[1], entry[2], entry[3:]) for entry in printed.split()}


def test_cross_modal_weight_keeps_only_pairs_of_two_modalities() -> None:
    factors = presets.factors("l", np.arange(9), np.full(9, 50), 3)
    table = batch(factors)
    w = weight(factors, table, table)
    assert (w == (table["modality"][:, None] != table["modality"][None])).all()


def test_simclr_is_a_special_case() -> None:
    size = 10
    factors = (Factor("video", Videos(tuple(range(50))), size // 2, D), Factor("augmentation", Continuum(), 2, I))
    assert counts(factors) == (size, size, size - 2)
    table = batch(factors)
    positive = contrast(factors, table, table) & weight(factors, table, table)
    pairs = np.kron(np.eye(size // 2), np.array([[0, 1], [1, 0]])).astype(bool)
    assert (positive == pairs).all()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (
            (Factor("g", Continuum(), 2, I), Factor("shift", Continuum(), 2, D)),
            "'shift' is sampled anew in every branch of the invariant factor 'g'",
        ),
        ((Factor("video", Videos((1, 2)), 1, D), Factor("g", Continuum(), 2, I)), r"distinctive factor: video \(K = 1"),
        ((Factor("video", Videos((1, 2)), 2, D), Factor("g", Continuum(), 1, I)), r"invariant factor: g \(K = 1\)"),
        ((Factor("video", Videos((1, 2)), 2, D),), "invariant factor: there is none"),
        ((Factor("video", Videos((1, 2)), 2, D), Factor("g", Continuum(), 0, I)), "K of factor 'g' is 0"),
        (
            (Factor("video", Videos((1, 2)), 2, D), Factor("g", Continuum(), 2, I),
             Factor("modality", Choices((0, 1)), 1, I, Weight.DIFFERS)),
            "differ in factor 'modality' but its K is 1",
        ),
        (
            (Factor("video", Videos((1, 2)), 2, D), Factor("modality", Choices((0, 1)), 2, D, Weight.DIFFERS)),
            "factor 'modality' is distinctive",
        ),
    ],
)  # fmt: skip
def test_a_degenerate_batch_is_refused_by_the_name_of_the_factor(factors: tuple[Factor, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(factors)
