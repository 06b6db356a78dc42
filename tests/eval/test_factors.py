"""How far factors move features: tested on constructed features and videos with known answers."""

from __future__ import annotations

import csv
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.common import commandline
from gdt.common.errors import UserError
from gdt.eval.factors.evaluate import EMBEDDING, factors, known
from gdt.eval.factors.probing import assign_folds, probe_accuracy, relative_distance, video_accuracy
from gdt.eval.factors.settings import Factors
from gdt.eval.factors.trials import Planner, Trial
from gdt.eval.metrics import clustered
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.shards.index import Index
from gdt.preprocess.stage import Preprocess
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.run import to_json
from gdt.train.settings import SIZES
from tests.conftest import Run, preprocess

TINY = SIZES["tiny"]


# ---------------------------------------------------------------------------------------------------------------------
# Constructed features
# ---------------------------------------------------------------------------------------------------------------------


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
        metric = probe_accuracy(found, 0)
        assert metric.value == 100.0 and metric.chance == 100 / k and metric.low > 80
        # between videos lie sqrt(2), between values strength sqrt(2), plus noise
        exact = relative_distance(constructed(40, 3, k, strength, noise=0.0))
        assert exact.value == pytest.approx(strength) and exact.high - exact.low < 1e-6
        assert relative_distance(found).value == pytest.approx(strength, rel=0.2)


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
            metric, ratio = probe_accuracy(changed, 0), relative_distance(changed)
            at_chance = metric.low <= metric.chance <= metric.high
            assert metric.low > 80 if holds[number] else at_chance, (holds, number)
            assert (ratio.low > 0.3) if holds[number] else (ratio.high < 1e-6), (holds, number)


def test_intervals_of_noise_cover_chance() -> None:
    """If cross-validated answers counted in full, intervals would miss chance in 27 of 200 draws."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(60):
        low, high = probe_accuracy(rng.normal(size=(100, 3, 2, 8)), 0).interval
        missed += not low <= 50 <= high
    assert missed <= 5


def test_folds_split_by_video() -> None:
    """Features unique to video and value can be classified only by a probe that has seen the video."""
    n, k = 20, 2
    found = np.broadcast_to(np.eye(n * k).reshape(n, 1, k, n * k), (n, 3, k, n * k))
    metric = probe_accuracy(found, 0)
    assert metric.low < 50 < metric.high
    fold = assign_folds(23, 0)
    assert fold.shape == (23,) and sorted(np.bincount(fold)) == [4, 4, 5, 5, 5]
    assert (fold != assign_folds(23, 1)).any()


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
    order = np.flatnonzero(index.split == "test")[::-1]
    return Planner(index, order, TINY.clip, TINY.augmentation, Factors((Path("x"),), videos=5))


def custom(tmp_path: Path, code: str = FREEZE) -> Trained:
    path = tmp_path / "mine.py"
    path.write_text(code)
    factors = "video:d freeze:d:2 augmentation:i:2"
    settings = replace(TINY, factors=factors, factors_from=path).resolved()
    return Trained(GDT(settings.network, ["video"]).eval(), settings, 1, None)


@pytest.mark.parametrize("network", ["video", "audio"])
def test_only_the_factor_differs_between_its_values(planner: Planner, network: str, tmp_path: Path) -> None:
    every = known(custom(tmp_path))
    assert [factor.name for factor in every] == [*TRANSFORMATIONS, "freeze"]
    for factor in every:
        trial = planner.trial(factor, network)
        if trial is None:
            assert network == "audio" and factor.name in ("rotation", "freeze")
            continue
        n, s, k = trial.shape
        videos = trial.leaves.video.reshape(n, -1)[:, 0]
        assert n == 5 and len(trial.leaves) == n * s * k and (np.diff(videos) > 0).all()
        values = trial.leaves.arrays() | {f"draws {name}": x for name, x in trial.leaves.draws.items()}
        axis = 1 if factor.name == "video" else 2  # which has no value but the video, at two times
        differ = {name.split()[0] for name, x in values.items() if differs(x.reshape(n, s, k, -1), axis)}
        assert differ == CHANGED[factor.name], factor.name
        assert trial.leaves.modalities == (network,)
        assert (trial.leaves.video.reshape(n, s * k) == videos[:, None]).all()
        if factor.name not in ("video", "time_shift", "modality"):
            assert np.unique(trial.leaves.start.reshape(n, s, k), axis=1).shape[1] == 3


def differs(values: np.ndarray, axis: int) -> bool:
    return bool((values != np.take(values, [0], axis)).any())


def test_clips_start_in_their_third_and_fit_the_video(planner: Planner) -> None:
    trial = planner.trial(TRANSFORMATIONS["time_shift"](), "audio")
    counts = planner.index.start_counts(TINY.clip.frames, TINY.clip.stride, TINY.clip.mel_frames)
    starts = trial.leaves.start.reshape(trial.shape)
    own = counts[trial.leaves.video].reshape(trial.shape)
    assert (starts * 3 // own == np.arange(3)).all()
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


def test_factors_of_the_composition_keep_their_settings(tmp_path: Path) -> None:
    settings = replace(TINY, factors="video:d speed(1,4):i:2 augmentation:i:1")
    trained = Trained(GDT(settings.network, ["video"]).eval(), settings, 1, None)
    assert [str(factor) for factor in known(trained) if factor.name == "speed"] == ["speed(1,4)"]
    assert [factor.name for factor in known(trained)] == [*TRANSFORMATIONS]
    own = custom(tmp_path)
    (tmp_path / "mine.py").unlink()
    with pytest.raises(UserError, match="there is no file"):
        known(own)


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------

Rows = dict[tuple[str, ...], dict[str, str]]
"""Lines of the CSV by the values of KEY."""
KEY = ("factor", "network", "features", "measure")
NUMBERS = ("value", "low", "high", "random", "random_low", "random_high")


def run_factors(settings: Factors) -> tuple[str, Rows]:
    """The printed text with single spaces, and the lines of the CSV by factor, network, features and measure."""
    text = factors(replace(settings, videos=6))
    assert all(len(line) <= 100 or "/" in line for line in text.splitlines())  # but paths
    return " ".join(text.split()), read(settings.out)


def csv_rows(out: Path) -> list[dict[str, str]]:
    with (out / "factors.csv").open() as file:
        return list(csv.DictReader(file))


def read(out: Path) -> Rows:
    return {tuple(row[name] for name in KEY): row for row in csv_rows(out)}


@pytest.fixture(scope="module")
def evaluated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Rows, Path]:
    """Text and rows of the small model, and their folder."""
    out = tmp_path_factory.mktemp("factors") / "new" / "out"
    return *run_factors(Factors((checkpoint,), out=out)), out


def test_table_and_csv(evaluated: tuple[str, Rows, Path]) -> None:
    text, found, out = evaluated
    assert {factor for factor, *_ in found} == {*TRANSFORMATIONS}
    assert ("rotation", "video", "trunk", "distance") in found and not any(
        (factor, network) == ("rotation", "audio") for factor, network, *_ in found
    )
    assert [key for key in found if key[0] == "modality"] == [
        ("modality", "both", EMBEDDING, measure) for measure in ("distance", "accuracy")
    ]
    assert [key[1:] for key in found if key[0] == "video"] == [
        (network, layer, "accuracy") for network in ("video", "audio") for layer in ("trunk", EMBEDDING)
    ]
    assert "e: e, 3 steps, " in text and "up to 6 test videos of synthetic" in text
    for (factor, network, layer, measure), row in found.items():
        numbers = [float(row[name]) for name in NUMBERS]
        value, low, high, random, random_low, random_high = numbers
        assert low <= value <= high and random_low <= random <= random_high and row["videos"] == "6"
        form = "{:.2f} ({:.2f}-{:.2f})" if measure == "distance" else "{:.1f} ({:.1f}-{:.1f})"
        name = f"{factor}, {network} {layer} {measure}"
        assert re.search(rf"{name} [\d.]+ \([\d.]+-[\d.]+\) [\d.]+ \([\d.]+-[\d.]+\)", text), name
        assert form.format(value, low, high)[:3] in text
        chance = {"video": 100 / 6, "time_shift": 100 / 3, "augmentation": 25, "modality": 50}.get(factor)
        assert measure == "distance" or chance is None or float(row["chance"]) == pytest.approx(chance, abs=1e-3)
    assert (out / "table.tex").read_text().count(r"\toprule") == 1


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
    text, found = run_factors(Factors((checkpoint,), "mine", shards, out=tmp_path / "out"))
    assert {network for _, network, *_ in found} == {"video"} and len({factor for factor, *_ in found}) == 7
    assert "up to 6 test videos of mine" in text


def test_weights_without_a_head_or_a_composition(checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    trained = load_model(checkpoint)
    weights = {f"base.{name}": value for name, value in trained.model.video_network.base.state_dict().items()}
    torch.save(weights | {"settings": to_json(trained.settings)}, tmp_path / "finetuned.pt")
    text, _ = run_factors(Factors((tmp_path / "finetuned.pt", checkpoint), shards=shards, out=tmp_path / "out"))
    layers = {
        own: {(row["network"], row["features"]) for row in csv_rows(tmp_path / "out") if (row["model"] == "e") == own}
        for own in (True, False)
    }
    assert layers[False] == {("video", "trunk")} and ("audio", EMBEDDING) in layers[True]
    assert text.count("factor, features") == 2


def test_the_command_prints_the_table_and_repeats_its_numbers(
    command: Run, evaluated: tuple[str, Rows, Path], checkpoint: Path, tmp_path: Path
) -> None:
    done = command("factors", "--ckpt", checkpoint, "--videos", 6)
    assert done.returncode == 0, done.stderr
    assert "tables: runs/factors-synthetic/table.txt, table.tex, factors.csv" in done.stdout
    again = read(tmp_path / "runs" / "factors-synthetic")
    for key, row in evaluated[1].items():
        for name in NUMBERS:  # equal up to rounding with other threads
            assert float(again[key][name]) == pytest.approx(float(row[name]), rel=1e-3, abs=1e-3)
    done = command("factors", "--ckpt", "nowhere.pt")
    assert done.returncode == 2 and re.fullmatch(r"error: there is no checkpoint nowhere.pt; .*\n", done.stderr)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--videos 4", "--videos is 4; it must be 5 or more, at least one per fold"),
        ("--split nowhere", "unknown split 'nowhere'; available:"),
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
        out = tmp_path / f"factors-{preset}"
        print(factors(Factors((pretrain(run),), videos=50, out=out)))
        found[preset] = {
            measure: {name: float(read(out)["time_reversal", "video", EMBEDDING, measure][name]) for name in NUMBERS}
            for measure in ("accuracy", "distance")
        }
    distinctive, invariant = found["arrow"], found["b"]
    assert distinctive["accuracy"]["value"] > 85 and distinctive["accuracy"]["low"] > distinctive["accuracy"]["random"]
    assert invariant["accuracy"]["high"] < distinctive["accuracy"]["low"] and invariant["accuracy"]["value"] < 65
    assert distinctive["distance"]["low"] > 4 * invariant["distance"]["high"]
