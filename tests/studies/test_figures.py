"""The paper's pictures of features: right on made-up ones, and drawn by the command, with and without labels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common.errors import UserError
from gdt.eval.command import settings_of
from gdt.eval.metrics import median
from gdt.eval.page.page import deviations as on_the_page
from gdt.eval.planes import planes
from gdt.eval.record import Record, read
from gdt.pipeline.shards.index import Index
from gdt.studies.command import COMMANDS
from gdt.studies.figures import draw, pictures
from gdt.studies.figures.settings import Figures
from gdt.studies.figures.spread import apart, deviations, own_nearest, ratio
from gdt.studies.figures.table import lines, told
from gdt.studies.figures.videos import chosen
from gdt.train.checkpoint import load_model
from gdt.train.settings import SIZES, to_json
from tests.conftest import Run
from tests.eval.test_factors import bounded, muted

CLIP = SIZES["tiny"][1].clip
SMALL = {"videos": 8, "clips": 3, "shown": 4}


# ---------------------------------------------------------------------------------------------------------------------
# Made-up features
# ---------------------------------------------------------------------------------------------------------------------


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_clips_that_are_the_same_do_not_deviate() -> None:
    x = np.repeat(unit(np.random.default_rng(0).normal(size=(20, 1, 16))), 5, axis=1).astype(np.float32)
    assert deviations(x) == pytest.approx(np.zeros(20), abs=1e-7)
    assert bounded(ratio(apart(x))) == pytest.approx((0, 0, 0), abs=1e-6)
    assert own_nearest(x).value == 100.0


def test_a_known_spread() -> None:
    """Two clips at an angle to either side of the video's own direction: the sine in one number, nothing in others."""
    angle = np.array([0.1, 0.2, 0.4])
    x = np.zeros((3, 2, 6))
    x[np.arange(3), :, np.arange(3)] = np.cos(angle)[:, None]
    x[np.arange(3), :, np.arange(3) + 3] = np.sin(angle)[:, None] * [-1, 1]
    assert deviations(x) == pytest.approx(np.sin(angle) / 6)
    found = apart(x)  # two clips of a video are 2 sin apart, those of two videos sqrt(2), as they are orthogonal
    assert found.between == pytest.approx(1)
    assert found.relative == pytest.approx(2 * np.sin(angle) / np.sqrt(2))
    assert ratio(found).value == pytest.approx(np.sqrt((2 * np.sin(angle) ** 2).mean()))


def test_clips_that_know_no_video_lie_as_far_apart_as_others() -> None:
    """Whatever the number of clips; and what holds the video lies nearer by what it was made to."""
    rng = np.random.default_rng(0)
    for s in (2, 10):
        noise = unit(rng.normal(size=(200, s, 40)))
        found = ratio(apart(noise))
        assert found.low < 1 < found.high and found.high - found.low < 0.1
        near = own_nearest(noise)
        assert near.interval[0] < near.chance < near.interval[1]
        assert near.chance == pytest.approx(100 * (s - 1) / (200 * s - 1))
        held = unit(rng.normal(size=(200, 1, 400)) + 0.5 * rng.normal(size=(200, s, 400)))
        assert ratio(apart(held)).value == pytest.approx(np.sqrt(0.25 / 1.25), rel=0.03)


def test_the_numbers_with_a_video_left_out_are_those_without_it() -> None:
    x = unit(np.random.default_rng(0).normal(size=(7, 3, 5)))
    found = apart(x)
    assert found.without == pytest.approx([apart(np.delete(x, k, 0)).between for k in range(7)])
    pairs = [((x[a] - x[b]) ** 2).sum(1).mean() / 2 for a in range(7) for b in range(a)]
    assert found.between == pytest.approx(np.mean(pairs))


def test_the_interval_of_the_ratio_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)

    def drawn(n: int) -> np.ndarray:
        noise = rng.uniform(0.3, 1.2, (n, 1, 1)) * rng.normal(size=(n, 4, 60))
        return unit(rng.normal(size=(n, 1, 60)) + noise)

    truth = np.mean([ratio(apart(drawn(300))).value for _ in range(10)])
    holds = [found.low <= truth <= found.high for found in (ratio(apart(drawn(25))) for _ in range(300))]
    assert 0.9 <= np.mean(holds) <= 0.98


def test_a_difference_to_random_weights_is_of_the_same_videos() -> None:
    rng = np.random.default_rng(0)
    video, noise = rng.normal(size=(30, 1, 20)), rng.normal(size=(30, 5, 20))
    near, far = (apart(unit(video + strength * noise)) for strength in (0.3, 0.9))
    difference = ratio(far, near)
    assert difference.value == pytest.approx(ratio(far).value - ratio(near).value) and difference.low > 0
    assert bounded(ratio(near, near)) == (0, 0, 0)


def test_planes_are_the_same_for_the_same_seed() -> None:
    x = np.random.default_rng(0).normal(size=(12, 5))
    one, other = planes(x, 30, 0), planes(x, 30, 0)
    assert np.array_equal(one.pca, other.pca) and np.array_equal(one.tsne, other.tsne)
    assert one.perplexity == pytest.approx(11 / 3) and one.variance[0] >= one.variance[1]


def test_the_nearest_other_clip_is_counted_as_it_is() -> None:
    x = np.eye(4)[[0, 0, 1, 1, 2, 3]] + 0.01 * np.eye(4)[[1, 1, 0, 0, 3, 2]]
    x = unit(x).reshape(3, 2, 4)  # the third video's clips point apart, and are nearer to each other than to others'
    assert own_nearest(x).value == 100.0
    x[2] = x[:2, 0]  # each of its clips is now that of another video, and that one's other clips stay as near
    assert own_nearest(x).value == pytest.approx(400 / 6)


def test_the_median_lies_within_its_interval_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    holds = [found.low <= 0 <= found.high for found in (median(rng.normal(size=40)) for _ in range(1000))]
    assert 0.94 <= np.mean(holds) <= 0.985
    assert bounded(median(np.array([3.0, 1.0, 2.0]))) == (2, 1, 3)


def test_features_that_are_all_the_same_are_told() -> None:
    with pytest.raises(UserError, match="features of all videos are the same"):
        apart(np.ones((4, 2, 1)))
    with pytest.raises(UserError, match="features of all 8 points are the same"):
        planes(np.ones((8, 3)), 5, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Videos
# ---------------------------------------------------------------------------------------------------------------------


def given(**changed: object) -> Figures:
    return Figures((Path("x"),), **(SMALL | changed))


def test_videos_are_of_one_class_and_long_enough(index: Index) -> None:
    test = np.flatnonzero(index.split == "test")
    found = chosen(index, "test", [CLIP], given())
    assert (found.too_short, len(found.spread), len(found.shown)) == (0, 8, 4)
    assert {*found.spread} | {*found.shown} <= {*test} and {*index.label[found.shown]} == {found.of_class}
    named = chosen(index, "test", [CLIP], given(of_class=index.classes[2]))
    assert {*index.label[named.shown]} == {index.classes[2]} and np.array_equal(named.spread, found.spread)
    assert not np.array_equal(chosen(index, "test", [CLIP], given(seed=1)).spread, found.spread)
    short = index.frame_count.copy()
    length = (CLIP.frames - 1) * CLIP.stride + 1
    short[test[:5]] = length + 1  # two starts
    shortened = replace(index, frame_count=short)
    left = chosen(shortened, "test", [CLIP], given())
    assert left.too_short == 5 and not {*left.videos} & {*test[:5]}
    assert chosen(shortened, "test", [CLIP], given(clips=2)).too_short == 0
    longer = replace(CLIP, frames=2 * CLIP.frames)
    assert chosen(shortened, "test", [CLIP, longer], given(clips=2)).too_short == 5  # for all models
    short[test[:10]] = length
    with pytest.raises(UserError, match="2 of the 12 videos of the split 'test' are long enough for 3 clips with diff"):
        chosen(shortened, "test", [CLIP], given())


def test_without_classes_videos_are_drawn_from_all(index: Index) -> None:
    for label in (np.full(len(index), "", object), index.id):  # none, and one for each video
        found = chosen(replace(index, label=label), "test", [CLIP], given(shown=6))
        assert found.of_class == "" and len(found.shown) == 6
    for label, there in ((np.full(len(index), "", object), "none"), (index.label, ", ".join(index.classes))):
        message = f"--of-class is 'x', which 0 of the 12 videos of the split 'test' are of; .* have them are {there}$"
        with pytest.raises(UserError, match=message):
            chosen(replace(index, label=label), "test", [CLIP], given(of_class="x"))


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def drawn_by(settings: Figures) -> tuple[str, list[Record]]:
    """What the command says, and what it has written."""
    text = draw.figures(settings)
    return text, read(settings.out / "figures.json")


@pytest.fixture
def weights(checkpoint: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint with a part of the small model: sound alone, or the video trunk alone; or with damaged weights."""

    def saved(name: str) -> Path:
        path = tmp_path / f"{name}.pt"
        trained = load_model(checkpoint)
        if name == "trunk":
            state = {f"base.{key}": value for key, value in trained.model.video_network.base.state_dict().items()}
            state |= {"settings": to_json(trained.settings), "statistics": trained.statistics.to_numbers()}
        else:
            state = torch.load(checkpoint, weights_only=True)
            if name == "sound":
                state["model"] = {key: x for key, x in state["model"].items() if key.startswith(("aud", "mlp_a"))}
            else:
                state["model"]["video_network.base.layer4.0.conv1.0.3.weight"][:] = torch.nan
        torch.save(state, path)
        return path

    return saved


def test_as_a_user_types_it(command: Run, checkpoint: Path, weights: Callable[[str], Path], tmp_path: Path) -> None:
    small = [str(part) for name, value in SMALL.items() for part in (f"--{name}", value)]
    done = command("study", "figures", "--ckpt", checkpoint, weights("trunk"), *small)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "figures-synthetic"
    assert (out / "table.txt").read_text() in done.stdout
    found = read(out / "figures.json")
    assert [record.model for record in found] == ["random weights", "e", "trunk"]
    random, model, trunk = found
    deviation = model.per_video["deviation"]
    assert deviation == pytest.approx(trunk.per_video["deviation"], rel=1e-4)  # the same weights, by another way
    assert model.metrics["nearest"] == trunk.metrics["nearest"] and model.weights != trunk.weights
    ratios = [record.metrics["ratio"].value for record in (model, random)]
    assert "minus random" not in random.metrics
    assert model.metrics["minus random"].value == pytest.approx(ratios[0] - ratios[1])
    assert model.queries == len(model.videos) == len(deviation) == len(model.per_video["relative"]) == 8
    assert model.metrics["nearest"].chance == pytest.approx(100 * 2 / 11) and model.trained_on == "others"
    assert "nearest: 4 videos of the class '" in done.stdout and len(model.how["shown"].split(", ")) == 4
    for name in ("deviation.png", "clips.png"):
        assert Image.open(out / name).width > 600
    again, _ = draw.drawn(replace(model.settings_as(Figures), ckpt=(checkpoint,)))
    for one, other in zip(again, found, strict=False):  # nothing is left to chance but rounding
        assert (one.videos, one.how) == (other.videos, other.how)
        assert one.per_video["deviation"] == pytest.approx(other.per_video["deviation"], rel=1e-4)
        assert one.metrics["ratio"].value == pytest.approx(other.metrics["ratio"].value, rel=1e-4)
        assert one.metrics["nearest"] == other.metrics["nearest"]
    done = command("study", "figures", "--ckpt", "nowhere.pt")
    assert done.returncode == 2 and re.fullmatch(r"error: there is no checkpoint nowhere.pt; .*\n", done.stderr)


def test_a_data_set_without_sound_and_labels(synthetic: Path, weights: Callable[[str], Path], tmp_path: Path) -> None:
    shards = muted(synthetic, tmp_path, 5)
    settings = Figures((weights("trunk"),), dataset="mine", shards=shards, random=False, **SMALL)
    text, found = drawn_by(replace(settings, out=tmp_path / "out"))
    assert [record.model for record in found] == ["trunk"] and "minus random" not in found[0].metrics
    assert "nearest: 4 videos drawn from all, as the videos have no labels; how often" in text
    assert "minus random" not in text and "left out" not in text


@pytest.mark.parametrize(
    ("ckpt", "typed", "message"),
    [
        ("sound", "", "sound.pt was trained without pictures, so it has no features of them"),
        ("trunk", "--kind embeddings", "is of no run of this program; say with --dataset"),
        ("e trunk", "--kind embeddings", "trunk.pt holds a trunk alone, and embeddings"),
        ("damaged", "--videos 8 --clips 3 --shown 4", "damaged.pt: features are not finite: the weights are damaged"),
        ("e", "--split nowhere", "has no held-out videos (split 'nowhere')"),
        ("e", "--label weather", "has no column 'weather'"),
        ("e", "--clips 1000", "0 of the 12 videos of the split 'test' are long enough for 1000 clips"),
        ("e", "--of-class cats", "--of-class is 'cats', which 0 of the 12 videos"),
        ("e", "--clips 1", "--clips is 1; it must be 2 or more, or there is nothing that could lie apart"),
        ("e", "--videos 2", "--videos is 2; it must be 3 or more"),
        ("e", "--shown 1", "--shown is 1; it must be 2 or more, or every clip is of the same video"),
        ("e", "--perplexity 0.5", "--perplexity is 0.5; it must be 1 or more"),
        ("e", "--seed -1", "--seed is -1; it must be 0 or more"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    checkpoint: Path, weights: Callable[[str], Path], tmp_path: Path, ckpt: str, typed: str, message: str
) -> None:
    paths = [str(checkpoint if name == "e" else weights(name)) for name in ckpt.split()]
    with pytest.raises(UserError, match=re.escape(message)):
        draw.figures(
            settings_of(["figures", "--ckpt", *paths, "--out", str(tmp_path / "out"), *typed.split()], COMMANDS)
        )
    assert not (tmp_path / "out").exists()


def test_many_models_and_what_is_said_of_them(checkpoint: Path, tmp_path: Path) -> None:
    """Of embeddings of the smallest numbers of videos and clips that there can be."""
    settings = Figures((checkpoint,), kind="embeddings", videos=3, clips=2, shown=2, out=tmp_path)
    text, found = drawn_by(settings)
    assert "embeddings of the picture" in text
    random, model = found
    assert re.search(r"clips last [.\d]+ s and start [.\d]+ s after one another \(median over videos\)", text)
    many = [replace(model, model=f"{name}<&>$\\x$", trained_on="these") for name in "_abcdefghijk"]
    found = [replace(random, how=random.how | {"left out": "7"}), *many]
    said = "\n".join(told(found))
    assert "7 videos are left out: they offer fewer than 2 different starts" in said
    assert "b<&>$\\x$, c<&>$\\x$" in said and "learned from these videos" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as matplotlib gives where it leaves a name out
        figure = pictures.deviation(found)
        figure.savefig(tmp_path / "many.png", dpi=40)
    assert [text.get_text().split(":")[0] for text in figure.legends[0].get_texts()] == [x.model for x in found]
    table, (first, second) = on_the_page(found, "v0")
    assert table == lines(found) and [key.name for key in first.legend] == [row[0] for row in table[1:-1]]
    assert "<&>" not in first.svg and 'id="v0-relative-' in second.svg
