"""How a batch fits into memory, which kernels compute it, and what happens when out of memory."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gdt.common.errors import UserError
from gdt.pipeline.groups import take_rank
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.train import memory as fitting
from gdt.train.cost import ONE_STAGE, TWO_STAGES, LeafMemory, memory, training_flops
from gdt.train.kernels import BUDGET, Kernels
from gdt.train.learner import Learner
from gdt.train.memory import Fit, available_memory, fit, plan_run
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES, Optimization, Pretrain
from gdt.train.trial import Trial
from tests.train.drawn import draw
from tests.train.test_checkpoint import DATA

PAPER, TINY = SIZES["paper"], SIZES["tiny"]
GIB = 2**30
CPU = torch.device("cpu")
SMALL = replace(
    TINY, preset="l", batch_size=4, steps=3, device="cpu", precision="float32", threads=1,
    network=replace(TINY.network, dropout=0.3),
    optimization=Optimization("sgd", lr=1e-3, base_batch_size=0, warmup_epochs=0),
)  # fmt: skip


def held(recomputed: int, budget: bool) -> dict[str, LeafMemory]:
    """Roughly the memory of a leaf of the paper's networks in bfloat16."""
    plain = {0: (450, 450), ONE_STAGE: (146, 240), TWO_STAGES: (70, 240)}
    kept, peak = ({0: (228, 297), ONE_STAGE: (82, 240), TWO_STAGES: (54, 240)} if budget else plain)[recomputed]
    return {"video": LeafMemory(kept * 2**20, peak * 2**20), "audio": LeafMemory(0.7 * 2**20, 0.7 * 2**20)}


def fitted(world: int, gib: float, compiled: bool = False, **changes: object) -> Fit:
    settings = replace(PAPER, **changes)
    return fit(settings, settings.composition, world, 47_000_000, gib * GIB, held, compiled)


def test_the_whole_batch_if_it_fits_else_the_largest_groups() -> None:
    found = {
        (preset, world, gib): (one.bn_group_size, one.micro_batch_size, one.recomputed)
        for preset, world, gib in (("e", 8, 78), ("l", 8, 139), ("l", 8, 78), ("l", 1, 78), ("e", 1, 22), ("e", 1, 78))
        for one in [fitted(world, gib, preset=preset)]
    }
    assert found == {
        ("e", 8, 78): (0, 0, 0),
        ("l", 8, 139): (128, 0, 0),
        ("l", 8, 78): (128, 0, ONE_STAGE),
        ("l", 1, 78): (128, 128, 0),
        ("e", 1, 22): (64, 64, ONE_STAGE),
        ("e", 1, 78): (128, 0, TWO_STAGES),
    }
    for world in (1, 2, 4, 8, 64):
        for gib in (16, 24, 40, 80, 141):
            for preset in "ael":
                one = fitted(world, gib * 0.93, preset=preset)
                assert one.needed <= 0.85 * one.room, (world, gib, preset)  # every current GPU can train every row
                assert 512 % (size := one.bn_group_size or 1) == 0 and one.micro_batch_size % size == 0
                assert 512 * {"a": 2, "e": 1, "l": 4}[preset] // world % size == 0


def test_a_compiled_network_recomputes_what_is_between_convolutions_before_stages() -> None:
    found = {
        (preset, world, gib): (one.bn_group_size, one.micro_batch_size, one.recomputed, one.budget)
        for preset, world, gib in (("e", 8, 40), ("e", 8, 24), ("l", 8, 82), ("l", 8, 72), ("e", 1, 72))
        for one in [fitted(world, gib, compiled=True, preset=preset)]
    }
    assert found == {
        ("e", 8, 40): (0, 0, 0, False),
        ("e", 8, 24): (0, 0, 0, True),
        ("l", 8, 82): (128, 0, 0, True),
        ("l", 8, 72): (128, 0, ONE_STAGE, True),
        ("e", 1, 72): (128, 0, TWO_STAGES, True),
    }
    assert fitted(8, 24, compiled=True, preset="e").batch.endswith(
        "whole batch, recomputed: the layers between convolutions"
    )
    assert not fitted(8, 24, preset="e").budget


def test_settings_are_kept_even_if_they_do_not_fit() -> None:
    assert fitted(1, 78, bn_group_size=32).bn_group_size == 32
    asked = fitted(1, 78, bn_group_size=32, micro_batch_size=64)
    assert (asked.bn_group_size, asked.micro_batch_size) == (32, 64)
    assert fitted(1, 78, micro_batch_size=96).bn_group_size == 32  # 96 and 48 do not divide 512 videos
    whole = fitted(16, 8, bn_group_size=0)
    assert whole.bn_group_size == 0 and "expect to run out of memory" in whole.memory
    assert asked.batch.startswith("batch norm over groups of 32 leaves, micro-batches of 64 leaves, embedded twice")
    with pytest.raises(UserError, match="--micro-batch-size 3 is not a multiple of any batch-norm group size"):
        fitted(1, 78, micro_batch_size=3)
    for changes, message in (
        ({"bn_group_size": 1}, "--bn-group-size is 1; it must be 0, for the whole batch, or 2 or more"),
        (
            {"bn_group_size": 0, "micro_batch_size": 8},
            "--micro-batch-size is 8; it must be 0 or more, and 0 if batch norm",
        ),
        (
            {"bn_group_size": 8, "micro_batch_size": 12},
            "--micro-batch-size is 12; it must be a multiple of --bn-group-size",
        ),
    ):
        with pytest.raises(UserError, match=message):
            replace(PAPER, **changes)


class _Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves(made) if isinstance(value, torch.Tensor)]
        self.elements = max([self.elements, *(value.numel() for value in tensors)])
        return made


def test_no_planned_pass_has_an_activation_of_two_to_the_31_elements() -> None:
    """Of all presets, on any number of GPUs of any size; refused if the settings leave no other groups."""
    with torch.device("meta"):
        trunk = GDT(PAPER.network, ("video",)).video_network.train()
        with _Largest() as largest:
            trunk(torch.empty(2, 3, 30, 112, 112))
    assert largest.elements == 2 * 144 * 30 * 56 * 56  # the first stage's widest convolution
    of_leaf, sizes = largest.elements // 2, set()
    for preset in ("a", "e", "j", "l", "text-f", "three"):
        for world in (1, 2, 8, 64):
            for gib in (8, 16, 24, 40, 78, 139, 180):
                for batch_size in (None, 256, 2048):
                    for chunk in (0, 64, 1024):
                        changes = {"preset": preset, "batch_size": batch_size, "micro_batch_size": chunk}
                        one = fitted(world, gib, compiled=gib > 50, **changes)
                        composition = replace(PAPER, **changes).composition
                        share = composition.batch_size * composition.clips_per_video // world
                        of_pass = one.bn_group_size or share
                        assert of_pass * of_leaf < 2**31, (changes, world, gib)
                        sizes.add(of_pass)
    assert max(sizes) == 128
    limited, scarce = fitted(1, 139, preset="e"), fitted(1, 16, preset="e")
    reason = " (a pass of more than 158 has activations of 2**31 elements)"
    assert limited.batch.startswith(f"batch norm over groups of 128 leaves{reason}, recomputed: the first")
    assert reason not in scarce.batch and reason not in fitted(8, 78, preset="e").batch
    for world, changes, message in (
        (8, {"bn_group_size": 0}, r"256 clips .*; use at least 2 times as many GPUs, or \(new runs only\) set --bn-g"),
        (
            8,
            {"bn_group_size": 256},
            r"^--bn-group-size 256: .* 256 clips .*; \(new runs only\) set .* to 128 or less$",
        ),
        (
            1,
            {"preset": "e", "batch_size": 211},
            "^--batch-size 211: .* 211 clips .* at least 2 times as many GPUs$",
        ),
    ):
        with pytest.raises(UserError, match=message):
            fitted(world, 180, **changes)


def kept_by(model: GDT, clip: Clip, leaves: int) -> int:
    """Bytes that autograd keeps in a forward pass, without parameters."""
    storages = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model.embed("video", torch.randn(leaves, 3, clip.frames, clip.size, clip.size))
    assert out.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def test_counted_memory_and_flops_equal_those_of_a_real_pass() -> None:
    """Against what autograd keeps for one more leaf, and the arithmetic of the convolutions."""
    network, clip = TINY.network, TINY.clip
    found = memory(network, clip, 40, ("video",), torch.float32)["video"].kept
    again = memory(network, clip, 40, ("video",), torch.float32, ONE_STAGE)["video"]
    model = GDT(network, ("video",)).train()

    def really(leaves: int, recomputed: int) -> int:
        model.video_network.base.recomputed = recomputed
        return kept_by(model, clip, leaves)

    assert really(5, 0) - really(3, 0) == pytest.approx(2 * found, rel=0.02)
    assert really(5, ONE_STAGE) - really(3, ONE_STAGE) == pytest.approx(2 * again.kept, rel=0.02)
    assert again.kept < again.peak < 0.8 * found
    flops = training_flops(network, clip, 40, ("video", "audio"))
    stem = 2 * 3 * 49 * network.stem_middle * clip.frames * 16 * 16  # the first convolution, forward
    assert 3 * stem < flops["video"] < 3 * 40 * stem and 0 < flops["audio"] < flops["video"]
    assert 0 < available_memory(CPU) < 2**50


@pytest.mark.parametrize(
    ("line", "root", "files"),
    [
        ("0::/job/step", "", ("max", "current")),
        ("4:cpu,memory:/job/step", "memory", ("limit_in_bytes", "usage_in_bytes")),
    ],
)
def test_memory_limits_of_all_parent_cgroups_count(
    line: str, root: str, files: tuple[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "cgroup"
    own.write_text(f"9:name=systemd:/\n{line}\n")
    assert fitting._cgroup_memory(tmp_path, own) == float("inf")  # no limit
    for group, limit, used in (("job/step", "max", 10), ("job", "100", 90), ("", "1000", 500)):
        folder = tmp_path / root / group
        folder.mkdir(parents=True, exist_ok=True)
        values = (limit, str(used), "active_file 1\ninactive_file 1\ntotal_active_file 20\ntotal_inactive_file 30")
        for name, value in zip((*files, "stat"), values, strict=True):
            (folder / f"memory.{name}").write_text(value + "\n")
    assert fitting._cgroup_memory(tmp_path, own) == 100 - 90 + 20 + 30
    assert fitting._cgroup_memory(tmp_path, tmp_path / "none") == float("inf")


@pytest.mark.parametrize("channels_last", [True, False])
def test_convolutions_get_the_chosen_layout(channels_last: bool) -> None:
    """Also for channels-last clips, as in the loader's batches."""
    model = GDT(replace(TINY.network, stem=4, stem_middle=4, widths=(4, 8)), ("video",))
    Kernels(torch.float32, channels_last).apply(model)
    seen = []
    for module in model.modules():
        if isinstance(module, torch.nn.Conv3d) and module.kernel_size != (1, 1, 1):
            module.register_forward_hook(lambda module, given, made: seen.extend([given[0], made]))
    model.embed("video", torch.randn(4, 8, 16, 16, 3).permute(0, 4, 1, 2, 3))
    assert seen[0].is_contiguous() != channels_last
    # with channels last, a CPU's convolutions choose their output layout themselves
    assert channels_last or all(x.is_contiguous() for x in seen)


@pytest.mark.parametrize("rejected", [False, True])
def test_a_budget_is_planned_only_for_compiled_kernels(monkeypatch: pytest.MonkeyPatch, rejected: bool) -> None:
    """Kernels that need more memory, since they are not compiled or not bfloat16, are planned and tried again."""
    tried: list[list[Kernels]] = []

    def trial(candidates: list[Kernels], *rest: object) -> Kernels:
        tried.append(candidates)
        return next(each for each in candidates if not (rejected and each.precision == torch.bfloat16))

    monkeypatch.setattr(fitting, "choose_kernels", trial)
    monkeypatch.setattr(fitting, "available_memory", lambda device: 0.0508 * GIB)
    said: list[str] = []
    settings = replace(SMALL, preset="e", batch_size=32, precision="bfloat16", compile="on")
    plan = plan_run(settings, settings.composition, 40, None, CPU, 1, said.append, trial=True)
    first, *again = tried
    assert first[0] == Kernels(torch.bfloat16, compiled=True, budget=BUDGET) and first[1] == Kernels(torch.bfloat16)
    assert plan.fit.fits and plan.fit.budget != rejected
    if not rejected:
        assert plan.kernels == first[0] and not again and plan.fit.bn_group_size == 0
        return
    assert plan.kernels == Kernels(torch.float32) and again == [first[3:]] and 0 < plan.fit.bn_group_size < 32
    assert said == ["planning again for float32, channels last, which needs more memory"]


def test_a_trial_out_of_memory_leads_to_smaller_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def trial(candidates: list[Kernels], what: Trial, *rest: object) -> Kernels:
        tried.append(what.leaves)
        if what.leaves > 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return candidates[0]

    monkeypatch.setattr(fitting, "choose_kernels", trial)
    monkeypatch.setattr(fitting, "available_memory", lambda device: 0.4 * GIB)
    said: list[str] = []
    settings = replace(SMALL, preset="e", batch_size=128)
    plan = plan_run(settings, settings.composition, 40, None, CPU, 1, said.append, trial=True)
    assert tried == sorted(tried, reverse=True) and tried[-1] <= 8 < tried[-2]
    assert plan.settings.bn_group_size == plan.fit.bn_group_size <= 8
    assert all(line.startswith("out of memory with batch norm over") for line in said) and len(said) == len(tried) - 1
    # groups in the settings are kept in any case
    plan = plan_run(
        replace(settings, bn_group_size=16), settings.composition, 40, None, CPU, 1, said.append, trial=True
    )
    assert plan.settings.bn_group_size == 16


def test_a_resumed_run_keeps_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = replace(SMALL, bn_group_size=2)
    for memory_there in (0.001 * GIB, 100 * GIB):
        monkeypatch.setattr(fitting, "available_memory", lambda device, there=memory_there: there)
        plan = plan_run(SMALL, SMALL.composition, 40, begun, CPU, 1, print, trial=False)
        assert plan.settings.bn_group_size == 2 and (plan.fit.micro_batch_size > 0) == (memory_there < GIB)
    plan_run(SMALL, SMALL.composition, 40, begun, CPU, 8, print, trial=False)  # each of 4 leaves has 2 groups
    with pytest.raises(UserError, match=r"4 videos .* groups of --bn-group-size 2 for 16 GPUs; use 1, 2, 4 or 8 GPUs"):
        plan_run(SMALL, SMALL.composition, 40, begun, CPU, 16, print, trial=False)


def test_all_ranks_try_less_if_one_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from a rank with enough memory; the reduction returns the value of the other."""
    tried: list[int] = []
    said: list[float] = []

    def trial(candidates: Any, what: Trial, *others: Any) -> Any:
        tried.append(what.leaves)
        return candidates[0]

    def least(value: float, device: torch.device) -> float:
        said.append(value)
        return -math.inf if len(said) == 2 else value  # the other rank's first trial was out of memory

    monkeypatch.setattr(fitting, "choose_kernels", trial)
    monkeypatch.setattr(fitting, "_min_over_ranks", least)
    monkeypatch.setattr(fitting, "available_memory", lambda device: 0.1 * GIB)
    settings = replace(SMALL, preset="e", batch_size=128)
    plan = plan_run(settings, settings.composition, 40, None, CPU, 1, print, trial=True)
    assert len(tried) == 2 and len(said) == 4  # two reductions per trial, as on the other rank
    assert said[2] == pytest.approx(0.75 * said[0]) and plan.fit.needed < 0.85 * said[2]


class _Held(torch.autograd.Function):
    """Identity whose graph holds a token, to tell how long the graph lives."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, alive: weakref.WeakSet[Any]) -> torch.Tensor:
        ctx.token = _Token()
        ctx.token.leaves = len(x)
        alive.add(ctx.token)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Token:
    leaves: int


@contextlib.contextmanager
def scarce(model: GDT, most: int, forward: bool) -> Iterator[list[int]]:
    """Raise out of memory in a forward or backward pass with more than `most` leaves in live graphs; 0 for no limit.

    Yields the numbers of leaves in live graphs, pass by pass.
    """
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    held: list[int] = []
    embed, backward = model.embed, torch.Tensor.backward

    def require(leaves: int) -> None:
        if most and leaves > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def embedded(modality: str, inputs: object, keys: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return embed(modality, inputs, keys)
        if forward:
            require(sum(token.leaves for token in alive) + len(keys))
        made = _Held.apply(embed(modality, inputs, keys), alive)
        held.append(sum(token.leaves for token in alive))
        return made

    def taken_back(tensor: torch.Tensor, *arguments: object) -> None:
        if arguments and not forward:  # not the backward pass of the loss
            require(sum(token.leaves for token in alive))
        backward(tensor, *arguments)

    model.embed, torch.Tensor.backward = embedded, taken_back
    try:
        yield held
    finally:
        torch.Tensor.backward = backward


def curve(
    shards: Path, bn_group_size: int = 0, micro_batch_size: int = 0, most: int = 0, forward: bool = True,
    kernels: Kernels | None = None,
) -> tuple[torch.Tensor, Learner, list[int]]:  # fmt: skip
    """Losses of a few steps with `scarce` memory, the learner, and the numbers of leaves held."""
    settings: Pretrain = replace(
        SMALL, shards=shards, bn_group_size=bn_group_size, micro_batch_size=micro_batch_size,
        clip=replace(SMALL.clip, frames=4, size=16), augmentation=replace(SMALL.augmentation, scale=(20, 28)),
    )  # fmt: skip
    index = Index.open(shards)
    tree = settings.tree(index)
    learner = Learner(settings, tree, DATA, CPU, kernels=kernels)
    learner.model.double()  # in float32, rounding differences grow within a few steps
    plans = (take_rank(plan, 0, 1, bn_group_size) for plan in tree.plans(0, 3))
    losses = []
    with scarce(learner.model, most, forward) as held, Loader(index, plans, settings.clip, CPU) as loader:
        for step, batch in enumerate(loader):
            batch.inputs["audio"] = batch.inputs["audio"].double()
            losses.append(learner.step(step, batch).loss)
    return torch.stack(losses), learner, held


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn"), videos=6)[0]


@pytest.mark.parametrize(("forward", "micro_batch_size"), [(True, 0), (False, 0), (False, 8)])
def test_out_of_memory_halves_the_micro_batches_with_the_same_results(
    shards: Path, capsys: pytest.CaptureFixture[str], forward: bool, micro_batch_size: int
) -> None:
    plain, one, _ = curve(shards, bn_group_size=4)  # 16 leaves of each modality
    assert "out of memory" not in capsys.readouterr().out
    halved, other, held = curve(shards, 4, micro_batch_size, most=5, forward=forward)
    said = capsys.readouterr().out
    assert other.gradient.micro_batch_size == 4
    for before, after in ((16, 8), (8, 4))[micro_batch_size > 0 :]:
        words = f"out of memory with micro-batches of {before} leaves; now --micro-batch-size {after}, which does not"
        assert words in said
    assert torch.allclose(plain, halved, atol=1e-9)
    state, same = one.model.state_dict(), other.model.state_dict()
    assert all(torch.allclose(state[name], same[name], atol=1e-9) for name in state)
    assert held[-8:] == [4] * 8  # graphs of failed passes are freed


def test_out_of_memory_is_raised_if_nothing_smaller_is_possible(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(torch.OutOfMemoryError):  # even one group does not fit
        curve(shards, bn_group_size=4, most=3)
    capsys.readouterr()
    with pytest.raises(torch.OutOfMemoryError):  # the whole batch cannot be split: more is recomputed, then it fails
        curve(shards, most=3)
    assert "now recomputing activations of the first stages" in capsys.readouterr().out


def test_a_memory_budget_keeps_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the split into forward and backward passes that torch.compile makes, without its machine code."""
    lookup = torch._dynamo.lookup_backend
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lookup("aot_eager_decomp_partition"))
    network, clip = replace(TINY.network, widths=(16, 32), depth=2), TINY.clip
    for recomputed in (0, ONE_STAGE):
        model = GDT(network, ("video",)).train()
        model.video_network.base.recomputed = recomputed
        Kernels(torch.float32, compiled=True, budget=BUDGET).apply(model)
        counted = memory(network, clip, 40, ("video",), torch.float32, recomputed, True)["video"].kept
        assert kept_by(model, clip, 5) - kept_by(model, clip, 3) == pytest.approx(2 * counted, rel=0.02)


@pytest.mark.slow  # compiles C++ for a minute or two
def test_a_compiled_network_learns_the_same(shards: Path) -> None:
    losses = [curve(shards, kernels=Kernels(torch.float32, compiled=compiled))[0] for compiled in (False, True)]
    assert torch.allclose(losses[0], losses[1], atol=1e-4)
