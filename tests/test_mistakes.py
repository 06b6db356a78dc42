"""Mistakes that a user makes, typed as users type them: one sentence says what is wrong and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pipeline.shards.layout import DATASETS, making
from preprocess import datasets
from tests.conftest import Run


def sentence(done: object) -> str:
    """What a command that failed says, which is one line."""
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: "), line
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("run", "advice"),
    [
        ("synthetic-b", "make it with 'make pretrain DATASET=synthetic PRESET=b', or set CKPT to yours"),
        ("my-videos-text-b", "'make pretrain DATASET=my-videos PRESET=text-b WORD2VEC=<file of word vectors>'"),
        ("kinetics-own", """'make pretrain DATASET=kinetics FACTORS="<its factors>"'"""),
        ("synthetic-z", "'make pretrain' makes runs/<dataset>-<preset>, and the presets are a, b, c, d, e, "),
    ],
)
def test_a_model_that_was_never_trained_is_named_with_the_command_that_trains_it(
    command: Run, run: str, advice: str, tmp_path: Path
) -> None:
    path = f"runs/{run}/checkpoint.pt"
    said = sentence(command("eval", "downstream", "--ckpt", path))
    assert said.startswith(f"there is no checkpoint {path}; ") and advice in said
    if run == "synthetic-b":
        assert sentence(command("eval", "embed", "--ckpt", path, "--dataset", "synthetic")) == said
        assert sentence(command("eval", "export", "--ckpt", path, "--out", "x.safetensors")) == said


def test_what_torch_says_of_unpickling_is_not_passed_on(command: Run, tmp_path: Path) -> None:
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
    assert "it holds an object of Python (torch.nn.modules.linear.Linear) where numbers are expected" in said
    assert "save the state_dict of a model" in said


def test_preprocessing_that_fails_leaves_no_folder(command: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (("--source", "empty"), "there are no videos in"),
        (("--source", "nowhere"), "does not exist; set SOURCE to the folder that holds your videos"),
        (("--dataset", "howto100m", "--source", "empty"), "set --word2vec"),
        (("--source", "empty", "--destination", "a/b/c"), "there are no videos in"),
        (("--source", "empty", "--dataset", "kinetic"), "there is no data set 'kinetic'; choose one of audioset, folder"),
    ):  # fmt: skip
        done = command("preprocess", *arguments)
        assert done.returncode == 2 and message in done.stderr
        assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "there").mkdir()  # somebody else's
    assert command("preprocess", "--source", "empty", "--destination", "there/x").returncode == 2
    assert not list((tmp_path / "there").iterdir())


def test_the_command_that_makes_shards_can_be_typed() -> None:
    assert tuple(datasets.DATASETS) == DATASETS
    assert making(Path("data/shards/synthetic")) == "make preprocess DATASET=synthetic"
    assert making(Path("data/shards/kinetics")) == "make preprocess DATASET=kinetics SOURCE=<your videos>"
    mine = "make preprocess DATASET=folder SOURCE=<your videos> ARGS=\"--destination data/shards/mine\""
    assert making(Path("data/shards/mine")) == mine
    assert making(Path("/x/ucf101")).endswith('DATASET=ucf101 SOURCE=<your videos> ARGS="--destination /x/ucf101"')
