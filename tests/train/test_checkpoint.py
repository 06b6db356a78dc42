"""Checkpoints: whole or not at all, intact or rejected."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.base import Source
from gdt.pipeline.tree import Tree
from gdt.train import checkpoint
from gdt.train.checkpoint import Data
from gdt.train.learner import Learner
from gdt.train.pretrain import pretrain
from gdt.train.run import CHECKPOINT
from gdt.train.settings import SIZES
from tests.tamper import flip

DATA = Data("data", Statistics(np.array([90.0, 100.0, 110.0]), np.array([50.0, 60.0, 70.0]), -3.0, 2.5))


def model_at(step: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """State of a model and its optimizer, different for every step."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(8, 40)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def save(path: Path, step: int, settings: str = "{}") -> None:
    checkpoint.write(path, checkpoint.make_state(*model_at(step), step, settings, DATA))


def same(state: dict, step: int) -> bool:
    model, optimizer = model_at(step)
    expected = model.state_dict()
    momentum = [value["momentum_buffer"] for value in state["optimizer"]["state"].values()]
    wanted = [value["momentum_buffer"] for value in optimizer.state_dict()["state"].values()]
    return (
        state["step"] == step and state["settings"] == "{}" and state["data"] == "data"
        and state["model"].keys() == expected.keys()
        and all(torch.equal(state["model"][name], expected[name]) for name in expected)
        and all(map(torch.equal, momentum, wanted))
    )  # fmt: skip


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    save(path, 5)
    whole = path.read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(200):
        flip(path, draw.randrange(len(whole)), draw.randrange(8))
        try:
            assert same(checkpoint.read(path), 5)
        except checkpoint.Damaged as error:
            assert "\n" not in str(error)
            refused += 1
        path.write_bytes(whole)
    assert refused > 150  # the other flips hit padding between the parts of the file


def test_a_damaged_checkpoint_gives_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    assert checkpoint.read_run(tmp_path) is None
    save(path, 3)
    state = checkpoint.read_run(tmp_path)
    assert state is not None and same(state, 3)
    path.write_bytes(path.read_bytes()[:-500])
    why = f"^{path} cannot be read as a checkpoint: it is damaged.*; "
    with pytest.raises(UserError, match=f"{why}start again with --overwrite"):
        checkpoint.read_run(tmp_path)
    with pytest.raises(UserError, match=f"{why}use the checkpoint.pt of a run"):
        checkpoint.load_model(path)


@pytest.mark.parametrize("moment", ["half of the file is written", "before it is renamed"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_older_one(tmp_path: Path, moment: str) -> None:
    path = tmp_path / CHECKPOINT
    save(path, 1)
    state = checkpoint.make_state(*model_at(2), 2, "{}", DATA)  # not in the child, which has none of torch's threads
    if (child := os.fork()) == 0:
        whole = torch.save

        def half(state: object, file: BinaryIO) -> None:
            whole(state, file)
            file.flush()
            if moment.startswith("half"):
                os.ftruncate(file.fileno(), file.tell() // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        torch.save = half
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.write(path, state)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert same(checkpoint.read(path), 1)
    save(path, 3)
    assert same(checkpoint.read(path), 3) and [*tmp_path.iterdir()] == [path]


VIDEO, AUDIO, TEXT = ({f"{name}_network", f"mlp_{name[0]}"} for name in ("video", "audio", "text"))


@pytest.mark.parametrize(("preset", "networks"), [("a", VIDEO), ("l", VIDEO | AUDIO), ("three", VIDEO | AUDIO | TEXT)])
def test_the_untrained_model_has_the_initial_weights_of_the_run(
    tmp_path: Path, preset: str, networks: set[str]
) -> None:
    settings = replace(SIZES["tiny"], preset=preset, seed=5, device="cpu", precision="float32", out=tmp_path)
    source = Source(np.arange(64), np.full(64, 100), 30)
    run = Learner(settings, Tree(settings.composition, source, settings.clip, 40, 0), DATA, torch.device("cpu"))
    began = {name: value.clone() for name, value in run.model.state_dict().items()}
    with torch.no_grad():
        for value in run.model.parameters():
            value += 1
    path = tmp_path / CHECKPOINT
    checkpoint.write(path, run.state(7))
    trained, untrained = checkpoint.load_model(path), checkpoint.load_model(tmp_path).untrained()
    assert {name for name, _ in untrained.model.named_children()} == networks
    assert (trained.settings, trained.step) == (settings, 7) and (untrained.settings, untrained.step) == (settings, 0)
    assert not trained.model.training and not untrained.model.training
    for found, expected in ((untrained, began), (trained, run.model.state_dict())):
        weights = found.model.state_dict()
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_run_of_another_version_can_be_replaced(shards: Path, tmp_path: Path) -> None:
    settings = replace(SIZES["tiny"], preset="e", batch_size=4, steps=1, shards=shards, out=tmp_path, device="cpu")
    path = pretrain(settings)
    state = torch.load(path, weights_only=True)
    torch.save(state | {"settings": state["settings"].replace('"seed"', '"luck": 3, "seed"')}, path)
    with pytest.raises(UserError, match=r"holds no settings of this version .* or replace the run with --overwrite"):
        pretrain(settings)
    pretrain(replace(settings, overwrite=True))
    assert torch.load(path, weights_only=True)["step"] == 1
