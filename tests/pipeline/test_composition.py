"""The tables of the paper; test_random_compositions.py tests arbitrary compositions."""

import pytest

from gdt.pipeline import presets
from gdt.pipeline.composition import Contrast, Weight
from tests.composed import composed

D, I = Contrast.DISTINCTIVE, Contrast.INVARIANT  # noqa: E741  the paper's letters


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
