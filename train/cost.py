"""Cost of a leaf in training: activation memory and FLOPs, counted on torch's meta device.

Meta tensors have shapes but no data, so both can be counted for any size on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from gdt.pipeline.leaves import Clip
from gdt.pipeline.sources.text import Words
from gdt.train.models.backbone import Backbone
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Network
from gdt.train.settings import Pretrain

ONE_STAGE, TWO_STAGES = 2, 3
"""Numbers of parts of the video trunk to recompute: the stem and one stage, or the stem and two stages."""
_MAX_ELEMENTS = 2**31 - 1
"""Elements that 32-bit indices can address. For larger tensors, cuDNN has few kernels, one of them wrong
(pytorch#163539)."""
_PEAKS = {
    "B200": 2250.0, "H200": 989.0, "GH200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0,
    "L40": 181.0, "H100 NVL": 835.0, "L4": 121.0, "A10G": 70.0, "A6000": 155.0, "4090": 165.0, "V100": 125.0,
}  # fmt: skip
"""Dense TFLOP/s from data sheets in bfloat16 (float16 on GPUs without it), by part of the device's name."""
_MFU = 0.21
"""MFU of 450 clips/s of the paper's networks on an H100, the highest prediction."""
_MAX_CLIPS = 4000.0
"""Guessed maximum clips/s of small networks, which are limited by kernel launches."""


class LeafMemory(NamedTuple):
    """Bytes of the activations of a leaf."""

    kept: float
    """Kept from the forward pass for the backward pass."""
    peak: float
    """Peak during the backward pass, including recomputed activations and gradients."""


def memory(
    network: Network, clip: Clip, bands: int, modalities: Sequence[str], dtype: torch.dtype, recomputed: int = 0,
    budget: bool = False,
) -> dict[str, LeafMemory]:  # fmt: skip
    """Memory of a leaf of each modality; `recomputed` as in `Backbone`; `budget`: compiled with `kernels.BUDGET`."""
    model = deepcopy(_meta_model(network, tuple(modalities))).to(dtype)

    def cost(modality: str, inputs: Any) -> LeafMemory:
        return _count_memory(model, modality, inputs, recomputed, budget)

    found = _per_leaf(model, clip, bands, dtype, cost)
    return {name: LeafMemory(*values.tolist()) for name, values in found.items()}


@cache
def max_leaves_per_pass(network: Network, clip: Clip) -> int:
    """Maximum leaves of a pass of the video trunk, so that no activation has more than 2**31 - 1 elements.

    Channels are rounded up to multiples of 8, since kernels may pad them.
    """
    model = _meta_model(network, ("video",))
    elements: list[int] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        elements.extend(-(-x.shape[1] // 8) * 8 * x[0, 0].numel() for x in (*given, made))

    hooks = [module.register_forward_hook(note) for module in model.video_network.base.modules()]
    model.video_network(_inputs(model, "video", clip, 0, torch.float32, 1))
    for hook in hooks:
        hook.remove()
    return _MAX_ELEMENTS // max(elements)


def training_flops(
    network: Network, clip: Clip, bands: int, modalities: Sequence[str], recomputed: int = 0
) -> dict[str, float]:
    """FLOPs of a leaf of each modality: forward, backward, and recomputation."""
    model = deepcopy(_meta_model(network, tuple(modalities)))
    if "video" in modalities:
        model.video_network.base.recomputed = recomputed
    flops = _per_leaf(model, clip, bands, torch.float32, partial(_count_flops, model))
    return {name: float(value) for name, value in flops.items()}


def step_flops(settings: Pretrain, bands: int) -> float:
    """FLOPs of the networks in a step, over all ranks."""
    composition = settings.composition
    leaves = composition.batch_size * composition.clips_per_video
    return leaves * _flops_per_clip(settings.network, settings.clip, bands, composition.modalities)


def predicted_clips(settings: Pretrain, bands: int, device: torch.device) -> float:
    """Predicted clips/s of training on a GPU, with the MFU of an H100."""
    modalities = settings.composition.modalities
    per_second = _MFU * (peak_flops(device) or 1e12 * _PEAKS["H100"])
    return min(_MAX_CLIPS, per_second / _flops_per_clip(settings.network, settings.clip, bands, modalities))


@cache
def _flops_per_clip(network: Network, clip: Clip, bands: int, modalities: tuple[str, ...]) -> float:
    """FLOPs of a leaf of every modality."""
    return sum(training_flops(network, clip, bands, modalities).values())


def parameters(network: Network, modalities: Sequence[str]) -> int:
    """Number of parameters."""
    return sum(weight.numel() for weight in _meta_model(network, tuple(modalities)).parameters())


@cache
def _meta_model(network: Network, modalities: tuple[str, ...]) -> GDT:
    """The model on the meta device, with a stand-in for batch norm."""
    with torch.random.fork_rng(devices=()):
        model = GDT(network, modalities).to("meta")
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = _Scale
    return model


class _Scale(_BatchNorm):
    """Fast stand-in for batch norm on the meta device; keeps the same tensors for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(1, -1, *[1] * (x.dim() - 2))


def peak_flops(device: torch.device) -> float | None:
    """Peak bfloat16 FLOP/s of a device, from its data sheet; None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    longest_first = sorted(_PEAKS, key=len, reverse=True)  # "L4" is also part of "L40"
    return next((1e12 * _PEAKS[part] for part in longest_first if part in name), None)


def _per_leaf(
    model: GDT, clip: Clip, bands: int, dtype: torch.dtype, cost: Callable[[str, Any], int | LeafMemory]
) -> dict[str, np.ndarray]:
    """Cost of one more leaf, by modality; `cost` returns one or several numbers for a modality and its inputs."""
    found = {}
    for modality in model.modalities:
        few, many = (cost(modality, _inputs(model, modality, clip, bands, dtype, n)) for n in (2, 4))
        found[modality] = np.subtract(many, few) / 2
    return found


def _inputs(model: GDT, modality: str, clip: Clip, bands: int, dtype: torch.dtype, n: int) -> Any:
    if modality == "video":
        return torch.empty(n, 3, clip.frames, clip.size, clip.size, device="meta", dtype=dtype)
    if modality == "audio":
        return torch.empty(n, 1, bands, clip.mel_frames, device="meta", dtype=dtype)
    vectors = torch.empty(n, clip.words, model.text_network.fc1.in_features, device="meta", dtype=dtype)
    return Words(vectors, vectors[..., 0] > 0, np.zeros((n, clip.words), np.int64))


@dataclass
class _Block:
    """Bytes in a block of the video trunk."""

    input: int
    inside: int = 0
    """What autograd keeps besides input and output."""
    output: int = 0
    convolutions: list[int] = field(default_factory=list)
    """Outputs of its convolutions."""


def _count_memory(model: GDT, modality: str, inputs: Any, recomputed: int, budget: bool) -> LeafMemory:
    kept: dict[int, int] = {}
    storages = []
    blocks: list[_Block] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter):
            storages.append(storage)  # so that its id is not reused
            kept[id(storage)] = storage.nbytes()
        return tensor

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        keep(given[0])
        blocks.append(_Block(given[0].untyped_storage().nbytes(), -sum(kept.values())))

    def after(module: nn.Module, given: Any, made: Tensor) -> None:
        blocks[-1].output = keep(made).untyped_storage().nbytes()
        blocks[-1].inside += sum(kept.values()) - blocks[-1].output

    def after_convolution(module: nn.Module, given: Any, made: Tensor) -> None:
        blocks[-1].convolutions.append(made.untyped_storage().nbytes())

    trunk = getattr(model.get_submodule(f"{modality}_network"), "base", None)
    parts = trunk.parts() if isinstance(trunk, Backbone) else []
    recomputed_blocks = sum(len(part) for part in parts[:recomputed])
    hooks = []
    for module in (module for part in parts for module in part):
        hooks += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
        convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv3d)]
        hooks += [layer.register_forward_hook(after_convolution) for layer in convolutions]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.embed(modality, inputs)
    for hook in hooks:
        hook.remove()
    rest = sum(kept.values()) - sum(block.input + block.inside for block in blocks)  # after the blocks
    if budget and blocks:
        rest -= blocks[-1].output
    live = sums = peak = 0
    for number, block in enumerate(blocks):
        widest, again = max(block.convolutions, default=0), 0
        if number < recomputed_blocks:
            live, again = live + block.input, block.inside
        elif budget:  # keeps outputs of convolutions, and recomputes their inputs from the residual sums
            live += sum(block.convolutions) + (0 if number else block.input)
            sums += block.input if number else 0
            again = sums + widest
        else:
            live += block.input + block.inside
        # 3 gradients: of a convolution's output and input, and of the residual sum
        peak = max(peak, live + again + 3 * widest)
    return LeafMemory(rest + live, max(peak, rest + live))


def _count_flops(model: GDT, modality: str, inputs: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        model.embed(modality, inputs).sum().backward()
    return counter.get_total_flops()
