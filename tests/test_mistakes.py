"""User errors on the command line: one message says what is wrong and what to do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from gdt.cli import add_make_variables
from gdt.common.errors import UserError, as_keywords, as_typed, exit_with_message, explain_out_of_memory
from gdt.common.lock import locked, locked_file
from gdt.common.variables import options_of, with_variables
from gdt.eval.embed import Embed
from gdt.pipeline.shards.index import Statistics
from gdt.pipeline.shards.layout import DATASETS, preprocess_command
from gdt.preprocess import datasets
from gdt.train.checkpoint import Data, require_same_run
from gdt.train.settings import SIZES, to_json
from tests.conftest import ROOT, Run

Lock = Callable[[Path], AbstractContextManager[None]]


def sentence(done: object) -> str:
    """The message of a failed command, a single line."""
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: "), line
    return line.removeprefix("error: ")


def test_a_missing_checkpoint_is_reported(command: Run) -> None:
    path = "runs/synthetic-b/checkpoint.pt"
    for words in (("downstream",), ("embed", "--dataset", "synthetic"), ("export", "--out", "x.safetensors")):
        said = sentence(command("eval", *words, "--ckpt", path))
        assert said == f"there is no checkpoint {path}; make one with 'gdt pretrain', or give the path of yours"


@pytest.mark.parametrize(
    ("arguments", "lock"),
    [
        ("pretrain tiny --preset e --steps 1", locked), ("eval downstream --ckpt {run} --clips 1", locked),
        ("eval factors --ckpt {run}", locked), ("eval ablation --rows e --steps 1", locked),
        ("eval embed --ckpt {run} --clips 1", locked_file),
        ("eval export --ckpt {run}", locked_file), ("eval report --runs {run}", locked_file),
    ],
)  # fmt: skip
def test_only_one_run_writes_to_a_folder_or_file(
    command: Run, checkpoint: Path, shards: Path, tmp_path: Path, arguments: str, lock: Lock
) -> None:
    """Refused while this process holds it; nothing is written."""
    words = arguments.format(run=checkpoint.parent).split()
    out = "out" if lock is locked else "out.html" if "report" in words else "out.npz"
    options = () if "report" in words or "export" in words else ("--shards", shards)
    with lock(tmp_path / out):
        before = sorted(tmp_path.rglob("*"))
        said = sentence(command(*words, *options, "--out", out))
        assert sorted(tmp_path.rglob("*")) == before
    what = "folder" if lock is locked else "file"
    assert said == f"another run is writing to {out}; wait for it, or set --out to another {what}"
    assert not list(tmp_path.iterdir())


def test_messages_about_unpickling_are_replaced(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"model": Path("/")}, path)
    for last in (b"", b"damaged"):
        path.write_bytes(path.read_bytes() + last)
        for arguments in (("eval", "downstream"), ("eval", "export", "--out", "x")):
            said = sentence(command(*arguments, "--ckpt", path))
            assert "cannot be read as a checkpoint" in said and not re.search("weights.only", said, re.I)
    path.unlink()
    torch.save(torch.nn.Linear(2, 2), path)
    said = sentence(command("eval", "downstream", "--ckpt", path))
    assert "it holds a Python object (torch.nn.modules.linear.Linear), which was not loaded" in said
    assert "save the state_dict of a model" in said


@pytest.mark.parametrize(("terminal", "lines"), [(True, [96, 24]), (False, [119])])
def test_long_messages_are_wrapped_on_a_terminal(
    terminal: bool, lines: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise UserError(f"{'word ' * 18}a-long-word-at the-end")

    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit, match="2"):
        exit_with_message(fail)
    said = capsys.readouterr().err
    assert [len(line) for line in said.splitlines()] == lines and " ".join(said.split()).endswith("at the-end")


def test_failed_preprocessing_leaves_no_folder(command: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (("--source", "empty"), "there are no videos in"),
        (("--source", "~/My videos"), f"{Path.home()}/My videos does not exist; set --source"),
        (("--dataset", "howto100m", "--source", "empty"), "set --word2vec"),
        (("--source", "empty", "--destination", "a/b/c"), "there are no videos in"),
        (("--source", "empty", "--dataset", "kinetic"), "unknown data set 'kinetic'; did you mean 'kinetics'?"),
    ):  # fmt: skip
        done = command("preprocess", *arguments)
        assert done.returncode == 2 and message in done.stderr
        assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "there").mkdir()  # not created by the command
    assert command("preprocess", "--source", "empty", "--destination", "there/x").returncode == 2
    assert not list((tmp_path / "there").iterdir())


def test_messages_name_the_command_that_makes_shards() -> None:
    assert tuple(datasets.DATASETS) == DATASETS
    assert preprocess_command(Path("data/shards/synthetic")) == "make preprocess DATASET=synthetic"
    assert preprocess_command(Path("data/shards/kinetics")) == "make preprocess DATASET=kinetics SOURCE=<your videos>"
    mine = "make preprocess DATASET=folder SOURCE=<your videos> DESTINATION=data/shards/mine"
    assert preprocess_command(Path("data/shards/mine")) == mine
    assert preprocess_command(Path("/x/ucf101")).endswith("DATASET=ucf101 SOURCE=<your videos> DESTINATION=/x/ucf101")


def make(*arguments: str, stamp: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run make as if set-up were complete, and print the command of each recipe with the options of make's variables.

    The recipes are recorded and read in this process, without the imports of a new Python; `more` is set in the
    environment.
    """
    stamp.touch()
    made, said, errors = stamp.with_name("made"), io.StringIO(), io.StringIO()
    made.write_bytes(b"")
    left_out = ("MAKEFLAGS", "CONDA_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | more
    python = f"PYTHON=sh {ROOT / 'tests' / 'record_command.sh'} {made}"
    done = subprocess.run(
        ["make", f"STAMP={stamp}", python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    words = iter(os.fsdecode(made.read_bytes()).split("\0"))
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        while count := next(words):
            _, module, *recipe = (next(words) for _ in range(int(count)))
            variables = dict(word.split("=", 1) for word in iter(lambda: next(words), ""))
            with mock.patch.dict(os.environ, variables, clear=True):
                exit_with_message(lambda: print_command(module, recipe))  # noqa: B023 - called at once
    done.returncode = done.returncode or 2 * bool(errors.getvalue())
    done.stdout, done.stderr = done.stdout + said.getvalue(), done.stderr + errors.getvalue()
    return done


def print_command(module: str, arguments: list[str]) -> None:
    if module == "gdt":
        arguments = [arguments[0], *add_make_variables(arguments[0], arguments[1:])]
    print(shlex.join([module, *arguments]))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("preprocess dataset=folder", "no variable dataset; did you mean DATASET"),
        ("preprocess DATA=folder", "no variable DATA; did you mean DATASET"),
        ("pretrain PRESETS=b", r"'make pretrain' has no variable PRESETS; did you mean PRESET\?$"),
        ("eval SPLIT=val", r"'make eval' has no variable SPLIT; did you mean GALLERY_SPLIT or QUERY_SPLIT\?$"),
        (
            "preprocess CKPT=x",
            "'make preprocess' has no variable CKPT, which other targets or data sets take; remove it$",
        ),
        ("verify SOURCE=/x", "'make verify' has no variable SOURCE, which other"),
        ("generate DATASET=x IDENTITY=1", "'make generate' has no variable DATASET, which other targets"),
        ("preprocess pretrain DATSET=x", r"'make preprocess pretrain' has no variable DATSET; did you mean DATASET\?$"),
        ("pretrain FACTORS_DIGEST=x", "has no variable FACTORS_DIGEST; "),
        ("pretrain NONSENSE=1", "has no variable NONSENSE; 'make help' lists the variables of every target$"),
        ("eval GPUS=x", "GPUS is 'x'; it must be 1 or more"),
        ("verify FULL=maybe", "FULL is 'maybe'; it must be 1 or 0"),
        ("eval SIZE=tiny PRESET=lx", r"unknown preset 'lx'; did you mean 'l'\? PRESET=help lists them$"),
        ("eval SIZE=tiny FACTORS=video:d:2", "error: there is no invariant factor"),
        ("""pretrain ARGS=--out=it's""", "ARGS is .*, which a shell cannot parse .No closing quotation.$"),
    ],
)
def test_variables_without_effect_are_refused(tmp_path: Path, typed: str, message: str) -> None:
    done = make(*typed.split(), stamp=tmp_path / "stamp")
    (said,) = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    assert said.startswith("error: ") and re.search(message, said), said


def test_a_goal_that_is_no_target_is_refused(tmp_path: Path) -> None:
    done = make("preprocess", "SOURCE=/my", "videos", stamp=tmp_path / "stamp")
    assert done.returncode == 2 and "there is no target 'videos'; 'make help' lists them" in done.stderr
    assert "Quote values with spaces: SOURCE='/my videos'" in done.stderr and not done.stdout


def test_targets_without_options_refuse_variables(tmp_path: Path) -> None:
    for target, variables in (
        ("demo", "no variables"),
        ("test", "no variables"),
        ("bench", "only SOURCE"),
        ("bench test", "only SOURCE"),
    ):
        done = make(*target.split(), "GPUS=2", stamp=tmp_path / "stamp")
        assert done.returncode == 2 and f"'make {target}' takes {variables}; remove GPUS" in done.stderr
        assert not done.stdout
    python = ("make", f"PYTHON={sys.executable}", f"STAMP={tmp_path / 'stamp'}")  # ends like the command itself
    done = subprocess.run([*python, "verify", "SOURCE=/x"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: 'make verify' has no variable SOURCE, which other ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("generate IDENTITY=0.1 ACTIONS_PER_VIDEO=2", "gdt generate --identity=0.1 --actions-per-video=2"),
        ("generate SEED=3 DESTINATION=/x", "gdt generate --destination=/x --seed=3"),
        ("preprocess", "gdt preprocess --dataset synthetic"),
        ("preprocess DATASET=folder SOURCE=/x DRY_RUN=1", "gdt preprocess --dataset=folder --source=/x --dry-run"),
        ("preprocess SOURCE='/a b/$x `c`'", "gdt preprocess --dataset synthetic '--source=/a b/$x `c`'"),
        ("preprocess SOURCE='~/My videos'", "gdt preprocess --dataset synthetic '--source=~/My videos'"),
        ("verify DATASET=x FULL=1", "gdt verify --dataset=x --full"),
        ("pretrain SIZE=tiny", "gdt pretrain --dataset synthetic tiny"),
        ("pretrain SIZE=tiny STEPS=3 ARGS='--seed 1 --clip.size 24'",
         "gdt pretrain --dataset synthetic tiny --steps=3 --seed 1 --clip.size 24"),
        ("pretrain SIZE=tiny PRESET=", "gdt pretrain --dataset synthetic tiny"),
        ("pretrain SIZE=tiny SHARDS=/x/mine/", "gdt pretrain tiny --shards=/x/mine/ --dataset mine"),
        ("pretrain SIZE=tiny ARGS='--shards /x/mine'", "gdt pretrain tiny --shards /x/mine --dataset mine"),
        ("ablation SIZE=tiny SHARDS=/x DATASET=y", "gdt eval ablation --shards=/x --dataset=y --size=tiny"),
        ("eval-ucf SIZE=tiny SHARDS=/x PROTOCOLS=linear", "gdt eval downstream --ckpt runs/kinetics-l/checkpoint.pt "
         "--dataset ucf101 --shards=/x --protocols linear --size=tiny"),
        ("eval SIZE=tiny", "gdt eval downstream --ckpt runs/synthetic-l/checkpoint.pt --size=tiny"),
        ("eval SIZE=tiny DATASET=x PRESET=e GPUS=2",
         "gdt eval downstream --ckpt runs/x-e/checkpoint.pt --dataset=x --size=tiny --jobs=2"),
        ("eval SIZE=tiny DATASET=x SEED=3 FACTORS='video:d time_shift:d:2 modality:i:2:differs augmentation:i:1'",
         "gdt eval downstream --ckpt runs/x-tsd2-mi2x-seed3/checkpoint.pt --dataset=x --size=tiny"),
        ("eval SIZE=tiny CKPT=a.pt SEED=3", "gdt eval downstream --ckpt a.pt --size=tiny --seed=3"),
        ("embed SEED=3 SOURCE=/v", "gdt eval embed --ckpt runs/synthetic-l-seed3/checkpoint.pt --source /v"),
        ("eval SIZE=tiny CKPT='a.pt b.pt' DATASET=x",
         "gdt eval downstream --ckpt a.pt b.pt --dataset=x --size=tiny"),
        ("eval-ucf SIZE=paper PROTOCOLS=retrieval FOLDS='1 2'",
         "gdt eval downstream --ckpt runs/kinetics-l/checkpoint.pt --dataset ucf101 --size=paper "
         "--protocols retrieval --folds 1 2"),
        ("embed SOURCE=/v OUT=x.h5", "gdt eval embed --ckpt runs/synthetic-l/checkpoint.pt --source /v --out=x.h5"),
        ("ablation SIZE=tiny ROWS='a e'", "gdt eval ablation --dataset synthetic --size=tiny --rows a e"),
        ("report RUNS=x", "gdt eval report --runs=x"),
        ("pretrain SIZE=tiny CLIP_SIZE=24", "gdt pretrain tiny --dataset synthetic --clip.size=24"),
        ("preprocess SHORT_SIDE=96 DRY_RUN=0", "gdt preprocess --dataset synthetic --short-side=96 --no-dry-run"),
        ("preprocess TIMEOUT_FACTOR=30", "gdt preprocess --dataset synthetic --timeout-factor=30"),
        ("eval SIZE=tiny CKPT=\"'a b.pt' c.pt\" TABLES=no",
         "gdt eval downstream --ckpt 'a b.pt' c.pt --size=tiny --no-tables"),
        ("ablation SIZE=tiny ROWS=\"e 'video:d modality:i:2:differs'\"",
         "gdt eval ablation --dataset synthetic --size=tiny --rows e 'video:d modality:i:2:differs'"),
        ("pretrain SIZE=tiny ARGS='--out ~/x'", f"gdt pretrain tiny --dataset synthetic --out {Path.home()}/x"),
        ("preprocess eval DATASET=folder SOURCE=/x CKPT=y SIZE=tiny CUDA_VISIBLE_DEVICES=0",
         "gdt preprocess --dataset=folder --source=/x\ngdt eval downstream --ckpt y --dataset=folder --size=tiny"),
    ],
)  # fmt: skip
def test_make_runs_the_command_with_its_variables(tmp_path: Path, typed: str, meant: str) -> None:
    done = make(*shlex.split(typed), stamp=tmp_path / "stamp")
    assert done.returncode == 0, done.stderr
    for said, expected in zip(done.stdout.splitlines(), meant.split("\n"), strict=True):
        assert sorted(shlex.split(said)) == sorted(shlex.split(expected)), said


def test_values_are_data_for_make_and_the_shell(tmp_path: Path) -> None:
    """No value runs a command or is changed."""
    ran = tmp_path / "ran"
    evil = f"a  b'\"; touch {ran}; $(shell touch {ran})$(touch {ran})`touch {ran}`$$HOME $HOME \\#é*"
    quoted = shlex.quote(evil)
    for typed, words in (
        (("eval", f"DATASET={evil}"), [f"--dataset={evil}"]),
        (("embed", f"SOURCE={quoted}"), ["--source", evil]),
        (("report", f"RUNS={evil}", f"FIGURES_OF={quoted} x"), [f"--runs={evil}", "--figures-of", evil, "x"]),
        (("bench", f"SOURCE={evil}"), ["--source", evil]),
        (("bench-gpu", f"ARGS=--row {quoted}"), ["--row", evil]),
    ):
        done = make(*typed, stamp=tmp_path / "stamp")
        said = shlex.split(done.stdout.split("\n")[0])
        assert not ran.exists() and all(word in said for word in words), (typed, done.stdout, done.stderr)


def test_environment_variables_that_are_options_count(tmp_path: Path) -> None:
    done = make("pretrain", "SIZE=tiny", stamp=tmp_path / "stamp", DATASET="mine", PRESET="e", ROWS="a", LABEL="x")
    assert done.stdout.split() == ["gdt", "pretrain", "tiny", "--dataset=mine", "--preset=e"]
    done = make("eval", "SIZE=tiny", stamp=tmp_path / "stamp", DATASET="mine")
    assert "--ckpt runs/mine-l/checkpoint.pt --dataset=mine" in done.stdout


def test_a_list_of_paths_may_be_one_path_with_spaces(tmp_path: Path) -> None:
    videos = tmp_path / "My videos"
    videos.mkdir()
    for source, expected in {
        str(videos): [str(videos)],
        f"'{videos}' {tmp_path}": [str(videos), str(tmp_path)],
    }.items():
        done = make("embed", "CKPT=x.pt", f"SOURCE={source}", stamp=tmp_path / "stamp")
        assert shlex.split(done.stdout) == ["gdt", "eval", "embed", "--ckpt=x.pt", "--source", *expected]
    (tmp_path / "a e").mkdir()
    done = make("ablation", "SIZE=tiny", f"ROWS={tmp_path}/a e", stamp=tmp_path / "stamp")  # names, not paths
    words = shlex.split(done.stdout)
    assert words[words.index("--rows") :][:3] == ["--rows", f"{tmp_path}/a", "e"]


def tiny(shards: Path, run: Path, *more: object) -> tuple[object, ...]:
    """A command that trains in seconds."""
    return ("pretrain", "tiny", "--shards", shards, "--out", run, "--batch-size", 4, "--threads", 1, "--preset",
            "e", *more)  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_run_ends_with_the_next_commands_and_is_left_alone_afterwards(
    command: Run, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "a run"
    done = command(*tiny(shards, run, "--steps", 2, "--probe-every", 2))
    assert done.returncode == 0, done.stderr
    *description, metrics, speed, model, evaluate, embed, report = done.stdout.splitlines()
    assert [line.split()[0] for line in description if line[0] != " "] == [
        "data", "composition", "network", "batch", "memory", "device", "schedule", "folder"
    ]  # fmt: skip
    assert max(map(len, description[:-1])) <= 100  # the folder is not broken
    measured = r"loss \d\.\d{3}, top-1 \d+ %, video to audio R@1 [\d.]+ %"
    assert re.fullmatch(rf"2 steps in 0:00:\d\d: {measured}", metrics)
    assert re.fullmatch(r"median \d+ clips/s, peak memory \d\.\d GiB \(whole process\)", speed)
    bars = re.split(r"[\r\n]", done.stderr)
    assert max(map(len, bars)) <= 100
    bar = r"step 2/2 \[\d\d:\d\d<00:00, loss \d\.\d{3}, top-1 \d+ %, \d+ clips/s, data wait \d+ %, R@1 [\d.]+ %\]"
    assert re.fullmatch(bar, bars[-2] or bars[-1]), bars
    assert model == f"the trained model is in {run}/checkpoint.pt"
    options = (["--protocols", "cross-modal"], ["--out", "x.npz"], ["--out", "x.html"])
    for line, more in zip((evaluate, embed, report), options, strict=True):
        program, *words = shlex.split(line)
        assert shutil.which(program)
        done = command(*words, *more)
        assert done.returncode == 0, done.stderr
        if line == evaluate:  # whose results the report has
            assert done.stdout.splitlines()[-1] == f"next: {report.strip()}"
    assert "V→A R@1" in (tmp_path / "x.html").read_text()
    left = contents(run)
    done = command(*tiny(shards, run, "--steps", 2))
    assert done.returncode == 0 and "step " not in done.stderr
    assert done.stdout.splitlines()[-1] == f"{run}/checkpoint.pt is trained to its last step, 2; nothing to do"
    assert contents(run) == left


def test_a_run_with_a_constant_rate_can_be_extended(command: Run, shards: Path, tmp_path: Path) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    constant = ("--optimization.lr-decay", 0, "--optimization.warmup-epochs", 0.5, "--network.dropout", 0.3,
                "--batch-size", 6)  # fmt: skip
    assert command(*tiny(shards, run, *constant, "--steps", 2)).returncode == 0
    assert command(*tiny(shards, run, *constant, "--epochs", 1)).returncode == 0  # 4 steps
    assert command(*tiny(shards, straight, *constant, "--epochs", 1)).returncode == 0
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (run, straight))
    assert one["settings"] == other["settings"].replace("straight", "run") and one["step"] == other["step"] == 4
    assert all(torch.equal(one["model"][name], value) for name, value in other["model"].items())
    one, other = ((folder / "metrics.jsonl").read_text().splitlines() for folder in (run, straight))
    assert [json.loads(line)["loss"] for line in one] == [json.loads(line)["loss"] for line in other]
    said = sentence(command(*tiny(shards, run, *constant, "--steps", 3)))
    assert said == (
        f"{run} has done 4 steps, more than the requested 3; raise --steps or --epochs, or set --out to another folder"
    )


def test_a_run_with_a_decayed_rate_cannot_be_extended(command: Run, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    falling = ("--optimization.lr-decay", 0.5)
    assert command(*tiny(shards, run, *falling, "--steps", 4)).returncode == 0
    said = sentence(command(*tiny(shards, run, *falling, "--steps", 6)))
    assert said == (
        f"{run} holds a run of 4 steps; with 6, the learning rate would differ from step 3 on, so it cannot be "
        f"extended. Start one from its weights: --init {run}/checkpoint.pt and another --out; or "
        f"start over: delete {run}"
    )
    both = sentence(command(*tiny(shards, run, *falling, "--steps", 8, "--temperature", 0.1)))
    assert "holds a run with different settings (temperature was 0.07, now 0.1)" in both


@pytest.mark.parametrize(
    ("decay", "before", "after", "done", "same"),
    [(0.0, 8, 20, 8, True), (0.0, 8, 4, 3, True), (0.5, 8, 20, 4, True), (0.5, 8, 20, 6, False), (0.5, 8, 6, 5, False)],
)
def test_a_run_can_change_its_length_while_the_rates_are_the_same(
    decay: float, before: int, after: int, done: int, same: bool
) -> None:
    base = replace(SIZES["tiny"][1], device="cpu", precision="float32")
    optimization = replace(base.optimization, lr_decay=decay, warmup_epochs=0.5)
    then, now = (replace(base, optimization=optimization, steps=steps) for steps in (before, after))
    data = Data("x", Statistics(np.ones(3), np.ones(3), 0.0, 1.0))
    state = {
        "data": "x",
        "words": "",
        "statistics": data.statistics.to_numbers(),
        "step": done,
        "settings": to_json(then),
    }
    with contextlib.nullcontext() if same else pytest.raises(UserError, match="so it cannot be extended"):
        require_same_run(state, now, data, 4, Path("run/checkpoint.pt"))


def test_a_missing_data_set_is_reported_with_the_available_ones(command: Run, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "shards").mkdir(parents=True)
    (tmp_path / "data" / "shards" / "mine").symlink_to(shards)
    said = sentence(command("pretrain", "tiny", "--dataset", "mien"))
    assert said == "there are no shards in data/shards/mien (no index.h5); did you mean 'mine'?"
    said = sentence(command("pretrain", "tiny", "--shards", "mine"))
    assert said == "there are no shards in mine (no index.h5); did you mean 'data/shards/mine'?"
    said = sentence(command("pretrain", "tiny", "--dataset", "kinetik"))
    assert "did you mean 'kinetics'? Make its shards with 'make preprocess DATASET=kinetics SOURCE=" in said
    said = sentence(command("pretrain", "tiny", "--dataset", "other"))
    assert "(no index.h5); available: mine; make them with 'make preprocess DATASET=folder SOURCE" in said
    assert len(said) < 200
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    said = sentence(command("verify", "--shards", "videos"))
    assert "videos (no index.h5), but other files; name a folder of shards that 'make preprocess' wrote" in said
    said = sentence(command("pretrain", "tiny", "--dataset", "data/shards/mine"))
    assert said.startswith("--dataset is data/shards/mine, a folder of shards; set --shards to it, or --dataset to")
    said = sentence(command("pretrain", "tiny", "--dataset", "mine", "--preset", "L", "--out", "videos/a.mp4"))
    assert said == "unknown preset 'L'; did you mean 'l'? --preset help lists them"
    said = sentence(command("pretrain", "tiny", "--dataset", "mine", "--batch-size", "4", "--out", "videos/a.mp4"))
    assert said == "cannot write to videos/a.mp4: it is a file, not a folder; set --out to another folder"


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("--batch-size is 1; set it, or --clip.size 24", "BATCH_SIZE is 1; set it, or CLIP_SIZE=24"),
        ("'x' is no row; --preset help lists them", "'x' is no row; PRESET=help lists them"),
        ("run `gdt verify --preset l` or 'x --preset a'", "run `gdt verify --preset l` or 'x --preset a'"),
        ("--node-rank 1 of --preset l", "--node-rank 1 of PRESET l"),
        ("compare them with --equal compute, too", "compare them with EQUAL=compute, too"),
        ("set --folds 1 2; or", 'set FOLDS="1 2"; or'),
        ("use --device cpu, or --init runs/x-l/a.pt; --out is x", "use DEVICE=cpu, or INIT=runs/x-l/a.pt; OUT is x"),
    ],
)
def test_messages_name_options_as_they_are_typed(message: str, typed: str) -> None:
    assert (
        as_typed(message, {"GDT_OPTIONS": "--preset --equal --batch-size --clip.size --device --init --out --folds"})
        == typed
    )
    assert as_typed(message, {}) == message


def test_messages_name_options_as_keyword_arguments() -> None:
    said = as_keywords("set --folds 1 2, --clips 3, --device cpu or --ckpt", {"ckpt": "checkpoints"})
    assert said == "set folds=(1, 2), clips=3, device='cpu' or checkpoints"


def test_a_flag_is_named_with_its_value() -> None:
    environment = {"GDT_GOALS": "embed", "GDT_TYPED": "OUT", "OUT": "x.h5"}
    with_variables([], lambda _: options_of(Embed), environment)
    message = "set --out to another file, or pass --overwrite to replace it"
    assert as_typed(message, environment) == "set OUT to another file, or pass OVERWRITE=1 to replace it"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_out_of_memory_is_explained_and_other_errors_are_not(error: Exception) -> None:
    sentence = r"^out of memory \(.+\); stop other programs, or lower --videos$"
    with pytest.raises(UserError, match=sentence), explain_out_of_memory("lower --videos"):
        raise error
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_out_of_memory("lower --videos"):
        raise RuntimeError("shapes differ")
