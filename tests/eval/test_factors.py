"""How far factors move features: tested on constructed features and videos with known answers."""

import csv
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.eval.factors.evaluate import factors, known, measure
from gdt.eval.factors.probing import probe_accuracy, relative_distance
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.trials import Trials
from gdt.eval.metrics import clustered
from gdt.pipeline.notation import TRANSFORMATIONS, read_transformations
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.record import Record
from gdt.train.settings import SIZES, RunSettings
from gdt.train.trained import Trained
from gdt.train.weights import KINETICS, network_header
from tests.composed import inputs_of
from tests.pipeline.test_notation import FREEZE

TINY = RunSettings.of(SIZES["tiny"])


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
        metric = probe_accuracy(found)
        assert metric.value == 100.0 and metric.chance == 100 / k and metric.low > 80
        # between videos lie sqrt(2), between values strength sqrt(2), plus noise
        exact = relative_distance(constructed(40, 3, k, strength, noise=0.0))
        assert exact.value == pytest.approx(strength) and exact.high - exact.low < 1e-6
        assert relative_distance(found).value == pytest.approx(strength, rel=0.2)


@pytest.mark.slow
def test_intervals_of_noise_cover_chance() -> None:
    """If cross-validated answers counted in full, intervals would miss chance in 27 of 200 draws."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(60):
        low, high = probe_accuracy(rng.normal(size=(100, 3, 2, 8))).interval
        missed += not low <= 50 <= high
    assert missed <= 5


def test_folds_split_by_video() -> None:
    """Features unique to video and value can be classified only by a probe that has seen the video."""
    n, k = 20, 2
    found = np.broadcast_to(np.eye(n * k).reshape(n, 1, k, n * k), (n, 3, k, n * k))
    metric = probe_accuracy(found)
    assert metric.low < 50 < metric.high


def test_intervals_of_distances_cover_the_truth() -> None:
    rng = np.random.default_rng(0)

    def drawn(n: int) -> np.ndarray:
        """Features that move by 0.2 to 0.8 of the distance between videos."""
        strength = rng.uniform(0.2, 0.8, (n, 1))
        first, second = rng.normal(size=(2, n, 200)) / np.sqrt(200)
        both = np.stack([np.concatenate([first, 0 * second], 1), np.concatenate([first, strength * second], 1)], 1)
        return both[:, None]

    truth = np.mean([relative_distance(drawn(200)).value for _ in range(10)])
    holds = [found.low <= truth <= found.high for found in (relative_distance(drawn(15)) for _ in range(200))]
    assert 0.9 <= np.mean(holds) <= 0.99


@pytest.mark.parametrize(("value", "message"), [(1.0, "of all videos are the same"), (np.nan, "contain NaN")])
def test_collapsed_or_nan_features_are_an_error(value: float, message: str) -> None:
    with pytest.raises(UserError, match=f"features {message}"):
        relative_distance(np.full((6, 2, 2, 8), value))


def test_correlated_answers_about_a_video_count_less() -> None:
    rng = np.random.default_rng(0)
    together = np.repeat(rng.random((50, 1)) < 0.7, 12, axis=1)
    assert clustered(together, 50).answers == pytest.approx(25, abs=2)
    assert 200 < clustered(rng.random((50, 12)) < 0.7, 50).answers <= 300
    assert clustered(np.ones((50, 12), bool), 50).low == pytest.approx(92.9, abs=0.1)
    half = np.tile([True, False], (50, 6))  # whatever the probe answers for a clip is right for one of its values
    assert clustered(half, 50).answers == 300


CHANGED = {
    "time_shift": {"start"}, "time_reversal": {"frames", "mel_frames", "words"},
    "speed": {"frames", "mel_frames", "words_seconds"}, "order": {"frames", "mel_frames", "words"},
    "rotation": {"turns"}, "augmentation": {"draws"}, "freeze": {"frames"},
}  # fmt: skip


@pytest.fixture
def trials(index: Index) -> Trials:
    order = np.flatnonzero(index.split == "test")[::-1]
    return Trials(index, order, inputs_of(index, TINY.clip, TINY.augmentation), 5)


@pytest.mark.parametrize("network", ["video", "audio"])
def test_only_the_factor_differs_between_its_values(trials: Trials, network: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FREEZE)
    settings = replace(TINY, factors="video:d freeze:d:2 augmentation:i:2", factors_from=tmp_path / "mine.py")
    trained = Trained(GDT(settings.network, ["video"]).eval(), Record(settings, KINETICS, step=1))
    every = known(trained, read_transformations(settings.factors_from)[0])
    assert [factor.name for factor in every] == [*TRANSFORMATIONS, "freeze"]
    for factor in every:
        if (trial := trials.trial(factor, network)) is None:
            assert factor.name in ("video", "modality")
            continue
        n, s, k = trial.shape
        videos = trial.leaves.video.reshape(n, -1)[:, 0]
        assert n == 5 and len(trial.leaves) == n * s * k and (np.diff(videos) > 0).all()
        values = trial.leaves.arrays() | {f"draws {name}": x for name, x in trial.leaves.draws.items()}
        by_value = {name: x.reshape(n, s, k, -1) for name, x in values.items()}
        differ = {name.split()[0] for name, x in by_value.items() if (x != x[:, :, :1]).any()}
        assert differ == CHANGED[factor.name], factor.name
        assert trial.leaves.modalities == (network,)
        assert (trial.leaves.video.reshape(n, s * k) == videos[:, None]).all()


def test_clips_start_in_their_third_and_fit_the_video(trials: Trials) -> None:
    trial = trials.trial(TRANSFORMATIONS["time_shift"](), "audio")
    counts = trials.index.start_counts(TINY.clip.frames, TINY.clip.stride, TINY.clip.mel_frames)
    starts = trial.leaves.start.reshape(trial.shape)
    own = counts[trial.leaves.video].reshape(trial.shape)
    assert (starts * 3 // own == np.arange(3)).all()
    speed = trials.trial(TRANSFORMATIONS["speed"](), "video")
    last = speed.leaves.start + speed.leaves.frames.max(1)
    assert (last < trials.index.frame_count[speed.leaves.video]).all()
    assert (last == trials.index.frame_count[speed.leaves.video] - 1).any()


def test_factors_of_the_composition_keep_their_settings() -> None:
    settings = replace(TINY, factors="video:d speed(1,4):i:2 augmentation:i:1")
    trained = Trained(GDT(settings.network, ["video"]).eval(), Record(settings, KINETICS, step=1))
    assert [str(factor) for factor in known(trained) if factor.name == "speed"] == ["speed(1,4)"]
    assert [factor.name for factor in known(trained)] == [*TRANSFORMATIONS]


NUMBERS = r"(-?[\d.]+) \((-?[\d.]+)-(-?[\d.]+)\)"


def test_table_and_csv(checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    """Of a whole model and of a trunk without a head."""
    trained, out = load_model(checkpoint), tmp_path / "new" / "out"
    weights = {f"base.{name}": value for name, value in trained.model.video_network.base.state_dict().items()}
    torch.save(weights | network_header(trained, "video"), tmp_path / "mine.pt")
    text = factors(Factors((tmp_path / "mine.pt", checkpoint), shards=shards, out=out, videos=6))
    assert (out / "table.txt").read_text() in text + "\n" and "e: e, 3 steps, " in text
    text = " ".join(text.split())
    with (out / "factors.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [tuple(row[name] for name in ("measure", "factor", "features", "model")) for row in rows]
    measured = itertools.product(("distance", "accuracy"), TRANSFORMATIONS.keys() - {"video", "modality"})
    networks = (("video embeddings", "e"), ("audio embeddings", "e"), ("video trunk", "mine"))
    assert sorted(found) == sorted((*each, *of) for each in measured for of in networks)
    for (kind, factor, layer, model), row in zip(found, rows, strict=True):
        own, random = ([float(row[f"{of}{name}"]) for name in ("value", "low", "high")] for of in ("", "random_"))
        assert own[1] <= own[0] <= own[2] and random[1] <= random[0] <= random[2] and row["videos"] == "6"
        shown = re.search(rf"{kind} {factor} {layer} {model} {NUMBERS} {NUMBERS}", text)
        # each is rounded on its own
        assert shown and [*map(float, shown.groups())] == pytest.approx(
            [*own, *random], abs=0.06 if kind == "accuracy" else 0.006
        )
        chance = {"time_shift": 100 / 3, "augmentation": 25}.get(factor)
        assert kind == "distance" or chance is None or float(row["chance"]) == pytest.approx(chance, abs=1e-3)
        if (factor, layer) == ("rotation", "audio embeddings"):  # it changes nothing there
            assert own[0] == pytest.approx(0, abs=1e-5) if kind == "distance" else own[1] <= 25 <= own[2]


def test_videos_without_sound_are_measured_by_frames_and_too_few_are_refused(checkpoint: Path, index: Index) -> None:
    mute = replace(index, mel_count=np.zeros_like(index.mel_count))
    found = measure(load_model(checkpoint), mute, "test", 6)
    assert {row["features"] for row in found} == {"video embeddings"} and len({row["factor"] for row in found}) == 6
    with pytest.raises(UserError, match="--videos is 4; it must be 5 or more, at least one per fold"):
        Factors((checkpoint,), videos=4)
    test = index.split == "test"
    frames, rows = np.where(test, 20, index.frame_count), np.where(test, 65, index.mel_count)
    short = replace(index, frame_count=frames, mel_count=rows)
    with pytest.raises(UserError, match="no factor can be measured .* set --split to a split with more videos"):
        measure(load_model(checkpoint), short, "test", 100)
