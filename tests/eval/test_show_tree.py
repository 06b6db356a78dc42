"""The sampling tree, printed and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.eval.show_tree import IGNORED, NEGATIVE, POSITIVE, ShowTree, TreeDrawing, partners, show_tree, toy
from gdt.pipeline import presets
from gdt.pipeline.composition import counts
from gdt.pipeline.notation import parse
from tests.composed import composed
from tests.conftest import Run
from tests.pipeline.test_notation import FREEZE


def test_clips_of_the_example_end_within_its_videos() -> None:
    drawn = toy(composed("l", 512)).plan(0, 0).columns["time_shift"]
    assert drawn.min() >= 0 and 250 < drawn.max() <= 270  # 30 frames of 300


def test_a_tree_too_large_to_draw_is_refused(tmp_path: Path) -> None:
    factors = "video:d time_shift:d:16 modality:i:2 augmentation:i:1"
    with pytest.raises(UserError, match="288 leaves, more than 256; lower --videos or a K$"):
        show_tree(ShowTree(factors=factors, videos=9, batch_size=16, out=tmp_path / "tree.png"))


def test_the_tree_of_a_cross_modal_row_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "tree.png"
    *lines, blank, image = show_tree(ShowTree(preset="i", batch_size=64, out=path)).splitlines()
    assert (blank, image) == ("", f"image: {path}")
    assert lines[0] == "preset i: " + str(composed("i", 64))
    assert "  modality        K = 2     invariant, only pairs that differ in it count" in lines
    assert "  time_shift      K = 1     one random start per video" in lines
    needless = show_tree(ShowTree(factors="video:d time_shift:d:1 modality:i:2 augmentation:i:1", out=path))
    assert "one random start per video; distinctive has no effect with K = 1" in needless
    # each leaf and the other modality's: positive with the same video and direction, negative with the other 127
    assert "a batch of 64 videos holds 256 leaves; each has 1 positive and 127 negative leaves" in lines
    tree = [line.rstrip() for line in lines[lines.index("video 0") :]]
    assert tree == [
        "video 0",
        "├ video",
        "│ ├ forward                                   leaf 0",
        f"│ └ reversed                                  leaf 1    {IGNORED}",
        "└ audio",
        f"  ├ forward                                   leaf 2    {POSITIVE}",
        f"  └ reversed                                  leaf 3    {NEGATIVE}",
        "video 1",
        "├ video",
        f"│ ├ forward                                   leaf 4    {IGNORED}",
        f"│ └ reversed                                  leaf 5    {IGNORED}",
        "└ audio",
        f"  ├ forward                                   leaf 6    {NEGATIVE}",
        f"  └ reversed                                  leaf 7    {NEGATIVE}",
    ]
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_preset_can_be_drawn(preset: str) -> None:
    drawing = TreeDrawing(composed(preset, 2))
    assert (drawing.relation.diagonal() == IGNORED).all() and (drawing.relation == drawing.relation.T).all()
    assert sum("leaf " in line for line in drawing.lines()) == drawing.n
    picture = drawing.picture(preset)
    tree, matrix = picture.axes
    assert len(tree.texts) == len(drawing.factors) + sum(
        drawing.n // drawing.leaves_below(k) for k in range(len(drawing.factors))
    )
    assert sum(len(part.get_offsets()) for part in matrix.collections) == drawing.n**2


def test_partner_counts_agree_with_the_lemma() -> None:
    composition = composed("d", 16)
    expected = counts(composition.factors)
    assert partners(composition) == (str(expected.positives // expected.leaves), str(expected.negatives_per_leaf))
    # two random shifts of a video may be equal, and then do not differ
    assert partners(parse("video:d time_shift:i:1 augmentation:i:3:differs", 4)) == ("2", "9")


def test_custom_factors_are_drawn_by_the_command(command: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FREEZE)
    done = command(
        "show-tree", "--factors", "video:d freeze:d:2 augmentation:i:2", "--factors-from", "mine.py",
        "--out", "tree.svg", "--videos", 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "moving" in done.stdout and "frozen" in done.stdout and "video 2" in done.stdout
    assert done.stdout.endswith("\n\nimage: tree.svg\n") and "<svg" in (tmp_path / "tree.svg").read_text()
    for wrong, message in (
        ({"preset": "L"}, "unknown preset 'L'; did you mean 'l'?"),
        ({"preset": "e", "factors": "video:d"}, "--preset and --factors both set the composition"),
        ({"out": Path("tree.gif")}, "must end in .png, .svg or .pdf"),
    ):
        with pytest.raises(UserError, match=message):
            show_tree(ShowTree(**wrong))
