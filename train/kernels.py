"""Which kernels a GPU computes with, and a check that they are right before a run relies on them.

bfloat16 convolutions over time and space have been wrong in silence (cuDNN 9.10, pytorch#163539) and many times slower
than float32 (torch 2.9, pytorch#166122), so the network is compared with itself in float32, at the run's own shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gdt.common.errors import first_line, is_out_of_memory
from gdt.pipeline.leaves import Clip
from gdt.train.metrics import mark
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Network

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TOLERANCE = 0.1
"""Of a trunk's features, relative to float32; rounding to bfloat16 alone makes 0.01 to 0.03 of it."""


Precision = Literal["auto", "float32", "bfloat16", "float64"]


def precision(asked: Precision, device: torch.device) -> Precision:
    """What `auto` comes to on a device."""
    if asked == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    return asked


@dataclass(frozen=True)
class Kernels:
    """A way to compute the same network."""

    precision: torch.dtype
    channels_last: bool = True
    """Whether the channels of a pixel lie side by side in memory, as they do in the loader's batches."""
    compiled: bool = False
    """Whether torch.compile fuses what lies between the convolutions of the video trunk."""

    def __str__(self) -> str:
        return ", ".join(
            [str(self.precision).removeprefix("torch."), "channels last" if self.channels_last else "channels first"]
            + ["compiled"] * self.compiled
        )

    def apply(self, model: GDT) -> None:
        """Lay out and compile the networks; names and values of their parameters stay."""
        if self.precision == torch.float64:
            model.double()
        for module in model.modules():
            if isinstance(module, nn.Conv3d) and self.channels_last:
                module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        if not self.channels_last and "video" in model.modalities:
            # a convolution goes by the layout of its input, too, and that of the loader's batches is channels last
            model.video_network.base.register_forward_pre_hook(_contiguous)
        if self.compiled and "video" in model.modalities:
            # what changes between epochs, such as the mode, is compiled once each; shapes stay
            model.video_network.base.compile(dynamic=False)


def _contiguous(trunk: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def ways(precision: torch.dtype, compiled: bool) -> list[Kernels]:
    """From the fastest to the safest."""
    found = [Kernels(precision), Kernels(precision, channels_last=False)]
    if compiled:
        found.insert(0, Kernels(precision, compiled=True))
    return [*found, Kernels(torch.float32), Kernels(torch.float32, False)] if precision == torch.bfloat16 else found


def first_right(
    candidates: list[Kernels], network: Network, clip: Clip, leaves: int, recomputed: int, device: torch.device,
    say: Callable[[str], None],
) -> Kernels:  # fmt: skip
    """The first of some ways that gives a video trunk's features within TOLERANCE of float32, and is not slower.

    Forward and backward over so many leaves; what is wrong with the ways before it is said. A lack of memory is raised.
    """
    torch.manual_seed(0)
    with torch.device(device):
        batch = torch.randn(leaves, clip.frames, clip.size, clip.size, 3).permute(0, 4, 1, 2, 3)
        # pictures are smooth; what averages out would hide an error
        batch += torch.randn(leaves, 3, 1, 1, 1)
        model = GDT(network, ("video",)).train()
    model.video_network.base.recomputed = recomputed
    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected, slowest = _measured(model, Kernels(torch.float32), batch, backward=False)
    for kernels in candidates:
        fresh = GDT(network, ("video",)).to(device).train()
        fresh.load_state_dict(state)
        fresh.video_network.base.recomputed = recomputed
        why, off = "", 0.0
        try:
            kernels.apply(fresh)
            features, seconds = _measured(fresh, kernels, batch)
            off = float((features - expected).norm() / expected.norm())
            if not off < TOLERANCE:  # also where it is not a number
                why = f"its features differ from float32 by {off:.2g} of their length"
            elif kernels.precision == torch.bfloat16 and seconds > slowest:
                why = f"it takes {seconds / slowest:.1f} times as long as float32"
        except Exception as error:  # whatever compilers and libraries raise
            if is_out_of_memory(error):
                raise
            why = first_line(error)
        if not why:
            say(f"computing in {kernels}; cuDNN {_cudnn()}, features within {off:.2g} of float32")
            return kernels
        say(f"warning: not computing in {kernels}: {why} (torch {torch.__version__}, cuDNN {_cudnn()})")
    return candidates[-1]


def _measured(model: GDT, kernels: Kernels, batch: Tensor, backward: bool = True) -> tuple[Tensor, float]:
    """Features of a batch in float32, and the seconds that a forward pass takes; a backward pass has to succeed."""
    trunk = model.video_network
    inputs = batch.to(kernels.precision)
    with torch.autocast(batch.device.type, kernels.precision, enabled=kernels.precision == torch.bfloat16):
        if backward:
            trunk(inputs).float().square().mean().backward()
        with torch.no_grad():
            trunk(inputs)  # warm
            began = mark(batch.device)
            features = trunk(inputs)
            done = mark(batch.device)
    done.synchronize()
    return features.float(), began.elapsed_time(done) / 1000


def _cudnn() -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version or "not there")
