"""The paper's tables and conditions; test_random_compositions.py tests arbitrary compositions."""

import numpy as np
import pytest

from gdt.pipeline import presets
from gdt.pipeline.composition import Contrast, Factor, Weight, contrast, weight
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import sample
from tests.composed import composed

D, I = Contrast.DISTINCTIVE, Contrast.INVARIANT  # noqa: E741  the paper's letters


def batch(factors: tuple[Factor, ...]) -> dict[str, np.ndarray]:
    columns, _ = sample(factors, VideoPool(np.arange(50), np.full(50, 50), 30), 0, 0, 0)
    return columns


@pytest.mark.parametrize("preset", [*presets.TABLE_1, *presets.TABLE_2])
def test_every_preset_meets_the_conditions_for_every_leaf(preset: str) -> None:
    factors = composed(preset, 3).factors
    table = batch(factors)
    c, w = contrast(factors, table, table), weight(factors, table, table)
    positive = c & w
    assert positive.any(1).all()  # (i) and (ii): every T has a T' != T with c = 1
    assert not (positive & np.eye(len(c), dtype=bool)).any()
    assert (~c & w).any(1).all()  # (iii): and a T'' with c = 0 in its denominator
    if len(np.unique(table["modality"])) == 2:
        assert (w == (table["modality"][:, None] != table["modality"][None])).all()


@pytest.mark.parametrize(
    ("rows", "prefix", "printed"),
    [
        (presets.TABLE_1, "", "a..V bi.V c.iV diiV e..VA fi.VA g.iVA hiiVA id.VA j.dVA kdiVA lidVA mddVA"),
        (presets.TABLE_2, "text-", "a..V b..VT cd.VT d.dVT ediVT fidVT gddVT"),
    ],
)
def test_tables_1_and_2_as_printed(rows: dict[str, presets.Preset], prefix: str, printed: str) -> None:
    assert len(printed.split()) == len(rows)
    names = {"V": ("video",), "VA": ("video", "audio"), "VT": ("video", "text")}
    for name, reversal, shift, *modalities in printed.split():
        composition = composed(prefix + name, 8)
        factors = {factor.name: factor for factor in composition.factors}
        assert list(factors) == ["video", "time_shift", "modality", "time_reversal", "augmentation"]
        for factor, role in ((factors["time_reversal"], reversal), (factors["time_shift"], shift)):
            assert (factor.k, factor.contrast) == ((1, I) if role == "." else (2, D if role == "d" else I))
        assert composition.modalities == names["".join(modalities)]
        two = len(modalities) == 2
        assert (factors["modality"].k, factors["modality"].weight is Weight.DIFFERS) == (1 + two, two)
        assert factors["augmentation"].k == 2 - two and factors["video"].contrast is D
