"""What training takes: FLOPs, for MFU and comparisons at equal compute, and the largest activation."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gdt.pipeline.composition import Composition
from gdt.pipeline.leaves import Clip
from gdt.train.models.gdt import GDT
from gdt.train.models.own import input_shape

T = TypeVar("T")
_MAX_ELEMENTS = 2**31 - 1
"""Elements that 32-bit indices can address. For larger tensors, cuDNN has few kernels, one of them wrong
(pytorch#163539)."""
_PEAKS = {"B200": 2250.0, "H200": 989.0, "H100": 989.0, "H100 NVL": 835.0, "H100 PCIe": 756.0, "A100": 312.0}
_PEAKS |= {"L40S": 362.0, "L40": 181.0, "L4": 121.0, "A10G": 70.0, "A6000": 155.0, "4090": 165.0, "V100": 125.0}
"""Dense TFLOP/s from data sheets in bfloat16 (float16 on GPUs without it), by part of the device's name."""


def step_flops(model: GDT, composition: Composition, clip: Clip) -> float:
    """FLOPs of the networks in a step over all ranks, forward and backward; a second forward pass does not count."""
    leaves = composition.batch_size * composition.clips_per_video
    return leaves * sum(training_flops(model, clip).values())


def training_flops(model: GDT, clip: Clip) -> dict[str, float]:
    """FLOPs of a leaf of each modality, forward and backward; 0 if those of a network cannot be counted."""

    def count(copied: GDT) -> dict[str, float]:
        flops: dict[str, float] = {}
        for modality in copied.modalities:
            with FlopCounterMode(display=False) as counter:
                copied.embed(modality, _inputs(copied, modality, clip, 4)).sum().backward()
            flops[modality] = counter.get_total_flops() / 4
        return flops

    flops = _of_copy(model, count, dict.fromkeys(model.modalities, 0.0))
    return flops if all(flops.values()) else dict.fromkeys(flops, 0.0)


def max_leaves(model: GDT, clip: Clip) -> int:
    """Maximum leaves of a pass of the video network, so that no activation has 2**31 elements or more.

    Channels are rounded up to multiples of 8, since kernels may pad them.
    """

    def largest(copied: GDT) -> int:
        elements = [1]

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            tensors = [x for x in (*inputs, output) if isinstance(x, Tensor) and x.dim() > 1 and x.numel()]
            # of a leaf; networks of the user's own may fold time into the first dimension
            elements.extend(-(-x.shape[0] // 2) * -(-x.shape[1] // 8) * 8 * x[0, 0].numel() for x in tensors)

        for module in copied.video_network.base.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                module.register_forward_hook(note)
        copied.video_network(_inputs(copied, "video", clip, 2))
        return max(elements)

    return _MAX_ELEMENTS // _of_copy(model, largest, 1)


def peak_flops(device: torch.device) -> float | None:
    """Peak bfloat16 FLOP/s of a device, from its data sheet; None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    longest_first = sorted(_PEAKS, key=len, reverse=True)  # "L4" is also part of "L40"
    return next((1e12 * _PEAKS[part] for part in longest_first if part in name), None)


def _of_copy(model: GDT, measure: Callable[[GDT], T], unknown: T) -> T:
    """What a copy tells, in evaluation mode, in which batch norms do not wait for other ranks.

    It has no values, which takes no time; networks of the user's own that need values get them. `unknown` if these
    cannot be measured either way.
    """
    devices = ("meta", "cpu") if model.network.own else ("meta",)
    with torch.random.fork_rng(()), torch.compiler.set_stance("force_eager"), _counted_kernels():
        for device in devices:
            try:
                return measure(copy.deepcopy(model).to(device).float().eval())
            except Exception:  # networks of the user's own may raise anything
                if not model.network.own:
                    raise
    return unknown


@contextmanager
def _counted_kernels() -> Iterator[None]:
    """On a CPU, too, attention and recurrent layers in the operations whose FLOPs torch counts."""
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")  # about the TF32 of GPUs that are not there
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _inputs(model: GDT, modality: str, clip: Clip, n: int) -> Tensor:
    """Zeros in the form of the inputs of a modality, where the model is."""
    device = next(model.parameters()).device
    if modality == "text":
        return torch.zeros(n, clip.words, model.text_network.fc1.in_features, device=device)
    return torch.zeros(n, *input_shape(modality, clip), device=device)
