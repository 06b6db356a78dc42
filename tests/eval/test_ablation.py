"""The ablation: which commands run, what rows share, and the table."""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gdt.cli import parse_command
from gdt.common.errors import INTERRUPTED, UserError
from gdt.eval.ablation import rows, runs
from gdt.eval.ablation.rows import runs_of
from gdt.eval.ablation.runs import ablation, logged_steps
from gdt.eval.ablation.settings import Ablation
from gdt.eval.downstream import downstream
from gdt.eval.results import RANDOM, RESULTS, read
from gdt.eval.settings import Downstream
from gdt.eval.subprocesses import Task
from gdt.pipeline.shards.index import Index
from gdt.train.flops import training_flops
from gdt.train.models.gdt import GDT
from gdt.train.models.network import OwnNetworks
from gdt.train.pretrain import pretrain
from gdt.train.run import METRICS
from gdt.train.settings import RunSettings
from tests.conftest import Run, few
from tests.pipeline.test_notation import FREEZE
from tests.tamper import annotate
from tests.train import own_networks
from tests.train.runs import start_gdt, wait_until

Commands = list[list[str]]
CUSTOM = "video:d modality:i:2:differs augmentation:i:1"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands of an ablation, which run in this process."""
    commands: Commands = []

    def run(tasks: Sequence[Task], *_: object) -> Iterator[Task]:
        for task in tasks:
            commands.extend(map(list, task.commands))
            for name, *options in task.commands:
                {"pretrain": pretrain, "evaluate": downstream}[name](parse_command(name, options))
            yield task

    monkeypatch.setattr(runs, "run_parallel", run)
    return commands


def settings(shards: Path, out: Path, **values: object) -> Ablation:
    small = {"rows": ("a", "l"), "seeds": (1,), "steps": 2, "clips": 2, "jobs": 1, "batch_size": 2, "size": "tiny"}
    return Ablation(shards=shards, out=out, **small | values)  # type: ignore[arg-type]


def kinds(commands: Sequence[Sequence[str]]) -> list[str]:
    return [kind for kind, *_ in commands]


def sent(commands: Sequence[Sequence[str]], kind: str, name: str) -> list[object]:
    """The values of a setting in the commands of a kind."""
    return [getattr(parse_command(kind, options), name) for each, *options in commands if each == kind]


def test_finished_rows_stay(done: Commands, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = settings(shards, tmp_path)
    summary = ablation(first)
    assert all(len(line) <= 100 or str(tmp_path) in line for line in summary.splitlines())
    assert kinds(done) == ["pretrain", "evaluate"] * 2
    for name in ("random weights", "row a: video", "row l: video-audio, shift d, reversal i", "chance"):
        assert name in summary and name in (tmp_path / "table.txt").read_text()
    assert "R@20" in (tmp_path / "table.txt").read_text() and "R@20" not in summary
    found = {(row.preset, row.protocol) for row in read(tmp_path / RESULTS)}
    assert found == {(preset, protocol) for preset in ("a", RANDOM, "l") for protocol in ("retrieval", "few-shot")}
    assert Image.open(tmp_path / "table.png").width > 200 and (tmp_path / "results.csv").is_file()
    done.clear()
    capsys.readouterr()
    with (tmp_path / "l-1" / METRICS).open("a") as log:
        log.write('{"step": 2, "lo')  # as while it is written
    assert ablation(first) == summary and not done
    assert "0 of 2 runs left" in capsys.readouterr().out
    # a new row does not run the others again, and they stay in the table
    more = ablation(replace(first, rows=("e",)))
    assert all(f"row {row}" in more for row in "ael") and kinds(done) == ["pretrain", "evaluate"]
    # rows that are trained otherwise cannot be compared with them
    with pytest.raises(UserError, match=r"other settings \(optimization.lr was 0.001, now 0.5.*\); set --out"):
        ablation(replace(first, lr=0.5))
    # another evaluation trains no step, and has a table of its own
    done.clear()
    text = ablation(replace(first, rows=("a",), clips=3))
    assert "row l" not in text
    assert kinds(done) == ["pretrain", "evaluate"] and logged_steps(tmp_path / "a-1" / METRICS) == 2
    # more steps continue; both lengths are in the table
    text = ablation(replace(first, rows=("a",), steps=3))
    assert "row a: video  " in text and "row a: video, 3 steps  " in text
    # results that are gone are computed again
    done.clear()
    (tmp_path / RESULTS).unlink()
    ablation(replace(first, rows=("l",)))
    assert kinds(done) == ["pretrain", "evaluate"]


def test_runs_with_other_networks_or_factors_are_not_compared(done: Commands, shards: Path, tmp_path: Path) -> None:
    factors = tmp_path / "mine.py"
    factors.write_text(FREEZE)
    own = OwnNetworks((f"{own_networks.__name__}:Net",))
    frozen = "video:d freeze:d:2 augmentation:i:2"
    first = settings(shards, tmp_path / "out", rows=(frozen,), own_networks=own, factors_from=factors)
    ablation(first)
    assert kinds(done) == ["pretrain", "evaluate"]
    done.clear()
    ablation(first)
    assert not done
    ablation(replace(first, rows=("e",), factors_from=None))
    assert kinds(done) == ["pretrain", "evaluate"]
    done.clear()
    with pytest.raises(UserError, match=r"\(video_network was .*, now None\)"):
        ablation(replace(first, rows=("g",), factors_from=None, own_networks=OwnNetworks()))
    factors.write_text(f"# changed\n{FREEZE}")
    with pytest.raises(UserError, match=r"\(the file of --factors-from has changed\)"):
        ablation(first)
    assert not done and runs_of(first)[0].pretraining.factors_from.read_text() == FREEZE  # as it was planned
    for damaged in ("{", "[]"):
        (tmp_path / "out" / "ablation.json").write_text(damaged)
        with pytest.raises(UserError, match=r"ablation.json is damaged .*; set --out"):
            ablation(replace(first, rows=("e",), factors_from=None))


def test_label_columns_have_a_table_each(done: Commands, copy: Path, index: Index, tmp_path: Path) -> None:
    annotate(copy, parity=[("even", "odd")[video % 2] for video in range(len(index))])
    compared = {"protocols": ("retrieval", "linear"), "label": "label,parity"}
    text = ablation(settings(copy, tmp_path, rows=("e", CUSTOM), seeds=(0, 1), **compared))
    assert sent(done, "pretrain", "preset")[:2] == ["e", "l"] and sent(done, "pretrain", "factors")[:2] == ["", CUSTOM]
    assert {*sent(done, "evaluate", "label")} == {"label,parity"}
    heads = [line for line in text.splitlines() if "% on test" in line]
    assert [line.replace("% on test", "").split() for line in heads] == [
        *[["videos", "seen", "compute", "R@1"]] * 2, *[["videos", "seen", "compute", "linear", "top-1"]] * 2
    ]  # fmt: skip
    assert text.count("labels of the column parity") == 2 and text.count("features should distinguish") == 1
    assert text.count(CUSTOM) == 4 and "95 % intervals over seeds" in text


def test_videos_without_labels_or_without_sound(
    done: Commands, copy: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate(copy, label=[""] * len(index))
    summary = ablation(settings(copy, tmp_path, rows=("a", "e")))
    assert kinds(done) == ["pretrain", "pretrain", "evaluate"] and "V→A R@1" in summary and "row a" not in summary
    assert "random weights" in summary
    with pytest.raises(UserError, match="nothing can compare the rows a: recall between modalities needs a row of two"):
        runs_of(settings(copy, tmp_path, rows=("a",)))
    silent = replace(index, mel_count=np.zeros_like(index.mel_count))
    monkeypatch.setattr(rows.Index, "open", lambda *_: silent)
    with pytest.raises(UserError, match="0 of 24 train videos of .*; not used: 24 without sound"):
        runs_of(settings(copy, tmp_path, rows=("a", "e")))


def test_fold_1_is_evaluated_and_changed_labels_again(done: Commands, copy: Path, index: Index, tmp_path: Path) -> None:
    swapped = {"train": "test", "test": "train"}
    annotate(copy, folds=[f"{split},{swapped.get(split, split)}" for split in index.split])
    given = settings(copy, tmp_path / "out", rows=("a",))
    ablation(given)
    assert "fold 1: 12 queries against 24 videos of 3 classes" in (tmp_path / "out" / "table.txt").read_text()
    before = read(tmp_path / "out" / RESULTS)
    assert {(row.fold, row.queries, row.seen) for row in before} == {(1, 12, 0)}

    annotate(copy, label=[min(label, index.classes[1]) for label in index.label])
    done.clear()
    ablation(given)
    assert kinds(done) == ["pretrain", "evaluate"] and logged_steps(tmp_path / "out" / "a-1" / METRICS) == 2
    assert "of 2 classes" in (tmp_path / "out" / "table.txt").read_text()
    done.clear()
    ablation(given)
    assert not done

    # the other fold tests the videos that pretraining has used
    text = downstream(Downstream((tmp_path / "out" / "a-1",), clips=1, protocols=("retrieval",), out=tmp_path / "eval"))
    assert "a-1 was pretrained, without labels, on up to 24 queries" in text
    rows = [row for row in read(tmp_path / "eval" / RESULTS) if row.preset != RANDOM]
    assert [(row.fold, row.seen) for row in rows] == [(1, 0), (2, 24)]


def test_bad_settings(tmp_path: Path, shards: Path, copy: Path, index: Index) -> None:
    annotate(copy, split=["train"] * len(index))
    for wrong, message in (
        ({"rows": ("L",)}, "unknown preset 'L'; did you mean 'l'"),
        ({"batch_size": 25}, "a batch takes 25 videos but only 24 can be used; set --batch-size to 24 or less"),
        ({"label": "colour"}, "unknown column 'colour'"),
        ({"label": "label", "protocols": ("cross-modal",)}, "--label has no effect on cross-modal"),
        *(({name: ()}, f"^--{name} is empty; give one or more") for name in ("rows", "seeds", "equal")),
        ({"shards": copy}, "has no videos in the split 'test', only in train; .* with --test 0.1"),
    ):
        with pytest.raises(UserError, match=message):
            runs_of(replace(settings(shards, tmp_path), **wrong))


def test_runs_fit_few_videos_with_several_labels(tmp_path: Path, copy: Path, index: Index) -> None:
    order = np.cumsum(index.split == "train")
    splits = ["val" if split == "train" and k > 14 else split for split, k in zip(index.split, order, strict=True)]
    annotate(copy, split=splits, tags=["a;b"] * len(index))
    with pytest.raises(UserError, match="retrieval takes one; set --protocols multilabel"):
        runs_of(settings(copy, tmp_path, label="tags"))
    planned = runs_of(settings(copy, tmp_path, label="tags", protocols=("multilabel",), batch_size=0))
    assert [run.pretraining.batch_size for run in planned] == [14, 14] and "14 videos per step" in planned[0].equal
    assert {run.evaluation.protocols for run in planned} == {("multilabel",)}


def test_steps_are_adjusted_to_flops_of_row_l(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = {"rows": ("a", "e", "g", "a", "l"), "seeds": (1, 1)}
    planned = runs_of(settings(shards, tmp_path, **repeated, equal=("compute",), steps=300))
    assert planned[0].equal == "compute: 2 videos per step, the FLOPs of 300 steps of row l"
    # leaves of both modalities: 1 per video in row e, 2 in g, 4 in l; row a has 2 of the video only
    run = planned[0]
    leaf = training_flops(GDT(RunSettings.of(run.pretraining).network), run.pretraining.clip)
    of_a = round(300 * 4 * sum(leaf.values()) / (2 * leaf["video"]))
    names = [run.folder.name for run in planned]
    assert 600 < of_a < 1200 and names == [f"a-{of_a}steps-1", "e-1200steps-1", "g-600steps-1", "l-1"]
    assert [run.row.steps for run in planned] == [of_a, 1200, 600, 300]
    default = runs_of(settings(shards, tmp_path, steps=0, batch_size=0))
    assert default[0].equal == "videos: 16 videos per step, 600 steps" and default[0].folder.name == "a-1"
    monkeypatch.setattr(rows, "step_flops", lambda *_: 0.0)
    with pytest.raises(UserError, match="the FLOPs of .* cannot be counted; compare rows with --equal videos"):
        runs_of(settings(shards, tmp_path, equal=("compute",)))


def test_equal_videos_and_equal_compute_share_runs_and_a_table(done: Commands, shards: Path, tmp_path: Path) -> None:
    videos = settings(shards, tmp_path, rows=("e", "l"), protocols=("retrieval",), clips=1)
    ablation(videos)
    spent = {row.preset: (row.step, row.videos, row.tflop) for row in read(tmp_path / RESULTS)}
    assert spent["e"][:2] == spent["l"][:2] == (2, 4) and spent[RANDOM] == (0, 0, 0)
    assert spent["l"][2] == pytest.approx(4 * spent["e"][2])
    done.clear()
    both = replace(videos, equal=("videos", "compute"))
    text = ablation(both)
    # row l is not trained again; row e takes more steps, in a folder of its own
    assert sent(done, "pretrain", "out") == [tmp_path / "e-8steps-1"]
    rows = re.findall(r"^(row [el]: .*?)  +([\d,]+) +([\d.]+x)  ", text, re.M)
    assert rows == [("row e: video-audio", "4", "1.0x"), ("row l: video-audio, shift d, reversal i", "4", "4.0x"),
                    ("row e: video-audio, 8 steps", "16", "4.0x")]  # fmt: skip
    done.clear()
    assert ablation(replace(videos, equal=("compute",))) == ablation(both) and not done


def test_a_failed_run_of_an_ablation_names_its_log(command: Run, shards: Path, tmp_path: Path) -> None:
    small = ("--rows", "e", "--seeds", 0, "--out", "o")
    (tmp_path / "o" / "e-0").mkdir(parents=True)
    (tmp_path / "o" / "e-0" / "checkpoint.pt").write_text("no checkpoint")
    done = command("ablation", "--shards", shards, *small)
    assert done.returncode == 2
    assert "e-0/checkpoint.pt cannot be read as a checkpoint" in done.stderr and "log.txt" in done.stderr


@pytest.mark.parametrize(
    ("kind", "number"),
    few([("ablation", signal.SIGINT), ("ablation", signal.SIGTERM), ("evaluate", signal.SIGINT)]),
)
def test_a_signal_to_the_parent_alone_stops_its_runs(
    command: Run, kind: str, number: int, shards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As kill does; Ctrl-C reaches the runs as well. Meanwhile, a second command in the folder is refused."""
    more = {
        "ablation": ("--rows", "e", "--seeds", 0, "--steps", 10_000, "--batch-size", 8),
        "evaluate": ("--ckpt", checkpoint, "--protocols", "finetune", "--epochs", 10_000),
    }[kind]
    arguments = (kind, "--shards", shards, "--jobs", 2, "--out", tmp_path / "out", *more)
    process = start_gdt(arguments, tmp_path)
    logs = partial(tmp_path.glob, "out/**/*.jsonl")
    wait_until(lambda: any(log.stat().st_size for log in logs()) or process.poll() is not None)
    second = command(*arguments)
    assert second.returncode == 2 and f"another run is writing to {tmp_path / 'out'}; " in second.stderr
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number and (number == signal.SIGTERM or errors.endswith(f"{INTERRUPTED}\n"))
    assert "waiting for the other runs" not in errors
    if kind == "ablation" and number == signal.SIGINT:
        assert "stopped after step" in (tmp_path / "out" / "e-0" / "log.txt").read_text()
