"""Checkpoints: whole or not at all, intact or rejected."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import gdt
from gdt.common.errors import UserError
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import Tree
from gdt.train import checkpoint
from gdt.train.checkpoint import RunState
from gdt.train.experiment import Experiment, compose
from gdt.train.learner import Learner
from gdt.train.pretrain import pretrain
from gdt.train.record import Record
from gdt.train.run import CHECKPOINT
from gdt.train.settings import SIZES, Pretrain, RunSettings
from tests.conftest import few
from tests.tamper import edit_record, flip
from tests.train.own_networks import Breaking

TINY = RunSettings.of(SIZES["tiny"])
RECORD = Record(TINY, Statistics((90.0, 100.0, 110.0), (50.0, 60.0, 70.0), -3.0, 2.5), fingerprint="data")


def model_at(step: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """State of a model and its optimizer, different for every step."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(8, 40)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> RunState:
    return RunState(replace(RECORD, step=step), model.state_dict(), optimizer.state_dict())


def save(path: Path, step: int) -> None:
    checkpoint.write(path, state_of(*model_at(step), step))


def same(state: RunState, step: int) -> bool:
    model, optimizer = model_at(step)
    expected = model.state_dict()
    momentum = [value["momentum_buffer"] for value in state.optimizer["state"].values()]
    wanted = [value["momentum_buffer"] for value in optimizer.state_dict()["state"].values()]
    return (
        state.record == replace(RECORD, step=step)
        and state.weights.keys() == expected.keys()
        and all(torch.equal(state.weights[name], expected[name]) for name in expected)
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
    for model in (3, {}, {"video_network.base.stem.0.weight": 3}):
        save(path, 3)
        torch.save(torch.load(path) | {"model": model}, path)
        with pytest.raises(UserError, match=f"^{path} cannot be read as a checkpoint: it has no model; "):
            checkpoint.load_model(path)


VIDEO, AUDIO, TEXT = ({f"{name}_network", f"mlp_{name[0]}"} for name in ("video", "audio", "text"))


@pytest.mark.parametrize(
    ("preset", "networks"), few([("a", VIDEO), ("l", VIDEO | AUDIO), ("three", VIDEO | AUDIO | TEXT)])
)
def test_the_untrained_model_has_the_initial_weights_of_the_run(
    tmp_path: Path, preset: str, networks: set[str]
) -> None:
    settings = RunSettings.of(SIZES["tiny"], preset=preset, seed=5, out=tmp_path)
    source = VideoPool(np.arange(64), np.full(64, 100), 30)
    tree = Tree(compose(settings), source, settings.clip, 40, 0)
    run = Learner(Experiment(replace(RECORD, settings=settings), tree), torch.device("cpu"))
    began = {name: value.clone() for name, value in run.model.state_dict().items()}
    with torch.no_grad():
        for value in run.model.parameters():
            value += 1
    path = tmp_path / CHECKPOINT
    checkpoint.write(path, run.state(7))
    state = torch.random.get_rng_state()
    trained, untrained = checkpoint.load_model(path), checkpoint.load_model(tmp_path).untrained()
    assert torch.equal(state, torch.random.get_rng_state())  # the caller's random numbers
    assert {name for name, _ in untrained.model.named_children()} == networks
    assert (trained.settings, trained.step) == (settings, 7) and (untrained.settings, untrained.step) == (settings, 0)
    assert not trained.model.training and not untrained.model.training
    for found, expected in ((untrained, began), (trained, run.model.state_dict())):
        weights = found.model.state_dict()
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Pretrain:
    """The settings of a run that has done its two steps."""
    out = tmp_path_factory.mktemp("finished") / "run"
    settings = replace(SIZES["tiny"], preset="e", batch_size=4, steps=2, shards=shards, out=out, device="cpu")
    pretrain(settings)
    return settings


def of_another_version(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    torch.save(edit_record(state, {"luck": 3}), path)


def not_finite(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    state["model"]["mlp_v.block_forward.2.weight"][0] = torch.nan
    torch.save(state, path)


@pytest.mark.parametrize(
    ("spoil", "refused"),
    few(
        [
            (lambda path: None, ""),
            (of_another_version, r"holds no settings of this version .* or replace the run with --overwrite"),
            (not_finite, r"mlp_v.* contains NaN or infinity; use another file, or start anew with --overwrite"),
            (lambda path: path.write_bytes(path.read_bytes()[:-500]), "it is damaged.*; start again with --overwrite"),
        ]
    ),
    ids=["finished", "another version", "not finite", "damaged"],
)
def test_overwrite_starts_anew_whatever_the_folder_holds(
    finished: Pretrain, tmp_path: Path, spoil: Callable[[Path], None], refused: str
) -> None:
    settings = replace(finished, out=tmp_path / "run")
    shutil.copytree(finished.run_folder, settings.run_folder)
    path = settings.run_folder / CHECKPOINT
    spoil(path)
    if refused:
        with pytest.raises(UserError, match=refused):
            pretrain(settings)
    before = path.stat().st_mtime_ns
    pretrain(replace(settings, overwrite=True))
    assert path.stat().st_mtime_ns != before
    new, old = (torch.load(folder / CHECKPOINT, weights_only=True) for folder in (path.parent, finished.run_folder))
    assert json.loads(new["record"])["step"] == 2
    assert all(torch.equal(new["model"][name], value) for name, value in old["model"].items())


@pytest.mark.parametrize("where", ["weight", "buffer", "moment"])
def test_numbers_that_are_not_finite_never_replace_a_checkpoint(tmp_path: Path, where: str) -> None:
    path = tmp_path / CHECKPOINT
    save(path, 1)
    model, optimizer = model_at(2)
    tensors = {
        "weight": model[0].weight, "buffer": model[1].running_var,
        "moment": optimizer.state[model[0].weight]["momentum_buffer"],
    }  # fmt: skip
    tensors[where].data[0] = torch.inf
    with pytest.raises(UserError, match="is not finite after step 2, so it is not saved; lower --lr"):
        checkpoint.write(path, state_of(model, optimizer, 2))
    assert same(checkpoint.read(path), 1)


def test_a_gradient_that_is_not_finite_changes_nothing_and_the_run_can_be_resumed(
    finished: Pretrain, tmp_path: Path
) -> None:
    """At the last step; the loss is finite."""
    given = {"size": "tiny", "preset": "a", "batch_size": 4, "steps": 3, "device": "cpu", "checkpoint_steps": 1}
    whole = gdt.pretrain(finished.shards, out=tmp_path / "whole", video_network=partial(Breaking, 99), **given)
    with pytest.raises(UserError, match=r"the loss is [\d.]+ and the norm of its gradient nan at step 2, which is not"):
        gdt.pretrain(finished.shards, out=tmp_path / "run", video_network=partial(Breaking, 3), **given)
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT).record.step == 2
    again = gdt.pretrain(finished.shards, out=tmp_path / "run", video_network=partial(Breaking, 99), **given)
    one, other = (torch.load(run.checkpoint, weights_only=True)["model"] for run in (whole, again))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
