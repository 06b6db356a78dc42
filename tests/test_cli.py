"""The command line: commands and options, make's short forms, and one sentence for every mistake."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gdt.cli import COMMANDS, below_gdt
from gdt.common.commandline import options
from gdt.common.errors import UserError, explain_out_of_memory
from gdt.train.experiment import steps_of
from gdt.train.options import parse_arguments
from gdt.train.settings import SIZES, Pretrain
from tests.conftest import ROOT, Run


@cache
def all_options() -> set[str]:
    """Those of all commands."""
    return set().union(*(options(below_gdt(command.settings)) for command in COMMANDS.values()))


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a failed command, with its list of names, if any."""
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and said.startswith("error: ") and said.count("rror") == 1, done.stderr
    return said.removeprefix("error: ")


def tiny(shards: Path, *more: object) -> tuple[object, ...]:
    """A command that trains in seconds."""
    return ("pretrain", "--size", "tiny", "--shards", shards, "--batch-size", 4, "--threads", 1, "--preset", "e", *more)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_the_options(name: str, command: Run) -> None:
    done = command(name, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: gdt {name}") and "--" in done.stdout


def test_help_and_version_import_nothing_slow() -> None:
    code = "import sys; sys.argv = ['gdt', '--help']; from gdt.cli import console; console(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert not {"torch", "numpy", "tyro"} & set(done.stdout.splitlines()[-1].split())


def test_what_is_missing_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from gdt.cli import COMMANDS, below_gdt, run
        assert all(below_gdt(command.settings) for command in COMMANDS.values())
        for words in sys.stdin.read().splitlines():
            name, *arguments = words.split()
            try:
                run(name, arguments)
            except Exception as error:
                print(error)
        slow = {"torch", "nvidia.dali", "sklearn", "matplotlib", "distributed", "fsspec"}
        print(sorted(slow & sys.modules.keys()))"""
    commands = {
        "pretrain --dataset misspelt": "there are no shards in data/shards/misspelt",
        "pretrain --shards made --init gone.pt": "there is no checkpoint gone.pt",
        "embed --ckpt r2plus1d_18 --source gone": "gone does not exist",
        "embed --ckpt r2plus1d_18 --dataset misspelt": "there are no shards in data/shards/misspelt",
        "evaluate --ckpt r2plus1d_18 --shards gone": "there are no shards in gone",
        "factors": "there is no checkpoint in runs",
        "export --out x --ckpt gone.pt": "there is no checkpoint gone.pt",
        "nearest --query gone": "no features file features.h5",
        "verify --dataset mine": "there are no shards in data/shards/mine (no index.h5)",
        "preprocess --source nowhere": "the source folder ",
    }
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "index.h5").touch()
    options = {"text": True, "cwd": tmp_path, "capture_output": True, "check": True}
    done = subprocess.run([sys.executable, "-c", code], input="\n".join(commands), **options)
    *said, imported = done.stdout.splitlines()
    assert all(line.startswith(begin) for line, begin in zip(said, commands.values(), strict=True)), said
    assert imported == "[]"


def test_a_size_sets_the_defaults_and_options_override_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert parse_arguments([]) == SIZES["small"]
    assert parse_arguments(["--size", "paper"]) == Pretrain() == SIZES["paper"]
    mine = parse_arguments(["--size=tiny", "--lr", "0.5", "--clip.size", "24", "--epochs", "3"])
    assert (mine.optimization.lr, mine.clip.size, mine.epochs, mine.clip.frames) == (0.5, 24, 3, 8)
    assert [steps_of(run, 7) for run in (mine, SIZES["tiny"], Pretrain())] == [21, 600, 700]


def test_names_of_runs_and_how_they_are_found(command: Run, shards: Path) -> None:
    factors = "video:d:4 time_shift:i:1 modality:i:2:differs augmentation:i:1"
    said = "there is no checkpoint in runs; make one with 'gdt pretrain', or set --ckpt"
    assert sentence(command("evaluate", "--shards", shards)) == said
    command("pretrain", "--shards", shards, "--factors", factors, "--steps", 1, check=True)
    done = command("evaluate", "--clips", 1)
    assert done.returncode == 0 and "R@1" in done.stdout, done.stderr
    assert "checkpoint: runs/synthetic-time_shift-i-1-modality-i-2-differs/checkpoint.pt, the latest in" in done.stdout


def test_a_run_of_other_settings_is_replaced_only_when_asked(command: Run, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(*tiny(shards, "--out", run, "--steps", 2)).returncode == 0
    said = sentence(command(*tiny(shards, "--out", run, "--steps", 2, "--temperature", 0.1)))
    assert "different settings (temperature was 0.07, now 0.1)" in said and "--overwrite" in said
    command(*tiny(shards, "--out", run, "--steps", 2, "--temperature", 0.1, "--overwrite"), check=True)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((run / "settings.json").read_text())["temperature"] == 0.1


def test_a_run_ends_with_the_next_command_and_is_left_alone_afterwards(
    command: Run, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "a run"
    done = command(*tiny(shards, "--out", run, "--steps", 2, "--probe-every", 2), check=True)
    *_, model, evaluate = done.stdout.splitlines()
    assert model == f"the trained model is in {run}/checkpoint.pt; evaluate it with:"
    program, *words = shlex.split(evaluate)
    assert shutil.which(program)
    command(*words, check=True)
    left = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    done = command(*tiny(shards, "--out", run, "--steps", 2))
    assert done.stdout.splitlines()[-1] == f"{run}/checkpoint.pt is trained to its last step, 2; nothing to do"
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == left


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("pretran", "unknown command 'pretran'; did you mean 'pretrain'?"),
        ("pretrain --shards {shards} --preset L", "unknown preset 'L'; did you mean 'l'?"),
        ("pretrain --shards {shards} --factors vido:d", "unknown factor 'vido'; did you mean 'video'?"),
        ("pretrain --shards {shards} --clip.size 200", "a crop of 200 pixels (--clip.size) does not fit"),
        ("pretrain --epochs 2 --steps 3", "--epochs and --steps both set the length"),
        ("pretrain --shards {shards} --factors-from x.py", "--factors-from has no effect on a preset; set --factors"),
        ("pretrain --shards {shards} --size tiny --clip.frames 200", "; not used: 24 too short for 2 different starts"),
        ("pretrain --shards {shards} --split holdout", "is in the split 'holdout'; set --split to "),
        ("pretrain --shards {shards} --size tiny --out /proc/nowhere", "/proc/nowhere: No such file or directory"),
        ("pretrain --shards {shards} --precision bfloat16", "--precision bfloat16 needs a GPU"),
        ("evaluate --ckpt {shards}/index.h5", "index.h5 cannot be read as a checkpoint"),
        ("export --ckpt {checkpoint} --out missing/x.safetensors", "the folder missing does not exist"),
        ("evaluate --ckpt s3://bucket/x --shards {shards}", "s3://bucket/x is in a store, which can"),
        ("pretrain --shards {shards} --init s3://bucket/x", "s3://bucket/x is in a store, which can"),
    ],
)
def test_a_mistake_gets_one_sentence(
    typed: str, message: str, command: Run, shards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    said = sentence(command(*typed.format(shards=shards, checkpoint=checkpoint).split()))
    assert message in said and not [path for path in tmp_path.rglob("*") if path.is_file() and path.name[0] != "."]


@pytest.mark.parametrize("typed", ["pretrain --lrr 3", "ablation --size big", "pretrain --epochs x", "report x"])
def test_a_wrong_option_or_value_is_refused(typed: str, command: Run) -> None:
    done = command(*typed.split())
    assert done.returncode == 2 and "--help" in done.stderr + done.stdout


def test_an_option_of_other_commands_is_named_with_them(command: Run) -> None:
    done = command("embed", "--clip.size=3", "--short_side", "3", "--shards", "x", "--clipz", "3")
    last = done.stderr.splitlines()[-2:]
    assert last == ["--clip.size is an option of pretrain", "--short-side is an option of preprocess"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_out_of_memory_is_explained_and_other_errors_are_not(error: Exception) -> None:
    with pytest.raises(UserError, match=r"^out of memory \(.+\)"), explain_out_of_memory("lower --videos"):
        raise error
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_out_of_memory("lower --videos"):
        raise RuntimeError("shapes differ")


def make(*typed: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make, with the words of its command in brackets instead of Python."""
    ours = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "CONDA_PREFIX")}
    words = ["make", "--old-file=installed", "SETUP=installed", "PYTHON=printf '[%s]'", *typed]
    return subprocess.run(words, cwd=ROOT, env=ours | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"preprocess DATASET=kinetics SOURCE=/a\ b/\'c\"", r"gdt preprocess --dataset kinetics --source /a\ b/\'c\""),
        ("pretrain", "gdt pretrain"),
        ("pretrain FACTORS='video:d x:i:2' ARGS='--lr 3'", "gdt pretrain --factors 'video:d x:i:2' --lr 3"),
        ("pretrain GPUS=8", "torch.distributed.run --standalone --nproc-per-node 8 -m gdt pretrain"),
        ("eval DATASET=x CKPT=runs/x-e SEED=2", "gdt evaluate --dataset x --ckpt runs/x-e --seed 2"),
        (
            "eval-ucf CKPT='a.pt b.pt'",
            "gdt evaluate --dataset ucf101 --protocols finetune retrieval few-shot knn linear --ckpt a.pt b.pt",
        ),
        ("embed SOURCE=/v", "gdt embed --source /v"),
        ("report ARGS='--runs x'", "gdt report --runs x"),
    ],
)
def test_make_targets_are_short_forms(typed: str, meant: str) -> None:
    done = make(*shlex.split(typed))
    assert done.returncode == 0 and done.stdout == "".join(f"[{word}]" for word in ["-m", *shlex.split(meant)]), done


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("pretrain DATSET=x", "there is no variable DATSET; there are DATASET SOURCE "),
        ("eval-ucf DATASET=x", "'make eval-ucf' takes CKPT SEED ARGS, not DATASET"),
        ("verify GPUS=1", "'make verify' takes DATASET ARGS, not GPUS"),
        ("demo SEED=1", "'make demo' takes no variable, not SEED"),
    ],
)
def test_make_refuses_a_variable_that_the_target_does_not_take(typed: str, said: str) -> None:
    done = make(*typed.split())
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_make_takes_no_variable_of_the_environment() -> None:
    done = make("pretrain", "PRESET=e", SIZE="3")
    assert done.stdout == "[-m][gdt][pretrain][--preset][e]"
    assert "SIZE of the environment is not used; type SIZE=... after make" in done.stderr
    assert make("eval-ucf", DATASET="x").stdout.count("--dataset") == 1


def test_make_lists_every_target() -> None:
    listed = set(re.findall(r"make ([a-z0-9-]+)", make().stdout))
    targets = re.search(r"^\.PHONY: help ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.M)
    assert targets and listed == set(targets[1].replace("\\", "").split())


def test_make_help_offers_variables_that_the_commands_take() -> None:
    def takes(target: str, name: str) -> bool:
        command, *words = make(target, f"{name}=1").stdout.removeprefix("[-m][gdt][").rstrip("]").split("][")
        option = f"--{name.lower()}"
        return option in words and option in options(below_gdt(COMMANDS[command].settings))

    for lines in re.split(r"^(?=make )", make().stdout.partition("\nARGS=")[0], flags=re.M):
        targets = re.findall(r"make ([a-z0-9-]+)", lines)
        for name in {*re.findall(r"\b([A-Z]+)=", lines)} - {"GPUS"}:
            assert any(takes(target, name) for target in targets), (targets, name)
