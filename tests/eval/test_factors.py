"""Which factors features encode: tested on constructed features and videos with known answers."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common import commandline
from gdt.common.errors import UserError
from gdt.eval.factors.evaluate import factors
from gdt.eval.factors.probing import assign_folds, distances, probe_accuracy, relative_distance, video_accuracy
from gdt.eval.factors.promises import (
    ACCURACY,
    ACCURACY_RANDOM,
    DISTANCE,
    DISTANCE_MORE,
    DISTANCE_RANDOM,
    Metrics,
    check_promise,
    promised_contrasts,
    promises_of,
    round_up,
)
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.tables import EMBEDDING, factor_of, metrics_at, row_name, summarise_model
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.metrics import Metric, clustered, difference
from gdt.eval.record import Record, read, write
from gdt.pipeline import presets
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import TRANSFORMATIONS, parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.preprocess.stage import Preprocess
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.run import to_json
from gdt.train.settings import SIZES
from tests.conftest import Run, preprocess

TINY = SIZES["tiny"]
PROBE = (5, 0.1, 0)
"""Folds, C and seed."""


# ---------------------------------------------------------------------------------------------------------------------
# Constructed features
# ---------------------------------------------------------------------------------------------------------------------


def bounded(found: Metric) -> tuple[float, float, float]:
    return found.value, *found.interval


def constructed(n: int, s: int, k: int, strength: float, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Features [n, s, k, n + k + 20]: the video one-hot, the factor one-hot times `strength`, and noise."""
    rng = np.random.default_rng(seed)
    parts = [np.broadcast_to(np.eye(n)[:, None, None], (n, s, k, n)),
             np.broadcast_to(strength * np.eye(k), (n, s, k, k)), np.zeros((n, s, k, 20))]  # fmt: skip
    features = np.concatenate(parts, -1)
    return features + noise * rng.normal(size=(n, s, 1, features.shape[-1]))  # of a clip, whatever the value


@pytest.mark.parametrize("k", [2, 4])
def test_encoded_factors_are_classified_and_have_the_expected_distance(k: int) -> None:
    for strength in (0.5, 1.0):
        found = constructed(40, 3, k, strength)
        metric = probe_accuracy(found, *PROBE)
        assert metric.value == 100.0 and metric.chance == 100 / k and metric.low > 80
        # between videos lie sqrt(2), between values strength sqrt(2), plus noise
        exact = relative_distance(distances(constructed(40, 3, k, strength, noise=0.0)))
        assert exact.value == pytest.approx(strength) and exact.high - exact.low < 1e-6
        assert relative_distance(distances(found)).value == pytest.approx(strength, rel=0.2)


def test_two_factors_are_measured_independently() -> None:
    """Features that encode the video and both factors, one of them or neither."""
    n, s, first, second = 30, 2, 2, 3
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(first, 16)), rng.normal(size=(second, 16))
    video = rng.normal(size=(n, 16))
    for holds in ((True, True), (True, False), (False, True), (False, False)):
        base = np.repeat(video[:, None], s, 1) + 0.3 * rng.normal(size=(n, s, 16))
        for number, code in enumerate(codes):
            others = holds[1 - number] * codes[1 - number][0]  # the other factor at its first value
            changed = base[:, :, None] + others + (code if holds[number] else 0 * code)
            metric, ratio = probe_accuracy(changed, *PROBE), relative_distance(distances(changed))
            at_chance = metric.low <= metric.chance <= metric.high
            assert metric.low > 80 if holds[number] else at_chance, (holds, number)
            assert (ratio.low > 0.3) if holds[number] else (ratio.high < 1e-6), (holds, number)


def test_intervals_of_noise_cover_chance() -> None:
    """If cross-validated answers counted in full, intervals would miss chance in 27 of 200 draws."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(60):
        low, high = probe_accuracy(rng.normal(size=(100, 3, 2, 8)), *PROBE).interval
        missed += not low <= 50 <= high
    assert missed <= 5


def test_folds_split_by_video() -> None:
    """Features unique to video and value can be classified only by a probe that has seen the video."""
    n, k = 20, 2
    found = np.broadcast_to(np.eye(n * k).reshape(n, 1, k, n * k), (n, 3, k, n * k))
    metric = probe_accuracy(found, *PROBE)
    assert metric.low < 50 < metric.high
    fold = assign_folds(23, 5, 0)
    assert fold.shape == (23,) and sorted(np.bincount(fold)) == [4, 4, 5, 5, 5]
    assert (fold != assign_folds(23, 5, 1)).any()


def test_intervals_of_distances_cover_the_truth() -> None:
    rng = np.random.default_rng(0)

    def drawn(n: int) -> np.ndarray:
        """Features that move by 0.2 to 0.8 of the distance between videos."""
        strength = rng.uniform(0.2, 0.8, (n, 1))
        first, second = rng.normal(size=(2, n, 200)) / np.sqrt(200)
        both = np.stack([np.concatenate([first, 0 * second], 1), np.concatenate([first, strength * second], 1)], 1)
        return both[:, None]

    truth = np.mean([relative_distance(distances(drawn(200))).value for _ in range(10)])
    holds = [
        found.low <= truth <= found.high for found in (relative_distance(distances(drawn(15))) for _ in range(200))
    ]
    assert 0.9 <= np.mean(holds) <= 0.99


def test_a_difference_on_the_same_videos_is_narrower_than_its_parts() -> None:
    one, other = constructed(30, 2, 2, 0.8, noise=0.3), constructed(30, 2, 2, 0.5, noise=0.3)
    more = relative_distance(distances(one), distances(other))
    assert more.value == pytest.approx(
        relative_distance(distances(one)).value - relative_distance(distances(other)).value
    )
    assert more.low > 0 > relative_distance(distances(other), distances(one)).high
    assert bounded(relative_distance(distances(one), distances(one))) == (0, 0, 0)


@pytest.mark.parametrize(("value", "message"), [(1.0, "of all videos are the same"), (np.nan, "contain NaN")])
def test_collapsed_or_nan_features_are_an_error(value: float, message: str) -> None:
    with pytest.raises(UserError, match=f"features {message}"):
        distances(np.full((6, 2, 2, 8), value))


def test_video_accuracy() -> None:
    found = constructed(25, 2, 1, 0.0)
    assert video_accuracy(found).value == 100.0 and video_accuracy(found).chance == 4.0
    noise = video_accuracy(np.random.default_rng(0).normal(size=(25, 2, 1, 30)))
    assert noise.low < 4 and noise.value < 20


def test_correlated_answers_about_a_video_count_less() -> None:
    rng = np.random.default_rng(0)
    together = np.repeat(rng.random((50, 1)) < 0.7, 12, axis=1)
    apart = rng.random((50, 12)) < 0.7
    assert clustered(together, 50, cross_validated=False).answers == pytest.approx(50, abs=2)
    assert clustered(apart, 50, cross_validated=False).answers > 400
    assert clustered(apart, 50, cross_validated=True).answers <= 300
    assert clustered(np.ones((50, 12), bool), 50, cross_validated=True).low == pytest.approx(92.9, abs=0.1)
    half = np.tile([True, False], (50, 6))  # whatever the probe answers for a clip is right for one of its values
    assert clustered(half, 50, cross_validated=False).answers == 600


# ---------------------------------------------------------------------------------------------------------------------
# Promises
# ---------------------------------------------------------------------------------------------------------------------


def test_promises_of_compositions() -> None:
    def short(factors: str) -> str:
        found = promised_contrasts(parse(factors, 16))
        return " ".join(f"{name}:{contrast[0]}" for name, contrast in found.items())

    of = {name: short(preset.factors) for name, preset in presets.PRESETS.items()}
    assert of["a"] == of["simclr"] == "video:d augmentation:i"
    assert of["b"] == "video:d time_reversal:i augmentation:i"
    # with one augmentation for each leaf, leaves of two modalities attract each other across two of them
    assert of["e"] == "video:d modality:i augmentation:i"
    assert of["l"] == "video:d time_shift:d modality:i time_reversal:i augmentation:i"
    assert of["m"] == "video:d time_shift:d modality:i time_reversal:d augmentation:i"
    assert of["arrow"] == "video:d time_reversal:d augmentation:i"
    assert short("video:d speed(1,2,4):i:2 rotation:d:4 augmentation:i:1") == (
        "video:d speed:i rotation:d augmentation:i"
    )


def metrics(accuracy: float, random: float, distance: float = 0.5, of_random: float = 0.5, n: int = 200) -> Metrics:
    distances = {DISTANCE: distance, DISTANCE_RANDOM: of_random, DISTANCE_MORE: distance - of_random}
    around = {name: Metric(x, bounds=(x - 0.05, x + 0.05)) for name, x in distances.items()}
    return around | {ACCURACY: Metric(accuracy, 50, n), ACCURACY_RANDOM: Metric(random, 50, n)}


@pytest.mark.parametrize(
    ("factor", "contrast", "found", "expected"),
    [
        ("time_reversal", "distinctive", metrics(80, 52), ""),
        (
            "time_reversal",
            "distinctive",
            metrics(52, 50),
            "does not classify it (accuracy 52.0 %, random",
        ),
        ("time_reversal", "distinctive", metrics(70, 69), "no better than with random weights"),
        ("rotation", "distinctive", metrics(98, 99), ""),
        ("time_reversal", "invariant", metrics(52, 50, 0.1, 0.5), ""),
        (
            "time_reversal",
            "invariant",
            metrics(80, 50, 0.1, 0.5),
            "classifies it better than with random weights",
        ),
        ("time_reversal", "invariant", metrics(52, 50, 0.5, 0.5), "no less than with random weights (distance 0.50"),
        (
            "modality",
            "invariant",
            metrics(100, 100, 2.0, 4.0),
            "as far as another video (distance 2.00, random",
        ),
        ("modality", "invariant", metrics(100, 100, 0.6, 4.0), "a probe classifies it (accuracy 100.0 %"),
        ("time_shift", "distinctive", metrics(50, 50, 0.9, 0.5), ""),
        ("time_shift", "distinctive", metrics(50, 50, 0.5, 0.9), "a probe does not classify it"),
    ],
)
def test_check_promise(factor: str, contrast: str, found: Metrics, expected: str) -> None:
    holds, _, against = check_promise(factor, {factor: contrast}, found, 200)
    assert holds == (not expected) and expected in against


def test_few_videos_give_no_verdict() -> None:
    """The intervals of the number of videos that is said to be needed tell."""
    few, more = metrics(60, 50, n=9), metrics(60, 50, n=600)
    found = check_promise("time_reversal", {"time_reversal": "distinctive"}, few, 9)
    assert found.kept is None and found.against == "accuracy 60.0 %, random weights 50.0 %, chance 50.0"
    assert 100 < found.needed < 600 and check_promise("order", {"order": "distinctive"}, more, 600).kept
    wide = metrics(50, 50, 0.4, 0.5, n=9) | {DISTANCE_MORE: Metric(-0.1, bounds=(-0.3, 0.1))}
    found = check_promise("speed", {"speed": "invariant"}, wide, 9)
    assert found == (None, pytest.approx(9 * (0.2 / 0.1) ** 2), "distance 0.40, random weights 0.50")
    accurate = metrics(90, 90, 0.1, 0.5, n=9)  # at least 90 %, or not
    assert check_promise("speed", {"speed": "invariant"}, accurate, 9).kept is None
    assert [round_up(number) for number in (0, 7.2, 36, 230, 4001)] == [0, 8, 40, 300, 5000]


def test_accuracy_above_chance_keeps_video_distinctive_if_time_shift_is() -> None:
    found = {name: metric for name, metric in metrics(70, 90).items() if name in (ACCURACY, ACCURACY_RANDOM)}
    assert not check_promise("video", {"video": "distinctive"}, found, 200).kept
    assert check_promise("video", {"video": "distinctive", "time_shift": "distinctive"}, found, 200).kept


# ---------------------------------------------------------------------------------------------------------------------
# Plans
# ---------------------------------------------------------------------------------------------------------------------

CHANGED = {
    "video": {"start"}, "time_shift": {"start"}, "modality": set(), "time_reversal": {"frames", "mel_frames", "words"},
    "speed": {"frames", "mel_frames", "words_seconds"}, "order": {"frames", "mel_frames", "words"},
    "rotation": {"turns"}, "augmentation": {"draws"}, "freeze": {"frames"},
}  # fmt: skip
FREEZE = '''
from gdt.pipeline.transformations.base import Choice, Transformation


class Freeze(Choice):
    """Moving, or every frame the middle one."""

    name = "freeze"
    values = ("moving", "frozen")

    def act(self, leaves, values, rng):
        frozen = values == 1
        leaves.frames[frozen] = leaves.frames[frozen, leaves.frames.shape[1] // 2, None]
'''


@pytest.fixture
def planner(index: Index) -> Planner:
    ranges, settings = TINY.augmentation, Factors((Path("x"),), videos=5, starts=2, draws=3)
    order = np.flatnonzero(index.split == "test")[::-1]
    return Planner(index, order, TINY.clip, centred(ranges.scale[0]), ranges, settings)


def custom(tmp_path: Path, code: str = FREEZE) -> Trained:
    path = tmp_path / "mine.py"
    path.write_text(code)
    factors = "video:d freeze:d:2 augmentation:i:2"
    settings = replace(TINY, factors=factors, factors_from=path).resolved()
    return Trained(GDT(settings.network, ["video"]).eval(), settings, 1, None)


@pytest.mark.parametrize("network", ["video", "audio"])
def test_only_the_factor_differs_between_its_values(planner: Planner, network: str, tmp_path: Path) -> None:
    factors = promises_of(custom(tmp_path)).factors
    assert [factor.name for factor in factors] == [*TRANSFORMATIONS, "freeze"]
    for factor in factors:
        trial = planner.trial(factor, network)
        if trial is None:
            assert network == "audio" and factor.name in ("rotation", "freeze")
            continue
        n, s, k = trial.shape
        assert n == 5 and len(trial.leaves) == n * s * k and (np.diff(trial.videos) > 0).all()
        values = trial.leaves.arrays() | {f"draws {name}": x for name, x in trial.leaves.draws.items()}
        axis = 1 if factor.name == "video" else 2  # which has no value but the video, at two times
        differ = {name.split()[0] for name, x in values.items() if differs(x.reshape(n, s, k, -1), axis)}
        assert differ == CHANGED[factor.name], factor.name
        assert trial.leaves.modalities == (network,)
        assert (trial.leaves.video.reshape(n, s * k) == trial.videos[:, None]).all()
        if factor.name not in ("video", "time_shift", "modality"):
            assert np.unique(trial.leaves.start.reshape(n, s, k), axis=1).shape[1] == 2


def differs(values: np.ndarray, axis: int) -> bool:
    return bool((values != np.take(values, [0], axis)).any())


def test_clips_start_in_their_third_and_fit_the_video(planner: Planner) -> None:
    trial = planner.trial(TRANSFORMATIONS["time_shift"](), "audio")
    counts = planner.index.start_counts(TINY.clip.frames, TINY.clip.stride, TINY.clip.mel_frames)[trial.videos]
    starts = trial.leaves.start.reshape(trial.shape)
    assert (starts * 3 // counts[:, None, None] == np.arange(3)).all()
    speed = planner.trial(TRANSFORMATIONS["speed"](), "video")
    last = speed.leaves.start + speed.leaves.frames.max(1)
    assert (last < planner.index.frame_count[speed.leaves.video]).all()
    assert (last == planner.index.frame_count[speed.leaves.video] - 1).any()


def loaded(planner: Planner, trial: Trial) -> np.ndarray:
    """Inputs of a network, crops or banks, with the axes of the trial first."""
    found = []
    with Loader(planner.index, trial.plans(), TINY.clip, torch.device("cpu")) as loader:
        for batch in loader:
            inputs = batch.inputs[trial.network]
            found.append((inputs.floats() if trial.network == "video" else inputs).numpy().copy())
    every = np.concatenate(found)
    return every.reshape(*trial.shape, *every.shape[1:])


def test_clips_differ_only_by_the_factor(planner: Planner) -> None:
    """[n, s, k, 3, frames, height, width] and [n, s, k, 1, bands, frames]."""

    def of(name: str, network: str) -> np.ndarray:
        return loaded(planner, planner.trial(TRANSFORMATIONS[name](), network))

    reversal, rotation, speed, sound = (
        of("time_reversal", "video"), of("rotation", "video"), of("speed", "video"), of("time_reversal", "audio")
    )  # fmt: skip
    assert np.array_equal(reversal[:, :, 1], reversal[:, :, 0, :, ::-1])
    assert np.array_equal(sound[:, :, 1], sound[:, :, 0, ..., ::-1])
    for turns in range(4):
        assert np.array_equal(rotation[:, :, turns], np.rot90(rotation[:, :, 0], turns, (4, 5)))
    assert np.array_equal(rotation[:, :, 0], reversal[:, :, 0])  # other values, the same clips
    assert np.array_equal(speed[:, :, 1, :, :4], speed[:, :, 0, :, ::2])


def test_custom_factors_are_promised_while_their_file_is_unchanged(tmp_path: Path) -> None:
    trained = custom(tmp_path)
    assert promises_of(trained).of("freeze") == "distinctive" and promises_of(trained).of("speed") == "not varied"
    (tmp_path / "mine.py").write_text(FREEZE + "\n")
    found = promises_of(trained)
    assert found.of("freeze") == found.of("video") == "not known" and "mine.py has changed" in found.reason
    (tmp_path / "mine.py").unlink()
    assert "there is no file" in promises_of(trained).reason
    assert [factor.name for factor in found.factors] == [*TRANSFORMATIONS]


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------

SMALL = {"videos": 6, "starts": 2, "cv_folds": 2, "draws": 2}


def run_factors(settings: Factors) -> tuple[str, list[Record]]:
    """The tables, with single spaces, and the records that the command writes."""
    factors(settings)
    lines = (settings.out / "table.txt").read_text().splitlines()
    assert all(len(line) <= 100 or "/" in line for line in lines)  # but paths
    return " ".join(" ".join(lines).split()), read(settings.out / "factors.json")


@pytest.fixture(scope="module")
def evaluated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Record], Path]:
    """Tables and records of the small model, and their folder."""
    out = tmp_path_factory.mktemp("factors") / "new" / "out"
    return *run_factors(Factors((checkpoint,), out=out, **SMALL)), out


def test_tables_records_and_picture(evaluated: tuple[str, list[Record], Path]) -> None:
    text, found, out = evaluated
    names = [row_name(row) for row in found]
    assert names[:5] == [
        "video (video)",
        "video (audio)",
        "time_shift (video)",
        "time_shift (audio)",
        "modality (both)",
    ]
    assert {"time_reversal (audio)", "rotation (video)", "augmentation (audio)", "order (video)"} < {*names}
    assert "rotation (audio)" not in names and "rotation does not change audio" in text
    assert (found[0].details["composition"], found[0].preset, found[0].step, found[0].query_split) == (
        "video:d:4 time_shift:i:1 modality:i:2:differs time_reversal:i:1 augmentation:i:1", "e", 3, "test"
    )  # fmt: skip
    promised = {row.factor.name: row.factor.promise for row in found}
    assert promised["video"] == "distinctive" and promised["modality"] == promised["augmentation"] == "invariant"
    assert promised["time_reversal"] == promised["time_shift"] == "not varied"
    for row in found:
        factor, embedding = factor_of(row), metrics_at(EMBEDDING, row)
        promised = factor.kept is not None or factor.needed > 6
        assert row.queries == 6 and promised == (factor.promise != "not varied")
        assert bool(metrics_at("trunk", row)) == (factor.name != "modality")
        assert embedding[ACCURACY].chance == pytest.approx(100 / (6 if factor.name == "video" else len(factor.values)))
        assert (DISTANCE in embedding) == (factor.name != "video")
        promise = f"{row_name(row)} is {factor.promise}"
        if factor.kept is False:
            assert f"broken: {promise}, but {factor.against}" in text
        if factor.needed:
            assert (
                f"too few videos to tell (6; about {factor.needed:,} are needed: raise --videos): {promise}; "
                f"{factor.against}" in text
            )
    assert any(row.factor.needed for row in found)
    shift = metrics_at(EMBEDDING, found[2])
    said = f"stays): video {shift[DISTANCE].value:.2f} (random {shift[DISTANCE_RANDOM].value:.2f}), audio "
    assert said in summarise_model(found).replace("\n    ", " ")
    few = "the videos of this split may change too little"
    assert few not in summarise_model(found)
    broken = replace(found[2], factor=replace(factor_of(found[2]), promise="distinctive", kept=False))
    assert few in summarise_model([broken]) and few not in summarise_model([replace(broken, query_split="train")])
    assert "modality: only embeddings are comparable between networks" in text
    assert (out / "table.tex").read_text().count(r"\toprule") == 2
    assert Image.open(out / "factors.png").width > 600


def test_models_of_earlier_calls_stay_in_the_tables(
    checkpoint: Path, evaluated: tuple[str, list[Record], Path], tmp_path: Path
) -> None:
    """Those measured with the same settings; others are replaced."""
    found = evaluated[1]
    other = [replace(row, model="other") for row in found]
    write(tmp_path / "factors.json", [*other, *found])
    settings = Factors((checkpoint,), out=tmp_path, **SMALL)
    said = factors(settings)
    assert "also in the tables, from earlier calls with the same settings: other\n" in said
    assert said.count("classified better than") == 1 and (tmp_path / "table.txt").read_text().count("other: e,") == 1
    both = read(tmp_path / "factors.json")
    assert both[len(found) :] == other and {row.model for row in both[: len(found)]} == {found[0].model}
    (tmp_path / "factors.json").write_text("damaged")
    assert "also in the tables" not in factors(settings)
    write(tmp_path / "factors.json", other)
    factors(replace(settings, draws=3))
    assert "other" not in {row.model for row in read(tmp_path / "factors.json")}


def muted(videos: Path, folder: Path, count: int) -> Path:
    """Shards of some generated videos without sound and labels, all in the split test."""
    source = folder / "videos" / "test"
    source.mkdir(parents=True)
    for number, path in enumerate(sorted((videos / "train").rglob("*.mp4"))[:count]):
        mute = ["ffmpeg", "-v", "error", "-i", path, "-an", "-c:v", "copy", source / f"{number}.mp4"]
        subprocess.run(mute, check=True)
    preprocess(Preprocess("folder", source.parent, folder / "shards"))
    index = Index.open(folder / "shards")
    assert not index.mel_count.any() and set(index.label) == {""}
    return folder / "shards"


def test_videos_without_sound_and_labels(synthetic: Path, checkpoint: Path, tmp_path: Path) -> None:
    shards = muted(synthetic, tmp_path, 8)
    text, found = run_factors(Factors((checkpoint,), "mine", shards, out=tmp_path / "out", **SMALL))
    assert {row.factor.network for row in found} == {"video"} and len(found) == 7
    assert text.count("the videos have no sound, so audio and modality are not measured") == 1
    assert (found[0].query_split, found[0].trained_on) == ("test", "unknown")


def test_weights_without_a_head_or_a_composition(checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    trained = load_model(checkpoint)
    weights = {f"base.{name}": value for name, value in trained.model.video_network.base.state_dict().items()}
    torch.save(weights | {"settings": to_json(trained.settings)}, tmp_path / "finetuned.pt")
    given = Factors((tmp_path / "finetuned.pt",), shards=shards, out=tmp_path / "out", **SMALL)
    text, found = run_factors(given)
    assert all(metrics_at("trunk", row) and not metrics_at(EMBEDDING, row) and row.factor.kept is None for row in found)
    assert {row.factor.promise for row in found} == {"not known"} and not found[0].details
    for note in ("nothing is promised", "have no head, so embeddings are not measured",
                 "no audio network, so audio and modality are not measured"):  # fmt: skip
        assert note in text
    assert "Embeddings, which" not in text and "broken" not in text
    assert (tmp_path / "out" / "table.tex").read_text().count(r"\toprule") == 1


def test_the_command_prints_a_summary_and_repeats_its_numbers(
    command: Run, evaluated: tuple[str, list[Record], Path], checkpoint: Path, tmp_path: Path
) -> None:
    small = [str(part) for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", value)]
    done = command("factors", "--ckpt", checkpoint, *small)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "factors-synthetic"
    lines = done.stdout.splitlines()
    assert len(lines) <= 15 and max(map(len, lines)) <= 100
    assert "broken promises: " in done.stdout and "  too few videos to tell (6; about " in done.stdout
    assert "picture: runs/factors-synthetic/factors.png" in lines
    again = read(out / "factors.json")
    for one, other in zip(again, evaluated[1], strict=True):
        assert one.factor == other.factor and one.metrics.keys() == other.metrics.keys()
        for name, found in one.metrics.items():  # equal up to rounding with other threads
            assert bounded(found) == pytest.approx(bounded(other.metrics[name]), rel=1e-3, abs=1e-6)
    done = command("factors", "--ckpt", "nowhere.pt")
    assert done.returncode == 2 and re.fullmatch(r"error: there is no checkpoint nowhere.pt; .*\n", done.stderr)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--videos 4", "--videos is 4; it must be 5 or more, at least one per fold"),
        ("--draws 1", "--draws is 1; it must be 2 or more"),
        ("--probe-c 0", "--probe-c is 0.0; it must be above 0"),
        ("--split nowhere", "unknown split 'nowhere'; available:"),
        ("--videos 20 --cv-folds 20", "no factor can be measured on"),
    ],
)
def test_bad_settings_are_one_sentence(checkpoint: Path, typed: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        factors(commandline.parse(Factors, "gdt factors", ["--ckpt", str(checkpoint), *typed.split()]))


# ---------------------------------------------------------------------------------------------------------------------
# Trained models
# ---------------------------------------------------------------------------------------------------------------------


def ramps(folder: Path, videos: int, rise: float, flicker: float) -> None:
    """Coloured squares that brighten over 3 s by `rise`, up to three times as much, and flicker."""
    rng = np.random.default_rng(videos)
    folder.mkdir(parents=True)
    for number in range(videos):
        squares = np.kron(rng.uniform(40, 255, (4, 4, 3)), np.ones((16, 16, 1)))
        light = rng.uniform(0.15, 0.4) + rise * rng.uniform(1, 3) * np.linspace(0, 1, 45)
        light = light + flicker * rng.normal(size=45)
        noise = rng.normal(scale=3, size=(45, 64, 64, 3))
        frames = np.clip(squares * light[:, None, None, None] + noise, 0, 255).astype(np.uint8)
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "64x64", "-r", "15", "-i", "-"]
        out = ["-threads", "1", "-pix_fmt", "yuv420p", folder / f"{folder.name}{number}.mp4"]
        subprocess.run(["ffmpeg", "-v", "error", *raw, *out], input=frames.tobytes(), check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_trained_models_encode_distinctive_and_ignore_invariant_reversal(tmp_path: Path) -> None:
    """Held-out videos brighten so little that random weights hardly encode the direction."""
    ramps(tmp_path / "videos" / "train", 80, rise=0.2, flicker=0.0)
    ramps(tmp_path / "videos" / "test", 50, rise=0.08, flicker=0.005)
    preprocess(Preprocess("folder", tmp_path / "videos", tmp_path / "shards"))
    found = {}
    for preset in ("arrow", "b"):  # time reversal distinctive, and invariant
        run = replace(TINY, shards=tmp_path / "shards", out=tmp_path / preset, preset=preset, batch_size=8,
                      steps=400)  # fmt: skip
        text, result = run_factors(Factors((pretrain(run),), videos=50, starts=2, out=tmp_path / f"factors-{preset}"))
        print(text)
        found[preset] = next(row for row in result if row.factor.name == "time_reversal")
    distinctive, invariant = (metrics_at(EMBEDDING, found[preset]) for preset in ("arrow", "b"))
    assert found["arrow"].factor.kept and found["b"].factor.kept
    assert distinctive[ACCURACY].value > 85
    assert difference([distinctive[ACCURACY]], [distinctive[ACCURACY_RANDOM]])[1] > 5
    assert invariant[ACCURACY].high < distinctive[ACCURACY].low and invariant[ACCURACY].value < 65
    assert distinctive[DISTANCE].low > 4 * invariant[DISTANCE].high
