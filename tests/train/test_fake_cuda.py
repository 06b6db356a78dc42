"""Training steps on the device `cuda` with tensors that have no values, so without a GPU.

They show what would fail or be slow on one: tensors on different devices, and a host that waits for the device.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # would refuse one of the patches below
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gdt.common.errors import UserError
from gdt.pipeline.colour import Pixels
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.text import Words
from gdt.train import metrics
from gdt.train.kernels import Kernels
from gdt.train.learner import Learner
from gdt.train.metrics import HostMark, Reports
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES, Pretrain
from tests.train.drawn import draw
from tests.train.test_checkpoint import DATA

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class FakeCuda(FakeTensorMode):
    """Tensors without values, on the device cuda to Python, and meta to torch's C++, which may lack CUDA."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None and torch.device(given["device"]).type == "meta":
            given["device"] = GPU  # asked for by C++
        if op is torch.ops.aten._fused_sgd_.default:  # not implemented without values
            assert {one.device for one in tree_leaves(args) if isinstance(one, Tensor)} == {GPU}
            return None
        return super().__torch_dispatch__(op, types, args, given)


class NoWaiting(TorchDispatchMode):
    """Raises where the host waits for a copy from or to the device; FakeTensorMode does where it needs a value."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        devices = {one.device.type for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor)}
        asynchronous = op is torch.ops.aten.copy_.default and args[2:] == (True,)
        assert len(devices) < 2 or asynchronous, f"{op} copies between {' and '.join(sorted(devices))}"
        return result


def autocast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with its autocast, which C++ has only for tensors that it sees on cuda."""

    def cast(*args: Any) -> Tensor:
        lower = torch.is_autocast_enabled("cuda")
        return function(*(one.bfloat16() if lower and isinstance(one, Tensor) else one for one in args))

    return cast


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    with FakeCuda(allow_non_fake_inputs=True) as mode, pytest.MonkeyPatch.context() as patch:
        subclass, swap = Tensor._make_subclass, torch.utils.swap_tensors

        def forget_and_swap(*tensors: Tensor) -> None:
            mode.fake_tensor_converter.meta_converter.tensor_memo.clear()  # its weak references forbid to swap
            swap(*tensors)

        patch.setattr(Tensor, "_make_subclass", lambda *a, dispatch_device=None, **named: subclass(*a, **named))
        patch.setattr(torch.utils, "swap_tensors", forget_and_swap)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        patch.setattr(metrics, "mark", lambda device: HostMark())
        for name in ("conv2d", "conv3d", "linear"):
            patch.setattr(functional, name, autocast(getattr(functional, name)))
        yield


@contextlib.contextmanager
def ranks(world: int) -> Iterator[None]:
    """A process group whose collectives do nothing."""
    if world == 1:
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def to_gpu(part: Any) -> Any:
    """A batch or a part of it with its tensors on the GPU."""
    if isinstance(part, Tensor):
        return part.to(GPU)
    if isinstance(part, dict):
        return {name: to_gpu(value) for name, value in part.items()}
    if isinstance(part, Batch | Pixels | Words):
        return replace(part, **{one.name: to_gpu(getattr(part, one.name)) for one in fields(part)})
    return part


WAITS: dict[str, Callable[[Tensor], object]] = {
    "number": lambda x: x.sum().item(),
    "condition": lambda x: bool(x.any()),
    "list": lambda x: x.tolist(),
    "copy to the host": lambda x: x.cpu(),
    "copy from the host": lambda x: torch.tensor([1.0], device=x.device),
    "copy into": lambda x: x.copy_(torch.ones(4)),
    "chosen by a mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "other device": lambda x: x + torch.ones(4),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_makes_the_host_wait_is_found(name: str) -> None:
    found = (
        "DataDependentOutput|DynamicOutputShape|copies between cpu and cuda|found at least two devices, cuda:0 and cpu"
    )
    with fake_cuda():
        x = torch.ones(4, device=GPU)
        with NoWaiting(), pytest.raises(Exception) as raised:
            WAITS[name](x)
        assert re.search(found, repr(raised.value))


def test_autocast_lowers_the_precision() -> None:
    with fake_cuda(), torch.autocast("cuda", torch.bfloat16):
        assert torch.nn.Linear(3, 2).to(GPU)(torch.ones(4, 3, device=GPU)).dtype == torch.bfloat16


def test_nothing_is_compiled_for_a_gpu_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of kernels then says so, and takes others."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    model = GDT(SIZES["tiny"].network, ("video",))
    with fake_cuda(), pytest.raises(UserError, match="^torch.compile needs a C compiler"):
        Kernels(torch.bfloat16, compiled=True).apply(model.to(GPU))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return draw(tmp_path_factory.mktemp("drawn"), 6)


def load(asked: Pretrain, index: Index, world: int) -> Batch:
    """The first batch, on the CPU, whose first video cannot be used if any can be left out."""
    tree = asked.tree(index)
    plans = (take_rank(plan, 0, world, asked.bn_group_size or 0) for plan in tree.plans(0, 1))
    with Loader(index, plans, asked.clip, CPU, asked.loading, asked.words(index)) as loader:
        (batch,) = loader
    if batch.usable is not None:
        batch.usable[0] = False
    return batch


MICRO: dict[str, Any] = {"bn_group_size": 4, "micro_batch_size": 4, "damaged": "skip"}
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"row {row}": (row, {}) for row in ("a", "e", "text-f")},
    "row l, paper": ("l", {"size": "paper"}),
    **{f"row {row}, micro-batches, unusable clips": (row, MICRO) for row in ("a", "l", "text-f")},
    "groups, AdamW, recomputed": ("e", {"bn_group_size": 2, "optimizer": "adamw", "recomputed": 3}),
    "padded": ("a", {"kernels": Kernels(torch.bfloat16, padded=True)}),
    "two ranks": ("e", {"world": 2}),
    "two ranks, unusable clips": ("e", {"world": 2, "damaged": "skip"}),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_stays_on_the_gpu(drawn: tuple[Path, Path], name: str) -> None:
    row, how = STEPS[name]
    base, index, world = SIZES[how.get("size", "tiny")], Index.open(drawn[0]), how.get("world", 1)
    asked = replace(
        base, preset=row, batch_size=4, steps=2, device="cuda", precision="bfloat16",
        word2vec=drawn[1] if "text" in row else None, network=replace(base.network, dropout=0.3, word_dimensions=10),
        optimization=replace(base.optimization, optimizer=how.get("optimizer", "sgd")),
        loading=replace(base.loading, damaged=how.get("damaged", "stop")),
        bn_group_size=how.get("bn_group_size", 0), micro_batch_size=how.get("micro_batch_size", 0),
    )  # fmt: skip
    batch = load(asked, index, world)
    kernels = how.get("kernels", Kernels(torch.bfloat16))
    with ranks(world), fake_cuda():
        learner = Learner(asked, asked.tree(index), DATA, GPU, world, kernels, how.get("recomputed", 0))
        batch, reports = to_gpu(batch), Reports(GPU)
        with NoWaiting():
            reports.begin()
            reports.loaded()
            found = learner.step(0, batch)
            reports.add(0, found, 0)
            learner.step(1, batch)
        assert {value.device for value in found} == {GPU}
        assert all(p.grad is not None and p.grad.device == GPU for p in learner.model.parameters())
