"""The paper's pictures of features: numbers of known features, choice of videos, the command."""

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
from gdt.eval.deviation import lines
from gdt.eval.metrics import median
from gdt.eval.page.page import deviations as on_the_page
from gdt.eval.planes import planes
from gdt.eval.record import Record, read
from gdt.pipeline.shards.index import Index
from gdt.studies.command import COMMANDS
from gdt.studies.figures import draw, pictures
from gdt.studies.figures.settings import Figures
from gdt.studies.figures.spread import deviations, distances, nearest_share, ratio
from gdt.train.checkpoint import load_model
from gdt.train.settings import SIZES, to_json
from tests.conftest import Run
from tests.eval.test_factors import bounded, muted

CLIP = SIZES["tiny"][1].clip
SMALL = {"videos": 8, "clips": 3, "shown": 4}


# ---------------------------------------------------------------------------------------------------------------------
# Numbers of known features
# ---------------------------------------------------------------------------------------------------------------------


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_equal_clips_do_not_deviate() -> None:
    x = np.repeat(unit(np.random.default_rng(0).normal(size=(20, 1, 16))), 5, axis=1).astype(np.float32)
    assert deviations(x) == pytest.approx(np.zeros(20), abs=1e-7)
    assert bounded(ratio(distances(x))) == pytest.approx((0, 0, 0), abs=1e-6)
    assert nearest_share(x).value == 100.0


def test_known_angles_give_known_numbers() -> None:
    """Two clips at an angle to either side of the video's direction: the sine in one number, 0 in the others."""
    angle = np.array([0.1, 0.2, 0.4])
    x = np.zeros((3, 2, 6))
    x[np.arange(3), :, np.arange(3)] = np.cos(angle)[:, None]
    x[np.arange(3), :, np.arange(3) + 3] = np.sin(angle)[:, None] * [-1, 1]
    assert deviations(x) == pytest.approx(np.sin(angle) / 6)
    found = distances(x)  # two clips of a video are 2 sin apart, those of two videos sqrt(2), as they are orthogonal
    assert found.between == pytest.approx(1)
    assert found.relative == pytest.approx(2 * np.sin(angle) / np.sqrt(2))
    assert ratio(found).value == pytest.approx(np.sqrt((2 * np.sin(angle) ** 2).mean()))


def test_ratio_is_one_for_noise_and_known_for_noisy_videos() -> None:
    rng = np.random.default_rng(0)
    for s in (2, 10):
        noise = unit(rng.normal(size=(200, s, 40)))
        found = ratio(distances(noise))
        assert found.low < 1 < found.high and found.high - found.low < 0.1
        near = nearest_share(noise)
        assert near.interval[0] < near.chance < near.interval[1]
        assert near.chance == pytest.approx(100 * (s - 1) / (200 * s - 1))
        held = unit(rng.normal(size=(200, 1, 400)) + 0.5 * rng.normal(size=(200, s, 400)))
        assert ratio(distances(held)).value == pytest.approx(np.sqrt(0.25 / 1.25), rel=0.03)


def test_leave_one_out_distances_equal_those_without_the_video() -> None:
    x = unit(np.random.default_rng(0).normal(size=(7, 3, 5)))
    found = distances(x)
    assert found.without == pytest.approx([distances(np.delete(x, k, 0)).between for k in range(7)])
    pairs = [((x[a] - x[b]) ** 2).sum(1).mean() / 2 for a in range(7) for b in range(a)]
    assert found.between == pytest.approx(np.mean(pairs))


def test_ratio_interval_has_its_coverage() -> None:
    rng = np.random.default_rng(0)

    def drawn(n: int) -> np.ndarray:
        noise = rng.uniform(0.3, 1.2, (n, 1, 1)) * rng.normal(size=(n, 4, 60))
        return unit(rng.normal(size=(n, 1, 60)) + noise)

    truth = np.mean([ratio(distances(drawn(300))).value for _ in range(10)])
    holds = [found.low <= truth <= found.high for found in (ratio(distances(drawn(25))) for _ in range(300))]
    assert 0.9 <= np.mean(holds) <= 0.98


def test_difference_of_ratios_is_paired_by_video() -> None:
    rng = np.random.default_rng(0)
    video, noise = rng.normal(size=(30, 1, 20)), rng.normal(size=(30, 5, 20))
    near, far = (distances(unit(video + strength * noise)) for strength in (0.3, 0.9))
    difference = ratio(far, near)
    assert difference.value == pytest.approx(ratio(far).value - ratio(near).value) and difference.low > 0
    assert bounded(ratio(near, near)) == (0, 0, 0)


def test_planes_depend_on_the_seed_alone() -> None:
    x = np.random.default_rng(0).normal(size=(12, 5))
    one, other = planes(x, 30, 0), planes(x, 30, 0)
    assert np.array_equal(one.pca, other.pca) and np.array_equal(one.tsne, other.tsne)
    assert one.perplexity == pytest.approx(11 / 3) and one.variance[0] >= one.variance[1]


def test_nearest_other_clip_is_counted() -> None:
    x = np.eye(4)[[0, 0, 1, 1, 2, 3]] + 0.01 * np.eye(4)[[1, 1, 0, 0, 3, 2]]
    x = unit(x).reshape(3, 2, 4)  # the third video's clips point apart, but are nearest to each other
    assert nearest_share(x).value == 100.0
    x[2] = x[:2, 0]  # its clips are now copies of other videos' clips
    assert nearest_share(x).value == pytest.approx(400 / 6)


def test_median_interval_has_its_coverage() -> None:
    rng = np.random.default_rng(0)
    holds = [found.low <= 0 <= found.high for found in (median(rng.normal(size=40)) for _ in range(1000))]
    assert 0.94 <= np.mean(holds) <= 0.985
    assert bounded(median(np.array([3.0, 1.0, 2.0]))) == (2, 1, 3)


def test_equal_features_of_all_videos_are_refused() -> None:
    with pytest.raises(UserError, match="features of all videos are the same"):
        distances(np.ones((4, 2, 1)))
    with pytest.raises(UserError, match="features of all 8 points are the same"):
        planes(np.ones((8, 3)), 5, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Videos
# ---------------------------------------------------------------------------------------------------------------------


def settings_with(**changed: object) -> Figures:
    return Figures((Path("x"),), **(SMALL | changed))


def test_shown_videos_share_a_class_and_all_are_long_enough(index: Index) -> None:
    test = np.flatnonzero(index.split == "test")
    found = draw.choose_videos(index, "test", [CLIP], settings_with())
    assert (found.too_short, len(found.spread), len(found.shown)) == (0, 8, 4)
    assert {*found.spread} | {*found.shown} <= {*test} and {*index.label[found.shown]} == {found.of_class}
    named = draw.choose_videos(index, "test", [CLIP], settings_with(of_class=index.classes[2]))
    assert {*index.label[named.shown]} == {index.classes[2]} and np.array_equal(named.spread, found.spread)
    assert not np.array_equal(draw.choose_videos(index, "test", [CLIP], settings_with(seed=1)).spread, found.spread)
    short = index.frame_count.copy()
    length = (CLIP.frames - 1) * CLIP.stride + 1
    short[test[:5]] = length + 1  # two starts
    shortened = replace(index, frame_count=short)
    left = draw.choose_videos(shortened, "test", [CLIP], settings_with())
    assert left.too_short == 5 and not {*left.videos} & {*test[:5]}
    assert draw.choose_videos(shortened, "test", [CLIP], settings_with(clips=2)).too_short == 0
    longer = replace(CLIP, frames=2 * CLIP.frames)
    assert (
        draw.choose_videos(shortened, "test", [CLIP, longer], settings_with(clips=2)).too_short == 5
    )  # for all models
    short[test[:10]] = length
    with pytest.raises(
        UserError, match="2 of the 12 videos of the split 'test' are long enough for 3 clips, and 3 are needed; lower"
    ):
        draw.choose_videos(shortened, "test", [CLIP], settings_with())


def test_videos_are_drawn_from_all_without_classes(index: Index) -> None:
    for label in (np.full(len(index), "", object), index.id):  # none, and one for each video
        found = draw.choose_videos(replace(index, label=label), "test", [CLIP], settings_with(shown=6))
        assert found.of_class == "" and len(found.shown) == 6
    for label, there in ((np.full(len(index), "", object), "none"), (index.label, ", ".join(index.classes))):
        message = f"class 'x' has 0 of the 12 videos of the split 'test', .* set --of-class to one of: {there}$"
        with pytest.raises(UserError, match=message):
            draw.choose_videos(replace(index, label=label), "test", [CLIP], settings_with(of_class="x"))


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def run(settings: Figures) -> tuple[str, list[Record]]:
    """The text and the records of the command."""
    text = draw.figures(settings)
    return text, read(settings.out / "figures.json")


@pytest.fixture
def weights(checkpoint: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Checkpoints of the small model: audio alone, the video trunk alone, or damaged weights."""

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


def test_command_writes_records_and_pictures(
    command: Run, checkpoint: Path, weights: Callable[[str], Path], tmp_path: Path
) -> None:
    small = [str(part) for name, value in SMALL.items() for part in (f"--{name}", value)]
    done = command("study", "figures", "--ckpt", checkpoint, weights("trunk"), *small)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "figures-synthetic"
    assert (out / "table.txt").read_text() in done.stdout
    found = read(out / "figures.json")
    assert [record.model for record in found] == ["random weights", "e", "trunk"]
    random, model, trunk = found
    deviation = model.per_video["deviation"]
    assert deviation == pytest.approx(trunk.per_video["deviation"], rel=1e-4)  # the same weights from another file
    assert model.metrics["nearest"] == trunk.metrics["nearest"] and model.weights != trunk.weights
    ratios = [record.metrics["ratio"].value for record in (model, random)]
    assert "minus random" not in random.metrics
    assert model.metrics["minus random"].value == pytest.approx(ratios[0] - ratios[1])
    assert model.queries == len(model.videos) == len(deviation) == len(model.per_video["relative"]) == 8
    assert model.metrics["nearest"].chance == pytest.approx(100 * 2 / 11) and model.trained_on == "others"
    assert "\n4 videos of the class '" in done.stdout and len(model.details["shown"].split(", ")) == 4
    for name in ("deviation.png", "clips.png"):
        assert Image.open(out / name).width > 600
    again, _ = draw.measure(replace(model.settings_as(Figures), ckpt=(checkpoint,)))
    for one, other in zip(again, found, strict=False):  # equal up to rounding
        assert (one.videos, one.details) == (other.videos, other.details)
        assert one.per_video["deviation"] == pytest.approx(other.per_video["deviation"], rel=1e-4)
        assert one.metrics["ratio"].value == pytest.approx(other.metrics["ratio"].value, rel=1e-4)
        assert one.metrics["nearest"] == other.metrics["nearest"]
    done = command("study", "figures", "--ckpt", "nowhere.pt")
    assert done.returncode == 2 and re.fullmatch(r"error: there is no checkpoint nowhere.pt; .*\n", done.stderr)


def test_data_set_without_audio_and_labels(synthetic: Path, weights: Callable[[str], Path], tmp_path: Path) -> None:
    shards = muted(synthetic, tmp_path, 5)
    settings = Figures((weights("trunk"),), dataset="mine", shards=shards, random=False, **SMALL)
    text, found = run(replace(settings, out=tmp_path / "out"))
    assert [record.model for record in found] == ["trunk"] and "minus random" not in found[0].metrics
    assert "4 videos drawn from all, as the videos have no labels" in text
    assert "minus random" not in text and "skipped" not in text
    assert max(map(len, (tmp_path / "out" / "table.txt").read_text().splitlines())) <= 100


@pytest.mark.parametrize(
    ("ckpt", "typed", "message"),
    [
        ("sound", "", "sound.pt was trained without video, so it has no features of it"),
        ("trunk", "--kind embeddings", "does not name its data set; set --dataset"),
        ("e trunk", "--kind embeddings", "trunk.pt has no head, so it has no embeddings; set --kind features"),
        ("damaged", "--videos 8 --clips 3 --shown 4", "conv1.0.3.weight contains NaN or infinity; use another file"),
        ("e", "--split nowhere", "unknown split 'nowhere'; available: "),
        ("e", "--label weather", "unknown column 'weather'"),
        ("e", "--clips 1000", "0 of the 12 videos of the split 'test' are long enough for 1000 clips"),
        ("e", "--of-class cats", "class 'cats' has 0 of the 12 videos"),
        ("e", "--clips 1", "--clips is 1; it must be 2 or more; otherwise there is no distance between clips"),
        ("e", "--videos 2", "--videos is 2; it must be 3 or more"),
        ("e", "--shown 1", "--shown is 1; it must be 2 or more; otherwise every clip is of the same video"),
        ("e", "--perplexity 0.5", "--perplexity is 0.5; it must be 1 or more"),
        ("e", "--seed -1", "--seed is -1; it must be 0 or more"),
    ],
)
def test_unusable_input_is_one_sentence(
    checkpoint: Path, weights: Callable[[str], Path], tmp_path: Path, ckpt: str, typed: str, message: str
) -> None:
    paths = [str(checkpoint if name == "e" else weights(name)) for name in ckpt.split()]
    with pytest.raises(UserError, match=re.escape(message)):
        draw.figures(
            settings_of(["figures", "--ckpt", *paths, "--out", str(tmp_path / "out"), *typed.split()], COMMANDS)
        )
    assert not (tmp_path / "out").exists()


def test_many_models_and_the_fewest_videos_and_clips(checkpoint: Path, tmp_path: Path) -> None:
    settings = Figures((checkpoint,), kind="embeddings", videos=3, clips=2, shown=2, out=tmp_path)
    text, found = run(settings)
    assert "video embeddings, " in text
    random, model = found
    assert re.search(r"clips last [.\d]+ s and start [.\d]+ s apart \(median over videos\)", text)
    many = [replace(model, model=f"{name}<&>$\\x$", trained_on="these") for name in "_abcdefghijk"]
    found = [replace(random, details=random.details | {"left out": "7"}), *many]
    text = pictures.report(found)
    assert "7 videos are skipped: they have fewer than 2 different starts" in text
    assert "b<&>$\\x$, c<&>$\\x$" in text and "trained on these videos" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where it drops a name
        figure = pictures.deviation(found)
        figure.savefig(tmp_path / "many.png", dpi=40)
    assert [text.get_text().split(":")[0] for text in figure.legends[0].get_texts()] == [x.model for x in found]
    table, (first, second) = on_the_page(found, "v0")
    assert table == lines(found) and [key.name for key in first.legend] == [row[0] for row in table[1:-1]]
    assert "<&>" not in first.svg and 'id="v0-relative-' in second.svg
