"""Parts of training: schedule, optimizer, signals, memory."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import Tree
from gdt.train.distributed import StopSignal
from gdt.train.experiment import Experiment, compose, resolve, steps_of
from gdt.train.learner import Learner
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES, Optimization, Pretrain, RunSettings
from tests.composed import inputs_of
from tests.train.test_checkpoint import RECORD

CPU = torch.device("cpu")
PAPER, TINY = SIZES["paper"], SIZES["tiny"]


def trainer(settings: Pretrain, videos: int) -> Learner:
    """A learner of a small network with these settings, over `videos` videos."""
    source = VideoPool(np.arange(videos), np.full(videos, 100), 30)
    tree = Tree(compose(settings), source, settings.clip, 40, settings.seed)
    small = RunSettings.of(replace(settings, network=TINY.network))
    return Learner(
        Experiment(replace(RECORD, settings=small, steps=steps_of(small, tree.batches_per_epoch)), tree), CPU
    )


def test_the_schedule_is_the_published_one() -> None:
    """Goyal et al.: 10 epochs of warm-up from the rate of one GPU to that of all, then constant."""
    one = trainer(PAPER, videos=512 * 7).experiment.schedule
    at_epochs = [one.lr(7 * epoch) for epoch in range(100)]
    warm = [0.01, 0.073, 0.136, 0.199, 0.262, 0.325, 0.388, 0.451, 0.514, 0.577]
    assert np.allclose(at_epochs[:10], warm, rtol=1e-12) and np.allclose(at_epochs[10:], 0.64, rtol=1e-12)
    steps = np.array([*map(one.lr, range(one.steps))])
    assert one.steps == 700 and np.allclose(np.diff(steps[:71]), 0.063 / 7) and np.ptp(steps[70:]) == 0
    few = trainer(replace(PAPER, batch_size=16), videos=16 * 7).experiment.schedule  # the batch of two GPUs
    assert np.allclose([few.lr(0), few.lr(35), few.lr(70)], [0.01, 0.015, 0.02])
    fewer = trainer(replace(PAPER, batch_size=4), videos=28).experiment.schedule  # less than one GPU's: no warm-up
    assert np.allclose([fewer.lr(0), fewer.lr(300)], 0.005)


def test_the_tiny_schedule_is_constant_and_falls_at_the_end() -> None:
    one = trainer(TINY, videos=64)
    rates = np.array([one.experiment.schedule.lr(step) for step in range(600)])
    assert (rates[:451] == 1e-3).all()
    assert np.allclose(rates[450:], 1e-3 * np.arange(150, 0, -1) / 150)


@pytest.fixture(scope="module")
def batch_settings(shards: Path) -> Pretrain:
    return replace(
        TINY, shards=shards, batch_size=4, device="cpu", precision="float32", preset="e",
        network=replace(TINY.network, dropout=0.3),
        optimization=Optimization(optimizer="sgd", lr=0.05, base_batch_size=4, warmup_epochs=0),
    )  # fmt: skip


def test_a_step_is_sgd_with_momentum_weight_decay_and_lr(batch_settings: Pretrain, index: Index) -> None:
    optimization = replace(batch_settings.optimization, base_batch_size=1, warmup_epochs=1, lr_decay=0.5)
    settings = replace(batch_settings, optimization=optimization, steps=5)
    experiment = resolve(settings, index, CPU)
    tree = experiment.tree
    one = Learner(experiment, CPU)
    weights = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
    rates = [one.experiment.schedule.lr(step) for step in range(5)]
    assert len(set(rates)) > 3
    with Loader(index, tree.plans(0, 5), inputs_of(index, settings.clip), CPU) as loader:
        for step, batch in enumerate(loader):
            one.step(step, batch)
            for name, p in one.model.named_parameters():
                gradient = p.grad + 1e-5 * weights[name]  # weight decay as in the paper, on every parameter
                velocity[name] = 0.9 * velocity[name] + gradient
                weights[name] = weights[name] - rates[step] * velocity[name]
                assert torch.allclose(p, weights[name], rtol=1e-4, atol=1e-7), (step, name)
                weights[name] = p.detach().clone()


def test_signals_are_remembered_and_handlers_restored() -> None:
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [*map(signal.getsignal, numbers)]
    with StopSignal() as stop:
        assert stop.signal == 0
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):  # also twice
            os.kill(os.getpid(), number)
            assert stop.signal == number
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == 0
    signal.signal(signal.SIGHUP, ignored)
    assert before == [*map(signal.getsignal, numbers)]


@pytest.mark.parametrize("where", ["gdt.train.step.outcome", "gdt.pipeline.sources.video.affine"])
def test_out_of_memory_gives_one_message_with_what_to_change(
    batch_settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def greedy(*arguments: object) -> None:
        torch.empty(1 << 50)  # raises torch's real out-of-memory error

    monkeypatch.setattr(where, greedy)
    with pytest.raises(UserError, match=r"out of memory \(.*\); .*--gradient-cache on.*--group-size"):
        pretrain(replace(batch_settings, out=tmp_path))
