"""Random compositions of all factors: batches match the composition, or it is refused by factor."""

import math

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight, contrast, weight
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.augmentation import Augment
from gdt.pipeline.transformations.base import Transformation, VideoPool
from gdt.pipeline.transformations.modality import Modality
from gdt.pipeline.transformations.order import Order
from gdt.pipeline.transformations.rotation import Rotation
from gdt.pipeline.transformations.speed import Speed
from gdt.pipeline.transformations.time_reversal import TimeReversal
from gdt.pipeline.transformations.time_shift import TimeShift
from gdt.pipeline.transformations.video import Video
from gdt.pipeline.tree import BatchPlan, Tree
from tests.pipeline.test_tree import same_leaves

SOURCE = VideoPool(np.arange(40), 5 + np.arange(40), 30)
CLIP = Clip(frames=5, mel_frames=9, words=4)

subsets = st.lists(st.sampled_from(MODALITIES), min_size=1, max_size=3, unique=True)
rates = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0]), min_size=1, max_size=3, unique=True)
optional: list[st.SearchStrategy[Transformation]] = [
    st.just(TimeShift()),
    subsets.map(lambda names: Modality(tuple(names))),
    st.just(TimeReversal()),
    rates.map(lambda values: Speed(tuple(values))),
    st.integers(2, 3).map(Order),
    st.just(Rotation()),
]
contrasts, weights = st.sampled_from(Contrast), st.sampled_from([Weight.ANY, Weight.ANY, Weight.DIFFERS])


@st.composite
def factor_lists(draw: st.DrawFn) -> tuple[Factor, ...]:
    """Video, then some other factors in any order, with any contrast and weight, valid or not."""
    chosen = draw(st.lists(st.sampled_from(range(len(optional))), max_size=4, unique=True))
    factors = [Factor(Video(), draw(st.integers(1, 4)), draw(contrasts))]
    for transformation in [*(draw(optional[number]) for number in chosen), Augment()]:
        k = draw(st.integers(1, min(4, len(getattr(transformation, "values", range(3))))))
        factors.append(Factor(transformation, k, draw(contrasts), draw(weights)))
    assume(math.prod(factor.k for factor in factors) <= 300)
    return tuple(factors)


def composed(factors: tuple[Factor, ...]) -> Composition:
    try:
        return Composition(factors)
    except UserError:
        assume(False)
        raise


compositions = factor_lists().map(composed)
ours = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])


def plan_of(composition: Composition, batch: int = 0) -> BatchPlan:
    return Tree(composition, SOURCE, CLIP, bands=8, seed=3).plan(0, batch)


def degenerate(factors: tuple[Factor, ...]) -> set[str]:
    """Names of the factors that violate a condition of section 3.1, by the book."""
    blamed = {f.name for f in factors if f.weight is Weight.DIFFERS and (f.contrast is Contrast.DISTINCTIVE or f.k < 2)}
    blamed |= {f.name for f in factors if f.transformation.refuses(f.k)}
    for position, factor in enumerate(factors):
        varied = [f.name for f in factors[:position] if f.contrast is Contrast.INVARIANT and f.k > 1]
        if factor.contrast is Contrast.DISTINCTIVE and varied and not factor.transformation.takes_all(factor.k):
            blamed.add(factor.name)
    for kind in Contrast:
        if all(factor.k < 2 for factor in factors if factor.contrast is kind):
            blamed |= {factor.name for factor in factors if factor.contrast is kind} or {kind.value}
    return blamed


@ours
@given(factor_lists())
def test_degenerate_compositions_are_refused_by_factor(factors: tuple[Factor, ...]) -> None:
    blamed = degenerate(factors)
    try:
        Composition(factors)
    except UserError as error:
        assert any(name in str(error) for name in blamed), (str(error), blamed)
    else:
        assert not blamed


@ours
@given(compositions)
def test_batches_match_the_composition(composition: Composition) -> None:
    plan = plan_of(composition)
    c, w = (f(composition.factors, plan.columns, plan.columns) for f in (contrast, weight))
    total = math.prod(factor.k for factor in composition.factors)  # the lemmas of A.1.2
    invariant = math.prod(factor.k for factor in composition.factors if factor.contrast is Contrast.INVARIANT)
    assert len(plan) == total and c.sum() == total * invariant and ((~c).sum(1) == total - invariant).all()
    assert (c & w).any() and (~c & w).any()  # conditions (i) to (iii)
    assert not (w & np.eye(len(plan), dtype=bool)).any()
    leaves = plan.leaves
    assert leaves.modalities == composition.modalities and (leaves.start < SOURCE.start_counts[leaves.video]).all()
    assert len(np.unique(plan.columns["augmentation"])) == len(plan)
    per_video = len(plan) // (composition.batch_size * len(composition.modalities))
    assert per_video == composition.clips_per_video
    for positions, length in ((leaves.frames, CLIP.frames), (leaves.mel_frames, CLIP.mel_frames)):
        assert positions.min() >= 0 and positions.max() <= math.floor((length - 1) * composition.reach + 0.5)


@ours
@given(compositions)
def test_contrast_and_weight_are_products_of_the_factors(composition: Composition) -> None:
    """Entry by entry (section 3.1)."""
    table = plan_of(composition).columns
    c, w = (f(composition.factors, table, table) for f in (contrast, weight))
    for a, b in np.random.default_rng(0).integers(0, len(c), (500, 2)):
        equal = {f: table[f.name][a] == table[f.name][b] for f in composition.factors}
        assert c[a, b] == all(same or f.contrast is Contrast.INVARIANT for f, same in equal.items())
        assert w[a, b] == (a != b and not any(same and f.weight is Weight.DIFFERS for f, same in equal.items()))
    assert (c == c.T).all() and c.diagonal().all()
    assert (((c.astype(int) @ c.astype(int)) > 0) == c).all()  # transitive


@ours
@given(compositions, st.integers(1, 4), st.integers(0, 3))
def test_ranks_split_the_plan(composition: Composition, world: int, batch: int) -> None:
    plan = plan_of(composition, batch)
    if composition.batch_size % world:
        assume(False)
    parts = [take_rank(plan, rank, world) for rank in range(world)]
    same_leaves(parts, plan)
    for part in parts:
        for modality in np.unique(part.leaves.modality):  # each in the order of the tree
            assert (np.diff(part.columns["leaf"][part.leaves.modality == modality]) > 0).all()
    videos = [set(part.leaves.video.tolist()) for part in parts]
    assert sum(map(len, videos)) == composition.batch_size  # no video is on two ranks


@ours
@given(compositions)
def test_printing_and_parsing_are_inverse(composition: Composition) -> None:
    again = parse(str(composition), composition.batch_size)
    assert str(again) == str(composition)
    assert all(np.array_equal(a, b) for a, b in zip(
        plan_of(again).columns.values(), plan_of(composition).columns.values(), strict=True))  # fmt: skip
