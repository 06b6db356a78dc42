"""Choose a GPU's kernels, and check their results before a run uses them.

bfloat16 3D convolutions have returned wrong results (cuDNN 9.10, pytorch#163539) and have been many times slower than
float32 (torch 2.9, pytorch#166122), so the network is compared with itself in float32, at the shapes of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gdt.common.errors import UserError, first_line, is_out_of_memory
from gdt.common.gpu import lacks_for_compiling
from gdt.pipeline.leaves import Clip
from gdt.train.metrics import mark
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Network
from gdt.train.padding import Shapes, pad_widths

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TOLERANCE = 0.1
"""Largest relative difference of a trunk's features from float32; rounding to bfloat16 alone gives 0.01 to 0.03."""
Precision = Literal["auto", "float32", "bfloat16", "float64"]


def resolve_precision(asked: Precision, device: torch.device) -> Precision:
    """The precision that `auto` stands for on a device."""
    return asked if asked != "auto" else "bfloat16" if device.type == "cuda" else "float32"


@dataclass(frozen=True)
class Kernels:
    """A way to compute the same network."""

    precision: torch.dtype
    channels_last: bool = True
    """Memory layout; the loader's batches are channels last."""
    compiled: bool = False
    """torch.compile for the video trunk, which fuses the operations between convolutions."""
    padded: bool = False
    """Zero channels bring inner widths of convolutions to multiples of 8, as tensor cores need."""

    def __str__(self) -> str:
        return ", ".join(
            [str(self.precision).removeprefix("torch."), "channels last" if self.channels_last else "channels first"]
            + ["compiled"] * self.compiled
            + ["padded"] * self.padded
        )

    def apply(self, model: GDT) -> Shapes:
        """Set layout, compilation and padding, which do not change the state dict; returns what `pad_widths` does.

        Raises UserError where a GPU's code cannot be compiled.
        """
        shapes = pad_widths(model) if self.padded else {}
        if self.precision == torch.float64:
            model.double()
        for module in model.modules():
            if isinstance(module, nn.Conv3d) and self.channels_last:
                module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        if not self.channels_last and "video" in model.modalities:
            # convolutions also follow the layout of their input, and the loader's batches are channels last
            model.video_network.base.register_forward_pre_hook(_contiguous)
        if self.compiled and "video" in model.modalities:
            if next(model.parameters()).device.type == "cuda" and (lacks := lacks_for_compiling()):
                raise UserError(lacks)
            model.video_network.base.compile(dynamic=False)
        return shapes


def _contiguous(trunk: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def candidate_kernels(precision: torch.dtype, compiled: bool) -> list[Kernels]:
    """Kernels to try, from the fastest to the safest."""
    found = [Kernels(precision), Kernels(precision, channels_last=False)]
    if compiled:
        found.insert(0, Kernels(precision, compiled=True))
    return [*found, Kernels(torch.float32), Kernels(torch.float32, False)] if precision == torch.bfloat16 else found


def choose_kernels(
    candidates: list[Kernels], network: Network, clip: Clip, leaves: int, recomputed: int, device: torch.device,
    say: Callable[[str], None],
) -> Kernels:  # fmt: skip
    """The first candidate whose features match float32 within TOLERANCE and which is not slower than float32.

    Each runs a forward and a backward pass over `leaves` clips; `say` gets the reasons for rejections. Raises when out
    of memory.
    """
    torch.manual_seed(0)
    with torch.device(device):
        batch = torch.randn(leaves, clip.frames, clip.size, clip.size, 3).permute(0, 4, 1, 2, 3)
        # frames are smooth, and noise alone would average out errors
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
            if not off < TOLERANCE:  # true for NaN, too
                why = f"its features differ from float32 by {off:.2g} of their norm"
            elif kernels.precision == torch.bfloat16 and seconds > slowest:
                why = f"it takes {seconds / slowest:.1f} times as long as float32"
        except Exception as error:  # compilers and libraries raise anything
            if is_out_of_memory(error):
                raise
            why = first_line(error)
        if not why:
            say(f"computing in {kernels}; cuDNN {_cudnn()}, features within {off:.2g} of float32")
            return kernels
        say(f"warning: not computing in {kernels}: {why} (torch {torch.__version__}, cuDNN {_cudnn()})")
    return candidates[-1]


def _measured(model: GDT, kernels: Kernels, batch: Tensor, backward: bool = True) -> tuple[Tensor, float]:
    """Features of a batch in float32, and seconds of a forward pass; `backward` tries a backward pass first."""
    trunk = model.video_network
    inputs = batch.to(kernels.precision)
    with torch.autocast(batch.device.type, kernels.precision, enabled=kernels.precision == torch.bfloat16):
        if backward:
            trunk(inputs).float().square().mean().backward()
        with torch.no_grad():
            trunk(inputs)  # warm-up
            began = mark(batch.device)
            features = trunk(inputs)
            done = mark(batch.device)
    done.synchronize()
    return features.float(), began.elapsed_time(done) / 1000


def _cudnn() -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version or "not available")
