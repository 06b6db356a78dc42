"""The trial that chooses kernels: it computes what a run does, finds what is wrong, and survives what fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from gdt.train import trial
from gdt.train.distributed import leave_without_teardown
from gdt.train.kernels import Kernels, candidate_kernels
from gdt.train.metrics import HostMark
from gdt.train.models.gdt import GDT
from gdt.train.models.r2plus1d import Block, R2Plus1D
from gdt.train.settings import SIZES
from gdt.train.trial import Trial, choose_kernels
from tests.train.test_fake_cuda import GPU, fake_cuda

TINY = SIZES["tiny"]
CPU = torch.device("cpu")
BF16, FLOAT = torch.bfloat16, torch.float32
SMALL = Trial(
    replace(TINY.network, stem=4, stem_middle=4, widths=(4, 8)), replace(TINY.clip, frames=4, size=16), leaves=4
)
FIRST, LAST = Kernels(FLOAT, channels_last=False), Kernels(FLOAT)


def chosen(candidates: list[Kernels], what: Trial = SMALL) -> tuple[Kernels, list[str]]:
    said: list[str] = []
    return choose_kernels(candidates, what, CPU, said.append), said


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Factors of features and gradient, and seconds, for each kind of kernels and perhaps a number of leaves."""
    results: dict[Any, Any] = {LAST: (1, 1, 1.0)}

    def computed(kernels: Kernels, what: Trial, different: int, *rest: object) -> trial._Result:
        result = results.get((kernels, what.leaves), results.get(kernels))
        if isinstance(result, Exception):
            raise result
        feature, gradient, seconds = result
        clips = torch.arange(what.leaves) % different
        features = torch.randn(different, 16, generator=torch.Generator().manual_seed(0))[clips]
        return trial._Result(clips, features * feature, {"conv": torch.ones(3) * gradient}, seconds)

    monkeypatch.setattr(trial, "_compute", computed)
    return results


def test_wrong_slow_and_missing_kernels_are_rejected(fake: dict[Any, Any]) -> None:
    fake |= {
        Kernels(BF16, compiled=True): RuntimeError("no compiler\nmore"),
        Kernels(BF16): (float("nan"), 1, 0.1),
        Kernels(BF16, channels_last=False): (1.01, 1, 9.0),
    }
    candidates = candidate_kernels(BF16, compiled=True)
    found, said = chosen(candidates)
    assert found == LAST
    reasons = (
        "compiled is not used: no compiler (torch",
        "from float32 by nan of",
        "9.0 times as long as",
        "computing in float32",
    )
    for line, part in zip(said, reasons, strict=True):
        assert part in line and "cuDNN" in line, said
    fake[Kernels(BF16)] = (1, -1, 0.5)
    assert (
        "channels last is not used: the gradient of a convolution differs from float32 by 2 of"
        in chosen(candidates)[1][1]
    )
    fake[Kernels(BF16)] = (1.02, 0.9, 0.5)
    found, said = chosen(candidates)
    assert found == Kernels(BF16)
    assert "bfloat16, channels last; cuDNN not available, relative difference from float32: features 0.02" in said[-1]
    assert said[-1].endswith(", gradients 0.1")
    fake[Kernels(BF16, compiled=True)] = RuntimeError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        chosen(candidates)


def test_a_trial_survives_a_float32_that_fails(fake: dict[Any, Any]) -> None:
    fake |= {LAST: RuntimeError("CUDNN_STATUS_INTERNAL_ERROR"), FIRST: (1, 1, 1.0), Kernels(BF16): (1, -1, 0.1)}
    fake[Kernels(BF16, channels_last=False)] = (1, 1, 0.1)
    candidates = candidate_kernels(BF16, compiled=False)
    found, said = chosen(candidates)
    assert found == Kernels(BF16, channels_last=False) and len(said) == 3
    assert said[0].startswith("warning: float32, channels last fails, so nothing is compared with it: CUDNN_STATUS")
    fake[FIRST] = RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")  # nothing to compare with: the safest that computes
    found, said = chosen(candidates)
    assert found == Kernels(BF16, channels_last=False) and said[-1].endswith("unchecked") and len(said) == 5


def test_a_float32_out_of_memory_computes_fewer_clips(fake: dict[Any, Any]) -> None:
    what = replace(SMALL, leaves=24)
    fake |= {(LAST, leaves): RuntimeError("CUDA out of memory") for leaves in (8, 6)} | {Kernels(BF16): (1, 1, 0.5)}
    assert what.distinct_counts == [8, 6, 4, 3, 2] and chosen([Kernels(BF16)], what)[0] == Kernels(BF16)
    fake[LAST] = RuntimeError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        chosen([Kernels(BF16)], what)


def test_padded_kernels_are_taken_where_they_are_faster(fake: dict[Any, Any]) -> None:
    candidates = candidate_kernels(BF16, compiled=True, padded=True)
    padded, plain, *rest = candidates
    assert (padded, plain) == (Kernels(BF16, compiled=True, padded=True), Kernels(BF16, compiled=True))
    assert rest == [Kernels(BF16, padded=True), *candidate_kernels(BF16, compiled=False)]
    fake |= {padded: (1, 1, 0.4), plain: (1, 1, 0.5)}
    found, said = chosen(candidates)
    assert found == padded and "computing in bfloat16, channels last, compiled, padded;" in said[0] and len(said) == 1
    for slower_wrong_or_too_large in ((1, 1, 0.6), (1, -1, 0.1), RuntimeError("CUDA out of memory")):
        fake[padded] = slower_wrong_or_too_large
        assert chosen(candidates)[0] == plain
    fake |= {padded: (1, 1, 0.6), plain: RuntimeError("no kernel")}  # slower than float32 only if it says so
    assert chosen(candidates)[0] == padded
    fake |= {LAST: RuntimeError("cuDNN"), FIRST: RuntimeError("cuDNN"), plain: (1, 1, 0.5)}  # nothing to compare with
    fake |= {Kernels(BF16, channels_last=False): (1, 1, 1.0)}
    assert not chosen(candidates[:4])[0].padded


@pytest.mark.parametrize(
    "changes", [{"leaves": 1}, {"leaves": 11}, {"leaves": 16, "passes": 2, "recomputed": 2}, {"masked": True}], ids=str
)
def test_a_repeated_batch_has_the_results_of_different_clips(changes: dict[str, Any]) -> None:
    for candidates in ([LAST, FIRST], [FIRST, LAST]):
        found, said = chosen(candidates, replace(SMALL, **{"leaves": 9} | changes))
        assert found == candidates[0] and len(said) == 1
        assert all(float(part.split()[0]) < 1e-4 for part in said[0].replace("within ", "\n").splitlines()[1:])


class _Wrong(Kernels):
    """Kernels with a fault."""

    fault: Callable[[GDT], object]

    def apply(self, model: GDT) -> Any:
        shapes = super().apply(model)
        self.fault(model)
        return shapes


def _conv(model: GDT) -> nn.Module:
    return model.video_network.base.get_submodule("layer2.0.conv1.0.3")


def _one_wrong_leaf(conv: nn.Module, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> tuple[Tensor]:
    return (torch.cat([given[0][:-1], given[0][-1:] * 0]),)


FAULTS: dict[str, Callable[[GDT], object]] = {
    "the sign of a weight's gradient": lambda model: _conv(model).weight.register_hook(lambda gradient: -gradient),
    "no gradient of a tap": lambda model: _conv(model).weight.register_hook(
        lambda gradient: gradient * torch.tensor([0.0, 1, 1]).view(3, 1, 1)
    ),
    "the sign of an input's gradient": lambda model: _conv(model).register_full_backward_hook(
        lambda conv, given, made: (-given[0],)
    ),
    "no gradient of a leaf": lambda model: _conv(model).register_full_backward_hook(_one_wrong_leaf),
    "no gradient by batch norm's mean and variance": lambda model: [
        setattr(norm, "forward", lambda x, norm=norm: _constant_statistics(norm, x))
        for norm in model.modules() if isinstance(norm, nn.BatchNorm3d)
    ],
}  # fmt: skip


def _constant_statistics(norm: nn.BatchNorm3d, x: Tensor) -> Tensor:
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    along = (1, -1, 1, 1, 1)
    mean, variance = (value.detach().view(along) for value in (x.mean((0, 2, 3, 4)), x.var((0, 2, 3, 4), correction=0)))
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight.view(along) + norm.bias.view(along)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_backward_pass_is_found(fault: str) -> None:
    """With the right features."""
    wrong = _Wrong(FLOAT)
    object.__setattr__(wrong, "fault", FAULTS[fault])
    found, said = chosen([wrong, LAST])
    assert found is LAST and "the gradient of a convolution differs from float32 by" in said[0]


def traced(base: nn.Module, **options: Any) -> None:
    """Compile by Dynamo alone, which takes seconds."""
    nn.Module.compile(base, **options | {"backend": "eager"})


def test_parts_that_are_not_compiled_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(R2Plus1D, "compile", traced)
    what, kernels = replace(SMALL, network=replace(SMALL.network, widths=(4,))), Kernels(FLOAT, compiled=True)
    found, said = chosen([kernels], what)
    assert found == kernels and len(said) == 1
    with torch._dynamo.config.patch(recompile_limit=1):  # a graph without a mask, and one with it
        said = chosen([kernels], replace(what, masked=True))[1]
    assert len(said) == 2 and "uncompiled" in said[1] and "recompile limit" in said[1], said
    forward = Block.forward

    def broken(block: Block, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return forward(block, x)

    monkeypatch.setattr(Block, "forward", broken)
    said = chosen([kernels], what)[1]
    assert len(said) == 2 and re.match(
        r"warning: torch.compile leaves \d+ parts? of the video network uncompiled", said[1]
    )
    assert "graph_break()" in said[1], said


def test_a_trial_stays_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "mark", lambda device: HostMark())
    what = replace(SMALL, passes=2, recomputed=1, masked=True)
    with fake_cuda():
        found = trial._compute(Kernels(BF16, padded=True), what, 2, True, GPU, None)
    assert {x.device for x in (found.clips, found.features, *found.gradients.values())} == {GPU}
    assert found.features.dtype == FLOAT and len(found.features) == len(found.clips) == 8


def _rank(rank: int, folder: str) -> None:
    """Ranks whose trials fail at other places."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    faulty = _Wrong(FLOAT)

    def fails(trunk: nn.Module, *inputs: object) -> None:
        raise RuntimeError("cuDNN error")

    object.__setattr__(faulty, "fault", lambda model: rank and _conv(model).register_forward_hook(fails))
    found, said = chosen([faulty, LAST], replace(SMALL, shared=True))
    assert (found is faulty) == (rank == 0) and len(said) == 1 + rank, said
    R2Plus1D.compile = traced  # type: ignore[method-assign]
    compiled = Kernels(FLOAT, compiled=True)
    found, said = chosen([compiled], replace(SMALL, shared=True, masked=True, recomputed=1))  # another group of one
    assert found is compiled and len(said) == 1, said
    dist.barrier()
    leave_without_teardown()


def test_ranks_try_synchronised_batch_norm_without_waiting_for_each_other(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
