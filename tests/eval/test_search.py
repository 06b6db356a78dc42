"""The search over compositions: drawing, rejecting, pruning, resuming after a kill, one evaluation on test."""

from __future__ import annotations

import _thread
import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from PIL import Image

from gdt.common.errors import UserError
from gdt.common.lock import locked
from gdt.eval.command import settings_of
from gdt.eval.metrics import Metric
from gdt.eval.search.settings import Search
from gdt.eval.search.space import POSITION, Space
from gdt.eval.search.study import STATES, compare_seeds, search
from gdt.eval.search.trial import DivergedError, Measurement, StoppedError, Trainer
from gdt.pipeline import presets
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index, read_annotations, rewrite_index
from gdt.preprocess.stage import Preprocess
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from tests.conftest import Run, preprocess
from tests.tamper import flip
from tests.test_mistakes import sentence


def settings(shards: Path, out: Path, **others: object) -> Search:
    return replace(Search(shards=shards, out=out, clips_per_step=16, steps=40, trials=12, jobs=1), **others)


def score(text: str) -> float:
    """The final metric of a composition in these tests."""
    return 20 + 30 * ("time_reversal" in text) + 20 * ("differs" in text) - 10 * ("speed:d" in text)


def fake(kill_after: int = -1, diverge: str = "none") -> type[Trainer]:
    """A trainer that reports `score` without training; it kills its process after some measurements."""

    class Fake(Trainer):
        measured: list[tuple[str, int]] = []
        tested: list[list[Path]] = []

        def train(self, run, gpu, steps, stop):
            for step in sorted(steps):
                if diverge in run.factors and step > 10:
                    raise DivergedError
                if len(Fake.measured) == kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                Fake.measured.append((run.factors, step))
                yield step, Metric(score(run.factors) * step / run.steps, 1.0, 20_000)

        def test(self, runs):
            Fake.tested.append(runs)
            return [Metric(60.0, 1.0, 200), Metric(40.0, 1.0, 200), Metric(1.0, 1.0, 200)]

    return Fake


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, type[Trainer], str]:
    chosen, trainer = settings(shards, tmp_path_factory.mktemp("search") / "s"), fake()
    return chosen, trainer, search(chosen, trainer)


def trials(chosen: Search) -> list[FrozenTrial]:
    """Trained compositions, in the order in which they were drawn."""
    storage = JournalStorage(JournalFileBackend(str(chosen.folder / "journal.jsonl")))
    study = optuna.load_study(study_name="search", storage=storage)
    return [trial for trial in study.trials if "composition" in trial.user_attrs]


def compositions(chosen: Search) -> list[str]:
    return [trial.user_attrs["composition"] for trial in trials(chosen)]


def states(chosen: Search) -> list[str]:
    return [STATES[trial.state] for trial in trials(chosen)]


def test_compositions_are_trained_once_each_and_the_baseline_first(finished) -> None:
    chosen, trainer, text = finished
    assert "chance; raise --steps" not in text and "picture:    " in text
    order = list(dict.fromkeys(text for text, _ in trainer.measured))
    assert len(order) == 12 and compositions(chosen) == order
    assert order[0] == "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1"
    for each in order:
        composition = parse(each, 2)
        assert 16 % composition.clips_per_video == 0 and len(composition.modalities) == 2
    assert "[e]" in text and "12 of 12 trials" in (chosen.folder / "table.txt").read_text()
    best = max(order, key=score)
    assert f"make pretrain DATASET=synthetic {shlex.quote(f'FACTORS={best}')}" in text.replace("\\\n  ", "")


def test_trials_with_equal_videos(shards: Path, tmp_path: Path) -> None:
    """The paper's protocol."""
    text = run_command(shards, tmp_path, "--batch-size", 6)
    chosen = Search(shards=shards, out=tmp_path / "s", batch_size=6)
    space = Space(chosen, Index.open(shards))
    runs = [space.pretraining(each) for each in compositions(chosen)]
    assert {run.batch_size for run in runs} == {6}
    assert len({run.composition.clips_per_video for run in runs}) > 1
    command = text[text.index("gdt eval ablation") :].replace("\\\n", "").splitlines()[0]
    parsed = settings_of(shlex.split(command)[2:])
    assert (parsed.equal, parsed.batch_size) == ("videos", 6)


def test_poor_trials_are_pruned_at_the_first_evaluation(finished) -> None:
    chosen, trainer, _ = finished
    stopped = [trial for trial in trials(chosen) if STATES[trial.state] == "stopped"]
    done = [trial.user_attrs["composition"] for trial in trials(chosen) if STATES[trial.state] == "finished"]
    assert stopped and len(done) >= 5 and len(stopped) + len(done) == 12
    for trial in stopped:
        text = trial.user_attrs["composition"]
        assert [step for each, step in trainer.measured if each == text] == [10] and trial.last_step == 10
        assert score(text) < np.median([*map(score, done)])


def test_the_test_split_is_evaluated_once(finished) -> None:
    chosen, trainer, text = finished
    (runs,) = trainer.tested
    space = Space(chosen, Index.open(chosen.shards))
    assert runs[1] == space.folder(compositions(chosen)[0]) and runs[0] != runs[1]
    assert "best 60.0 (53.1-66.5), e 40.0" in text
    assert "best against e on test: +20.0 points, 95 % CI" in text and "(significant)" in text
    again = fake()
    assert search(chosen, again) == text and not again.measured and not again.tested


def test_the_report_is_short_and_its_files_hold_every_trial(finished, tmp_path: Path) -> None:
    chosen, _, text = finished
    assert len(text.strip().splitlines()) <= 25
    assert all(len(line) <= 100 or "video:d" in line for line in text.splitlines())
    table = (chosen.folder / "table.txt").read_text().split("\n\n")[0].splitlines()
    assert len(table) == 14 and table[0].split() == ["composition", "R@1,", "%", "status"]
    assert Image.open(chosen.folder / "importance.png").width > 500
    whole = (chosen.folder / "table.txt").read_text()
    assert "importance (fANOVA, rough): " in whole and "draws rejected before training" in whole
    command = text[text.index("gdt eval ablation") :].replace("\\\n", "").splitlines()[0]
    best = max(compositions(chosen), key=score)
    parsed = settings_of(shlex.split(command)[2:])
    assert (parsed.rows, parsed.seeds, parsed.steps, parsed.shards) == (("e", best), (1, 2, 3), 40, chosen.shards)
    assert (parsed.labels, parsed.clips, parsed.clips_per_step) == (("recall",), chosen.clips, 16)
    code = tmp_path / "my file.py"
    code.write_text(
        'from gdt.pipeline.transformations.time_reversal import TimeReversal\nclass Own(TimeReversal): name = "own"'
    )
    other = replace(chosen, metric="colour", size="paper")
    assert str(code) in compare_seeds(replace(other, factors_from=code), best)
    labelled = settings_of(compare_seeds(other, best)[1:])
    assert (labelled.labels, labelled.size) == (("colour",), "paper")


def test_an_interrupt_stops_trainings_and_keeps_their_metrics(finished, tmp_path: Path) -> None:
    class Slow(Trainer):
        stopped: list[bool] = []

        def train(self, run, gpu, steps, stop):
            yield 10, Metric(9.0, 1.0, 200)
            if not Slow.stopped:
                threading.Timer(0.2, _thread.interrupt_main).start()
            Slow.stopped.append(stop.wait(20))
            raise StoppedError

    chosen, resumed = replace(finished[0], out=tmp_path / "s"), fake()
    with pytest.raises(KeyboardInterrupt):
        search(chosen, Slow)
    assert Slow.stopped == [True]
    search(chosen, resumed)
    assert resumed.measured[0] == (finished[1].measured[0][0], 20)


@pytest.mark.parametrize("metrics", [6, 17])
def test_a_killed_search_resumes_with_the_same_trials(finished, tmp_path: Path, metrics: int) -> None:
    whole = finished[1].measured
    chosen, resumed = replace(finished[0], out=tmp_path / "s"), fake()
    killed = multiprocessing.get_context("fork").Process(target=search, args=(chosen, fake(kill_after=metrics)))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    with (chosen.folder / "journal.jsonl").open("a") as file:
        file.write('{"op_code": 4, "worker')  # a line cut off by a crash
    search(chosen, resumed)
    assert resumed.measured == whole[metrics:]
    assert compositions(chosen) == compositions(finished[0])


def in_one_line(text: str) -> str:
    """A text without line breaks, which depend on the lengths of paths."""
    return " ".join(text.replace("\\\n", " ").split())


def test_damage_is_one_sentence_and_never_changes_a_number(finished, tmp_path: Path) -> None:
    """Flips in the files of a finished search; removing the damaged file mends it."""
    chosen, _, text = finished
    draw = random.Random(0)
    for name in ("search.json", "test.json", "journal.jsonl"):
        again = replace(chosen, out=tmp_path / "s")
        shutil.copytree(chosen.folder, again.folder)
        path = again.folder / name
        whole = path.read_bytes()
        said = in_one_line(text.replace(str(chosen.folder), str(again.folder)))
        for place in [*draw.sample(range(len(whole)), 5), len(whole) - 5]:
            path.write_bytes(whole)
            flip(path, place, draw.randrange(8))
            try:
                assert in_one_line(search(again, fake())) == said
            except UserError as error:
                assert re.fullmatch(
                    rf"{path} is damaged \(.*\); remove it and run the same command again.*", str(error)
                )
        path.unlink()
        assert in_one_line(search(again, fake())) == said
        shutil.rmtree(again.folder)


def test_a_diverged_training_is_a_trial_and_does_not_end_the_search(shards: Path, tmp_path: Path) -> None:
    chosen = settings(shards, tmp_path / "s")
    search(chosen, fake(diverge="time_reversal"))
    lost = [each for each, state in zip(compositions(chosen), states(chosen), strict=True) if state == "diverged"]
    assert lost and all("time_reversal" in each for each in lost)
    assert f"{len(lost)} diverged" in (chosen.folder / "table.txt").read_text()
    with pytest.raises(UserError, match="the training of the baseline e diverged"):
        search(settings(shards, tmp_path / "t"), fake(diverge="differs"))


def test_a_checkpoint_of_nan_is_a_diverged_trial(shards: Path, index: Index, tmp_path: Path) -> None:
    space = Space(settings(shards, tmp_path), index)
    run = replace(space.pretraining(space.text(space.of_preset("e"))), steps=1, threads=1, device="cpu")
    path = pretrain(run)
    state = torch.load(path, weights_only=True)
    next(value for value in state["model"].values() if value.is_floating_point()).fill_(np.nan)
    torch.save(state, path)
    with pytest.raises(UserError, match="contains NaN or infinity"):
        load_model(path)
    with pytest.raises(DivergedError):
        next(Trainer(space).train(run, "", {1}, threading.Event()))


def test_a_search_ends_when_no_composition_is_left(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdt.eval.search.study._EXHAUSTED", 80)
    chosen = settings(shards, tmp_path / "s", factors=("modality", "time_reversal"), baseline="simclr", metric="label",
                      trials=99)  # fmt: skip
    with pytest.raises(UserError, match=r"--baseline simclr \('.*'\) is outside the search"):
        search(chosen, fake())
    chosen = replace(chosen, factors=("time_shift:2", "time_reversal"))
    assert "no new composition of these factors was found" in search(chosen, fake())
    assert 9 <= len(trials(chosen)) <= 36 and len({*compositions(chosen)}) == len(trials(chosen))
    assert not any("modality" in each for each in compositions(chosen))


def test_a_folder_holds_one_search(finished) -> None:
    chosen = finished[0]
    with pytest.raises(
        UserError, match=r"holds a search with different settings \(trials was 12, now 13\); use those, or"
    ):
        search(replace(chosen, trials=13), fake())
    with locked(chosen.folder), pytest.raises(UserError, match="another run is writing to"):
        search(chosen, fake())


def test_a_search_by_labels_is_of_these_labels(shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder, copy_function=shutil.copy)
    said = read_annotations(folder)[1]
    labelled, recall = (settings(folder, tmp_path / name, metric=name, trials=1) for name in ("label", "recall"))
    for chosen in (labelled, recall):
        search(chosen, fake())
    rewrite_index(folder, said | {"video/label": said["video/label"][::-1]})
    with pytest.raises(
        UserError, match=r"holds a search with different settings \(checksum of the labels was \w+, now"
    ):
        search(labelled, fake())
    assert search(recall, fake())


def test_the_rows_of_table_1_are_in_the_space(shards: Path, index: Index, tmp_path: Path) -> None:
    space = Space(settings(shards, tmp_path), index)
    for row in "efghijklm":
        parameters = space.of_preset(row)
        assert parameters.keys() == space.parameters.keys()
        assert parameters.keys() == {*space.options, *(POSITION + name for name in space.options), "augmentation"}
        composition, expected = parse(space.text(parameters), 2), presets.composition(row, 2)
        varied = [str(factor) for factor in expected.factors[1:] if factor.k > 1 or factor.name == "time_shift"]
        assert [str(factor) for factor in composition.factors[1:]] in (varied, [*varied, "augmentation:i:1"])
    swapped = parameters | {POSITION + "time_shift": 4, POSITION + "modality": 0}
    assert space.text(swapped).split()[1:4] == ["modality:i:2:differs", "time_reversal:d:2", "time_shift:d:2"]
    with pytest.raises(UserError, match="distinctive factor 'time_shift' is sampled anew in every branch"):
        space.pretraining(space.text(swapped))
    with pytest.raises(UserError, match=r"it uses 64 clips per video; set --clips-per-step \(now 16\) to 128"):
        wide = dict.fromkeys(("time_reversal", "speed"), 0) | {"time_shift": 4, "order": 0}
        wide = {name: str(space.options[name][k or 1]) for name, k in wide.items()}
        space.pretraining(space.text(parameters | wide | {"augmentation": "augmentation:i:2"}))


def test_the_default_number_of_clips_fits_the_videos(shards: Path, index: Index, tmp_path: Path) -> None:
    for baseline, expected in (("e", 24), ("l", 64)):
        space = Space(settings(shards, tmp_path, clips_per_step=0, baseline=baseline), index)
        assert space.with_clips().settings.clips_per_step == expected


def test_stopping_a_trial_ends_its_training(
    shards: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, started, code = Space(settings(shards, tmp_path), index), [], "import time; time.sleep(100)"

    def start(_: object, log: Path, gpu: str) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", code], stderr=log.open("a")))
        return started[-1]

    monkeypatch.setattr("gdt.eval.search.trial.start", start)
    trainer, stop = Trainer(space), threading.Event()
    run = space.pretraining(space.text(space.of_preset("e")))
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(StoppedError):
        next(trainer.train(run, "", {40}, stop))
    assert started[0].returncode == -15
    code = "1/0"
    with pytest.raises(UserError, match=r"trial \w+ failed \(ZeroDivisionError: division by zero\); see .*log.txt"):
        next(trainer.train(run, "", {40}, threading.Event()))


def test_videos_without_labels_are_searched_by_recall(command: Run, shards: Path, tmp_path: Path) -> None:
    """From the command line, with training."""
    folder = tmp_path / "unlabelled"
    shutil.copytree(shards, folder, copy_function=shutil.copy)
    said = read_annotations(folder)[1]
    rewrite_index(folder, said | {"video/label": np.full(len(said["video/label"]), b"", object)})
    arguments = ("eval", "search", "--shards", folder, "--trials", 2, "--steps", 2, "--looks", 2, "--clips", 1,
                 "--k", 5, "--clips-per-step", 8, "--out", "out")  # fmt: skip
    with pytest.raises(UserError, match="has no labelled videos in the split 'train'"):
        run_command(folder, tmp_path, "--metric", "label")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    chosen = Search(out=tmp_path / "out")
    assert states(chosen) == ["finished"] * 2 and trials(chosen)[0].user_attrs["metric"][2] == 6
    assert "the best does not differ significantly from chance; raise --steps, and set another --out" in done.stdout
    assert "too few finished trials to estimate" in done.stdout and "picture:" not in done.stdout
    metrics = json.loads((tmp_path / "out" / "test.json").read_text())["metrics"]
    assert [metric[2] for metric in metrics.values()] == [12] * len(metrics)
    again = command(*arguments).stdout
    assert again.strip() and done.stdout.endswith(again)


@pytest.fixture(scope="module")
def silent(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a few generated videos without sound."""
    folder = tmp_path_factory.mktemp("silent")
    for pattern in ("train/*/*_000[0-3].mp4", "val/*/*_0000.mp4", "test/*/*_0000.mp4"):
        for path in synthetic.glob(pattern):
            copy = folder / "videos" / path.relative_to(synthetic)
            copy.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["ffmpeg", "-v", "error", "-i", path, "-an", "-c", "copy", copy], check=True)
    preprocess(Preprocess("folder", folder / "videos", folder / "shards"))
    return folder / "shards"


def test_videos_without_sound_are_searched_by_label(command: Run, silent: Path, tmp_path: Path) -> None:
    plain = ("eval", "search", "--shards", silent, "--trials", 1, "--steps", 2, "--looks", 1, "--clips", 1,
             "--clips-per-step", 8, "--out", "out")  # fmt: skip
    assert sentence(command(*plain)) == (
        f"the videos of {silent} have no sound, which --factors uses; choose factors without audio, with --metric "
        "label and --baseline a"
    )
    factors = ("--factors", "time_shift", "time_reversal", "speed")
    with pytest.raises(UserError, match="recall between modalities needs two modalities, but no factor"):
        run_command(silent, tmp_path, *factors)
    chosen = settings(silent, tmp_path / "s", factors=factors[1:], metric="label", baseline="a", clips=1, trials=3)
    search(chosen, fake())
    assert all(":i:2" in each for each in compositions(chosen))
    space = Space(chosen, Index.open(silent))
    run = space.pretraining(compositions(chosen)[0])
    untrained = Trained(GDT(run.network, ["video"]).eval(), run, 0, space.index.statistics)
    metric = Measurement(space, "val")(untrained)
    assert (metric.answers, round(metric.chance), round(3 * metric.value) % 100) == (3, 33, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trials", 0), "--trials is 0; it must be 1 or more"),
        (("--steps", 0), "--steps is 0; it must be 1 or more"),
        (("--query-split", "test"), "--query-split is test, which is kept for the end; set it to another"),
        (("--query-split", "dev"), "unknown split 'dev'; available: "),
        (("--metric", "weather"), "unknown column 'weather'; available: label; numeric"),
        (("--factors", "time_shift", "warp"), "unknown factor 'warp'; available:\n  video, time_shift"),
        (("--factors", "time_shift:1"), "--factors: cannot read 'time_shift:1'; list factors, each with the K to"),
        (("--factors", "video:d", "modality:i:2"), "--factors: cannot read 'video:d'; list factors, each with the K"),
        (("--factors", "video"), "--factors: leave out 'video', which is part of every composition that is tried"),
        (("--factors", "modality", "augmentation:2"), "--factors: leave out 'augmentation', which is part of every"),
        (("--factors", "time_shift:d:2"), "--factors: cannot read 'time_shift:d:2'; list factors, each with the K"),
        (
            ("--factors", "modality", "speed:3"),
            "--factors: K = 3 in 'speed:3': the factor has 2 values; set K to 2 or less",
        ),
        (("--factors", "speed", "speed(1,4)"), "--factors names 'speed' twice"),
        (("--factors", "time_shift"), "recall between modalities needs two modalities, but no factor"),
        (("--factors", "modality(video,audio,text)"), "the search does not support text"),
        (("--baseline", "a"), "--baseline a ('video:d "),
        (("--baseline", "z"), "unknown preset 'z'"),
        (
            ("--clips-per-step", 1),
            "--baseline e cannot be trained: it uses 1 clips per video; set --clips-per-step (now 1) to 2",
        ),
        (("--batch-size", 8, "--clips-per-step", 8), "--clips-per-step has no effect with --batch-size; remove one"),
        (("--batch-size", 100), "--baseline e cannot be trained: a batch takes 100 videos but only 24 can be used"),
        (
            ("--clips-per-step", 100),
            "a batch takes 100 videos but only 24 can be used; set --clips-per-step to 24 or less",
        ),
    ],
)
def test_bad_settings_are_one_sentence(
    shards: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(UserError) as error:
        run_command(shards, tmp_path, *arguments)
    assert message in str(error.value) and "\n" not in str(error.value).replace("available:\n", "")


def test_a_metric_that_every_model_maximises_is_refused(shards: Path, index: Index, tmp_path: Path) -> None:
    for metric, split in (("recall", "val"), ("label", "train")):
        chosen = settings(shards, tmp_path / "s", metric=metric, k=5)
        few, left = index.split.copy(), np.flatnonzero(index.split == split)
        few[left[5:]] = "unused"
        with pytest.raises(
            UserError, match=rf"--k is 5, but the split '{split}' of .* has only 5 videos, so any model"
        ):
            Measurement(Space(chosen, replace(index, split=few)), "val")


def run_command(shards: Path, folder: Path, *arguments: object) -> str:
    """The report of `gdt eval search` with these arguments, without training."""
    given = ("search", "--shards", shards, "--out", folder / "s", *arguments)
    return search(settings_of([str(argument) for argument in given]), fake())
