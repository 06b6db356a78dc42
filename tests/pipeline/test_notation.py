"""Compositions as text, and custom transformations from a file."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.pipeline.composition import contrast
from gdt.pipeline.leaves import Clip
from gdt.pipeline.notation import TRANSFORMATIONS, parse, read_transformations
from gdt.pipeline.sources.video import regions
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import Tree
from tests.conftest import ROOT

(FREEZE,) = re.findall(
    r"```python\n([^`]*class Freeze.*?)```", (ROOT / "docs" / "compositions.md").read_text(), re.DOTALL
)
"""The docs' example of a custom transformation."""


def test_every_transformation_file_is_registered() -> None:
    files = {path.stem for path in (ROOT / "pipeline" / "transformations").glob("*.py")} - {"__init__", "base"}
    assert files == set(TRANSFORMATIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video:d nonsense:i:2", "unknown factor 'nonsense'; available: video, time_shift, modality, "),
        ("video:d augmentation:x:2", "cannot parse factor 'augmentation:x:2'; a factor is name:contrast:K"),
        ("l", "cannot parse factor 'l'; .* a row of table 1 is a --preset"),
        ("video:d augmentation:i:0", "K of factor 'augmentation' is 0; K must be 1 or more"),
        ("video:d:9 augmentation:i:2", "takes 9 videos and --batch-size is 4; set --batch-size 9"),
        ("video:d time_reversal:i:3", "K of factor 'time_reversal' is 3; the factor has 2 values; set K to 2 or less"),
        ("video:d augmentation:i:2 augmentation:i:2", "'augmentation' occurs twice"),
        ("video:d augmentation:i:2 time_shift:d:2", "'time_shift' is sampled .*; put 'time_shift' before 'augment"),
        (
            "video:d augmentation:d:2",
            r"there is no invariant factor, so every .* \(condition ii of .*\); add one with K = 2",
        ),
        ("video:i augmentation:i:2", r"there is no distinctive factor, .* \(condition iii of section 3.1\); add"),
        ("video:d time_reversal:i:2", "has no 'augmentation', which crops and normalises; add augmentation:i:1"),
        ("augmentation:i:2 video:d", "does not begin with the factor video; put 'video:d' first"),
        ("video:d speed(1,x):i:2", r"'1,x' in factor 'speed\(1,x\):i:2' does not fit speed: .*'x'"),
        ("video:d augmentation(7):i:2", "'augmentation' in factor .* takes no settings in brackets"),
        ("video:d speed(nan,1):i:2 augmentation:i:1", "rates of speed are .* they must be different numbers above 0"),
        ("video:d modality(smell):i:1 augmentation:i:1", "unknown modality 'smell'; available: video, audio, text"),
        ("video:d modality(text,text):i:2 augmentation:i:1", "modalities are text, text; name each once"),
        (
            "video:d modality(video,audio,text):i:2 augmentation:i:1",
            "the factor has 3 values, of which a batch takes 1 or all",
        ),
        ("video:d order(9):i:2", "order has 9 segments; it must be 2 to 5"),
    ],
)
def test_invalid_compositions(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text, 4)


def test_the_custom_transformation_of_the_docs(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FREEZE)
    known = read_transformations(path)[0]
    assert set(known) == {*TRANSFORMATIONS, "freeze"}
    composition = parse("video:d time_shift:d:2 freeze:d:2 augmentation:i:2", 3, known=known)
    plan = Tree(composition, VideoPool(np.arange(5), np.full(5, 50), 30), Clip(frames=5, stride=3), 40).plan(0, 0)
    frozen = plan.columns["freeze"] == 1
    assert (plan.leaves.frames[frozen] == 6).all() and frozen.sum() == len(plan) // 2
    assert (plan.leaves.frames[~frozen] == [0, 3, 6, 9, 12]).all()


CUSTOM = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from gdt.pipeline.transformations.base import Choice

@dataclass(frozen=True)
class Later(Choice):
    name = "later"
    frames: int = 3
    values = ("now", "later")

    def act(self, leaves, values, rng):
        {act}
"""


def test_a_custom_transformation_may_scale_the_crop(tmp_path: Path) -> None:
    path = tmp_path / "zoom.py"
    path.write_text(CUSTOM.format(act="leaves.crop_scale = np.where(values == 1, 0.5, 1.0)"))
    composition = parse("video:d later:i:2 augmentation:i:2", 3, known=read_transformations(path)[0])
    leaves = Tree(composition, VideoPool(np.arange(5), np.full(5, 50), 30), Clip(), 40).plan(0, 0).leaves
    frames = SimpleNamespace(height=np.full(5, 240), width=np.full(5, 320))
    begin, end = regions(frames, leaves, 112)
    plain = np.subtract(*regions(frames, replace(leaves, crop_scale=np.ones(12)), 112))
    np.testing.assert_allclose(begin - end, plain * leaves.crop_scale[:, None], rtol=1e-5)
    assert (np.minimum(begin, end) >= 0).all() and (np.maximum(begin, end) <= [240, 320]).all()
    wide = replace(leaves, crop_scale=np.full(12, 9.0))  # no crop exceeds the frame
    np.testing.assert_allclose(np.abs(np.subtract(*regions(frames, wide, 112))), 240, rtol=1e-5)


@pytest.mark.parametrize("future", [True, False])
def test_a_custom_transformation_may_have_settings_and_write_any_field(tmp_path: Path, future: bool) -> None:
    path = tmp_path / f"later{future}.py"
    code = CUSTOM.format(act="leaves.start[values == 1] += self.frames")
    path.write_text(code if future else code.replace("from __future__ import annotations\n", ""))
    composition = parse("video:d time_shift:d:2 later(5):i:2 augmentation:i:2", 3, known=read_transformations(path)[0])
    assert str(composition).split()[2] == "later(5):i:2"
    plan = Tree(composition, VideoPool(np.arange(5), np.full(5, 50), 30), Clip(frames=5, stride=3), 40).plan(0, 0)
    later = plan.columns["later"] == 1
    # the factor table keeps the sampled values
    assert (plan.leaves.start[later] == plan.columns["time_shift"][later] + 5).all()
    assert (plan.leaves.start[~later] == plan.columns["time_shift"][~later]).all()
    c = contrast(composition.factors, plan.columns, plan.columns)
    assert ((c.sum(1) - 1) == 3).all()


TYPED = """
from gdt.pipeline.transformations.base import Choice

class Typed(Choice):
    name = "typed"
    values = ("one", "other")

    def __init__(self, setting={default!r}):
        self.setting = setting

    def act(self, leaves, values, rng):
        pass
"""


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [(True, "False", False), (3, "5", 5), (0.5, "3", 3.0), ("a", "False", "False"), ((1.0, 2.0), "1,4", (1.0, 4.0)),
     (True, "no", "'no' in factor .* does not fit typed: 'no'"), (3, "1.5", "invalid literal for int.*'1.5'"),
     (None, "x", "does not fit typed: NoneType")],
)  # fmt: skip
def test_settings_in_brackets_have_the_type_of_their_default(
    tmp_path: Path, default: object, text: str, value: object
) -> None:
    path = tmp_path / "typed.py"
    path.write_text(TYPED.format(default=default))
    known = read_transformations(path)[0]
    written = f"video:d typed({text}):i:2 augmentation:i:1"
    if isinstance(value, str) and " " in value:
        with pytest.raises(UserError, match=value):
            parse(written, 3, known=known)
        return
    found = parse(written, 3, known=known).factors[1].transformation.setting  # type: ignore[attr-defined]
    assert (found, type(found)) == (value, type(value))


def test_own_transformations_neither_take_names_nor_change_shapes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for name in ("speed", "usable"):
        path.write_text(FREEZE.replace('"freeze"', f'"{name}"'))
        with pytest.raises(UserError, match=f"defines '{name}', a name that is taken"):
            read_transformations(path)
    path.write_text(FREEZE + "\n    def __init__(self, length):\n        pass\n")
    with pytest.raises(UserError, match=r"in .*mine.py needs its length; give every parameter a default"):
        read_transformations(path)
    path.write_text(CUSTOM.format(act="leaves.frames = leaves.frames[:, 1:]"))
    composition = parse("video:d later:i:2 augmentation:i:2", 3, known=read_transformations(path)[0])
    with pytest.raises(UserError, match="'later' changes the shape of leaves.frames"):
        Tree(composition, VideoPool(np.arange(5), np.full(5, 50), 30), Clip(), 40).plan(0, 0)
