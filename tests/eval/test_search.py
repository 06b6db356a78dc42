"""The search over compositions: drawing and refusing, stopping early, going on after a kill, one figure on test."""

from __future__ import annotations

import _thread
import csv
import json
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gdt.common.errors import UserError
from gdt.common.lock import locked
from gdt.eval.command import settings_of
from gdt.eval.metrics import Metric
from gdt.eval.search.report import DIVERGED, DONE, STOPPED, over_seeds
from gdt.eval.search.settings import Search
from gdt.eval.search.space import PLACE, Space
from gdt.eval.search.study import search
from gdt.eval.search.trial import DivergedError, EndedError, Measuring, Trainer
from gdt.pipeline import presets
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index, read_annotations, rewrite_index
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import GDT
from tests.conftest import Run
from tests.test_mistakes import sentence


def settings(shards: Path, out: Path, **others: object) -> Search:
    return replace(Search(shards=shards, out=out, clips_per_step=16, steps=40, trials=12, jobs=1), **others)


def worth(text: str) -> float:
    """What a composition comes to, without training: reversal told apart is good, cross-modal weight, too."""
    return 20 + 30 * ("time_reversal:d" in text) + 20 * ("differs" in text) - 10 * ("speed:d" in text)


def stand_in(fail_after: int = -1, diverge: str = "none", answers: int = 20_000) -> type[Trainer]:
    """Measures in place of trainings, in the order in which they were asked for; a kill after so many of them."""

    class Cheap(Trainer):
        asked: list[tuple[str, int]] = []
        tested: list[list[Path]] = []

        def train(self, run, gpu, steps, stop):
            for step in sorted(steps):
                if diverge in run.factors and step > 10:
                    raise DivergedError
                if len(Cheap.asked) == fail_after:
                    raise SystemError("killed")
                Cheap.asked.append((run.factors, step))
                yield step, Metric(worth(run.factors) * step / run.steps, 1.0, answers)

        def test(self, runs):
            Cheap.tested.append(runs)
            return [Metric(60.0, 1.0, 200), Metric(40.0, 1.0, 200), Metric(1.0, 1.0, 200)]

    return Cheap


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, type[Trainer], str]:
    made, cheap = settings(shards, tmp_path_factory.mktemp("search") / "s"), stand_in()
    return made, cheap, search(made, cheap)


def rows(made: Search) -> list[dict]:
    return json.loads((made.folder / "trials.json").read_text())


def test_compositions_are_tried_once_each_and_the_baseline_first(finished) -> None:
    made, cheap, said = finished
    assert "not to be told from chance" not in said
    order = list(dict.fromkeys(text for text, _ in cheap.asked))
    assert len(order) == len(rows(made)) == 12 and {row["composition"] for row in rows(made)} == {*order}
    assert order[0] == (
        "video:d time_shift:i:1 modality:i:2:differs time_reversal:i:1 speed:i:1 order(2):i:1 augmentation:i:1"
    )
    for text in order:
        composition = parse(text, 2)
        assert 16 % composition.clips_per_video == 0 and len(composition.modalities) == 2
    assert "[e]" in said and "12 of 12 compositions" in said and "more drawings cannot be trained" in said
    best = max(rows(made), key=lambda row: (row["steps"], row["metric"][0]))
    assert best["metric"][0] >= worth(order[0]) and f'FACTORS="{best["composition"]}"' in said


def test_poor_compositions_are_stopped_early_and_cost_no_further_steps(finished) -> None:
    made, cheap, _ = finished
    stopped = [row for row in rows(made) if row["state"] == STOPPED]
    done = [row for row in rows(made) if row["state"] == DONE]
    assert stopped and len(done) >= 5 and len(stopped) + len(done) == 12
    for row in stopped:
        steps = [step for text, step in cheap.asked if text == row["composition"]]
        assert steps == [10] and row["steps"] == 10
        assert worth(row["composition"]) < np.median([worth(one["composition"]) for one in done])


def test_none_is_stopped_for_what_may_be_chance(finished, tmp_path: Path) -> None:
    made = replace(finished[0], out=tmp_path / "s")
    search(made, stand_in(answers=20))
    assert {row["state"] for row in rows(made)} == {DONE}


def test_the_test_split_is_looked_at_once(finished) -> None:
    made, cheap, said = finished
    (runs,) = cheap.tested
    assert runs == [Path(rows(made)[0]["run"]), made.folder / "runs" / runs[1].name]
    assert "60.0 (53.1-66.5)" in said and "on test, 200 queries, the best is +20.0 points from e (a difference)" in said
    again = stand_in()
    assert search(made, again) == said and not again.asked and not again.tested


def test_tables_and_plot_hold_every_trial(finished, tmp_path: Path) -> None:
    made, _, said = finished
    lines = list(csv.DictReader((made.folder / "trials.csv").open()))
    assert len(lines) == 12 and {line["state"] for line in lines} == {DONE, STOPPED}
    assert [line["composition"] for line in lines] == [row["composition"] for row in rows(made)]
    assert Image.open(made.folder / "importance.png").width > 1000
    assert "what matters most, by fANOVA: " in said and "rough" in said
    assert len((made.folder / "table.txt").read_text().split("\n\n")[0].splitlines()) == 14
    (typed,) = (line for line in said.splitlines() if line.startswith("that is from one seed each; "))
    asked = settings_of(shlex.split(typed.split(" gdt eval ")[1]))
    best = max(rows(made), key=lambda row: row["metric"][0])["composition"]
    assert (asked.rows, asked.seeds, asked.steps, asked.shards) == (("e", best), (1, 2, 3), 40, made.shards)
    assert (asked.labels, asked.clips, asked.clips_per_step) == (("recall",), made.clips, 16)
    own = tmp_path / "own file.py"
    own.write_text(
        'from gdt.pipeline.transformations.time_reversal import TimeReversal\nclass Own(TimeReversal): name = "own"'
    )
    other = replace(made, metric="colour", bn_group_size=4, size="paper")
    assert str(own) in over_seeds(replace(other, factors_from=own), best)
    labelled = settings_of(over_seeds(other, best)[1:])
    assert (labelled.labels, labelled.gallery_per_class, labelled.bn_group_size) == (("colour",), 50, 4)
    assert labelled.size == "paper"
    shorter = search(replace(made, best=3), stand_in())
    assert len(shorter.strip().split("\n\n")[0].splitlines()) == 5


def test_an_interrupt_ends_the_trainings_and_what_they_had_come_to_is_kept(finished, tmp_path: Path) -> None:
    class Slow(Trainer):
        ended: list[bool] = []

        def train(self, run, gpu, steps, stop):
            yield 10, Metric(9.0, 1.0, 200)
            if len(Slow.ended) == 0:
                threading.Timer(0.2, _thread.interrupt_main).start()
            Slow.ended.append(stop.wait(20))
            raise EndedError

    made, healed = replace(finished[0], out=tmp_path / "s"), stand_in()
    with pytest.raises(KeyboardInterrupt):
        search(made, Slow)
    assert Slow.ended == [True]
    search(made, healed)
    assert healed.asked[0] == (finished[1].asked[0][0], 20)


@pytest.mark.parametrize("metrics", [6, 17])
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(finished, tmp_path: Path, metrics: int) -> None:
    whole = finished[1].asked
    made, broken, healed = replace(finished[0], out=tmp_path / "s"), stand_in(fail_after=metrics), stand_in()
    with pytest.raises(SystemError):
        search(made, broken)
    with (made.folder / "drawn.jsonl").open("a") as file:
        file.write('{"op_code": 4, "worker')  # as a machine leaves it that goes down
    search(made, healed)
    assert broken.asked == whole[:metrics] and healed.asked == whole[metrics:]
    assert [row["composition"] for row in rows(made)] == [row["composition"] for row in rows(finished[0])]


def test_a_training_that_diverges_is_a_trial_and_does_not_end_the_search(shards: Path, tmp_path: Path) -> None:
    made = settings(shards, tmp_path / "s")
    said = search(made, stand_in(diverge="time_reversal:d"))
    lost = [row for row in rows(made) if row["state"] == DIVERGED]
    assert lost and all("time_reversal:d" in row["composition"] for row in lost) and f"{len(lost)} diverged" in said
    with pytest.raises(UserError, match="the training of the baseline e has diverged"):
        search(settings(shards, tmp_path / "t"), stand_in(diverge="differs"))


def test_a_search_ends_where_there_is_nothing_left_to_draw(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdt.eval.search.study._EXHAUSTED", 80)
    made = settings(shards, tmp_path / "s", factors=("modality", "time_reversal"), baseline="simclr", metric="label",
                    augmentations=(2,), trials=99, factors_from=None)  # fmt: skip
    with pytest.raises(UserError, match="--baseline simclr, which is '.*', is none of the compositions"):
        search(made, stand_in())
    made = replace(made, factors=("time_shift:2", "time_reversal"))
    said = search(made, stand_in())
    assert "there are no more compositions of these factors" in said
    # each of two factors not varied, invariant or distinctive; the start of a clip before or after the other
    assert 9 <= len(rows(made)) <= 14 and not any("modality" in row["composition"] for row in rows(made))


def test_a_folder_keeps_to_its_settings_and_to_one_search_at_a_time(finished) -> None:
    made = finished[0]
    with pytest.raises(UserError, match=r"holds a search with other settings \(trials was 12, now 13\); set --out"):
        search(replace(made, trials=13), stand_in())
    with locked(made.folder), pytest.raises(UserError, match="another run is writing to"):
        search(made, stand_in())


def test_rows_of_the_paper_are_compositions_that_may_be_drawn(shards: Path, index: Index, tmp_path: Path) -> None:
    space = Space(settings(shards, tmp_path), index)
    for row in "efghijklm":
        found = space.of_preset(row)
        assert found.keys() == space.parameters.keys() == {*space.options, *(PLACE + n for n in space.options),
                                                           "augmentation"}  # fmt: skip
        shown = space.shown(space.text(found))
        assert shown == space.shown(presets.preset(row).factors)
    swapped = found | {PLACE + "time_shift": 4, PLACE + "modality": 0}
    assert space.text(swapped).split()[1:4] == ["modality:i:2:differs", "time_reversal:d:2", "time_shift:d:2"]
    with pytest.raises(UserError, match="distinctive factor 'time_shift' is sampled anew in every branch"):
        space.pretraining(space.text(swapped))
    with pytest.raises(UserError, match="it takes 64 clips of a video, and --clips-per-step 16 is not 2 or more"):
        wide = dict.fromkeys(("time_reversal", "speed"), 0) | {"time_shift": 4, "order": 0}
        wide = {name: str(space.options[name][k or 1]) for name, k in wide.items()}
        space.pretraining(space.text(found | wide | {"augmentation": "augmentation:i:2"}))


def test_a_trial_that_is_told_to_end_has_ended_its_training(
    shards: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, begun, code = Space(settings(shards, tmp_path), index), [], "import time; time.sleep(100)"

    def start(_: object, log: Path, gpu: str) -> subprocess.Popen:
        begun.append(subprocess.Popen([sys.executable, "-c", code], stderr=log.open("a")))
        return begun[-1]

    monkeypatch.setattr("gdt.eval.search.trial.start", start)
    trainer, stop = Trainer(space), threading.Event()
    run = space.pretraining(space.text(space.of_preset("e")))
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(EndedError):
        next(trainer.train(run, "", {40}, stop))
    assert begun[0].returncode == -15
    code = "1/0"
    with pytest.raises(UserError, match=r"trial \w+ failed \(ZeroDivisionError: division by zero\); see .*log.txt"):
        next(trainer.train(run, "", {40}, threading.Event()))


def test_videos_without_labels_are_searched_on_by_recall(command: Run, shards: Path, tmp_path: Path) -> None:
    """From the command line, with training."""
    folder = tmp_path / "unlabelled"
    shutil.copytree(shards, folder, copy_function=shutil.copy)
    said = read_annotations(folder)[1]
    rewrite_index(folder, said | {"video/label": np.full(len(said["video/label"]), b"", object)})
    arguments = ("eval", "search", "--shards", folder, "--trials", 2, "--steps", 2, "--looks", 2, "--clips", 1,
                 "--k", 5, "--clips-per-step", 8, "--out", "out")  # fmt: skip
    with pytest.raises(UserError, match="has no labelled videos in the split 'train'"):
        typed(folder, tmp_path, "--metric", "label")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert [row["state"] for row in found] == [DONE, DONE] and found[0]["metric"][2] == 6
    assert "the best is not to be told from chance" in done.stdout
    metrics = json.loads((tmp_path / "out" / "test.json").read_text())["metrics"]
    assert [metric[2] for metric in metrics.values()] == [12] * len(metrics)
    again = command(*arguments).stdout
    assert again.strip() and done.stdout.endswith(again)  # what is said after the trials


@pytest.fixture(scope="module")
def silent(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a few generated videos whose sound was taken away."""
    folder = tmp_path_factory.mktemp("silent")
    for pattern in ("train/*/*_000[0-3].mp4", "val/*/*_0000.mp4", "test/*/*_0000.mp4"):
        for path in synthetic.glob(pattern):
            copy = folder / "videos" / path.relative_to(synthetic)
            copy.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["ffmpeg", "-v", "error", "-i", path, "-an", "-c", "copy", copy], check=True)
    preprocess(Preprocess("folder", folder / "videos", folder / "shards", workers=1))
    return folder / "shards"


def test_videos_without_sound_are_searched_on_by_label(command: Run, silent: Path, tmp_path: Path) -> None:
    plain = ("eval", "search", "--shards", silent, "--trials", 1, "--steps", 2, "--looks", 1, "--clips", 1,
             "--clips-per-step", 8, "--out", "out")  # fmt: skip
    assert sentence(command(*plain)) == (
        f"the videos of {silent} have no sound, of which --factors makes a modality; name other factors, and where "
        "these have one modality left, --metric label and --baseline a"
    )
    factors = ("--factors", "time_shift", "time_reversal", "speed")
    with pytest.raises(UserError, match="recall across modalities needs two of them, and no factor of --factors has"):
        typed(silent, tmp_path, *factors)
    made = settings(silent, tmp_path / "s", factors=factors[1:], metric="label", baseline="a", clips=1, trials=3)
    search(made, stand_in())
    assert all("augmentation:i:2" in row["composition"] or ":i:2" in row["composition"] for row in rows(made))
    space = Space(made, Index.open(silent))
    run = space.pretraining(rows(made)[0]["composition"])
    untrained = Trained(GDT(run.network, ["video"]).eval(), run, 0, space.index.statistics)
    metric = Measuring(space, "val")(untrained)
    assert (metric.answers, round(metric.chance), round(3 * metric.value) % 100) == (3, 33, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trials", 0), "--trials is 0; it must be 1 or more"),
        (("--steps", 0), "--steps is 0; it must be 1 or more"),
        (("--query-split", "test"), "--query-split is test, which is for the one figure at the end; search on another"),
        (("--query-split", "dev"), "has no videos of the split 'dev'; the same 'make preprocess' command with"),
        (("--metric", "weather"), "unknown column 'weather' of"),
        (("--factors", "time_shift", "warp"), "unknown factor 'warp'; available: video, time_shift"),
        (("--factors", "time_shift:1"), "--factors: 'time_shift:1' cannot be read; after the name of a factor come"),
        (
            ("--factors", "modality", "speed:3"),
            "--factors: 'speed:3' has the K 3; it has 2 values; set it to 2 or less",
        ),
        (("--factors", "speed", "speed(1,4)"), "--factors: factor 'speed' occurs twice; each may occur once"),
        (("--factors", "time_shift"), "recall across modalities needs two of them, and no factor of --factors has two"),
        (("--baseline", "a"), "--baseline a, which is 'video:d:2 "),
        (("--baseline", "z"), "unknown preset 'z'"),
        (
            ("--clips-per-step", 1),
            "--baseline e cannot be trained: it takes 1 clips of a video, and --clips-per-step 1",
        ),
        (("--clips-per-step", 100), "--baseline e cannot be trained: a batch takes 100 videos but only 24 can be used"),
        (("--gallery-per-class", 3), "--gallery-per-class has no effect on recall across modalities; it is of labels"),
        (("--word2vec", "w.bin"), "--word2vec has no effect: words are no modality of --factors"),
        (("--augmentations", 0), "--augmentations is 0; it must be one or more different numbers, 1 or more"),
    ],
)
def test_mistakes_are_one_sentence(shards: Path, tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(UserError) as told:
        typed(shards, tmp_path, *arguments)
    assert said in str(told.value) and "\n" not in str(told.value)


def typed(shards: Path, folder: Path, *arguments: object) -> str:
    """What is said where this is typed, up to training."""
    given = ("search", "--shards", shards, "--out", folder / "s", *arguments)
    return search(settings_of([str(argument) for argument in given]), stand_in())
