"""How to compute a network: precision, memory layout, compilation and padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gdt.common.errors import UserError
from gdt.common.gpu import compiler_problem
from gdt.train.models.gdt import GDT
from gdt.train.padding import Shapes, pad_widths

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
BUDGET = 0.75
"""Memory budget with which torch.compile keeps the outputs of convolutions and recomputes the layers in between, as
`cost.memory` assumes."""
Precision = Literal["auto", "float32", "bfloat16", "float64"]


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Replace `auto` by the precision for a device."""
    if precision != "auto":
        return precision
    return "bfloat16" if device.type == "cuda" else "float32"


@dataclass(frozen=True)
class Kernels:
    """How to compute a network; all ways give the same results up to rounding."""

    precision: torch.dtype
    channels_last: bool = True
    """Memory layout of weights and activations."""
    compiled: bool = False
    """torch.compile for the video trunk; it fuses the operations between convolutions."""
    budget: float = 1.0
    """Share of the activations that the compiled trunk may keep: torch's activation_memory_budget."""
    padded: bool = False
    """Pad inner widths of convolutions with zero channels to multiples of 8, as tensor cores need."""

    def __str__(self) -> str:
        return ", ".join(
            [str(self.precision).removeprefix("torch."), "channels last" if self.channels_last else "channels first"]
            + ["compiled"] * self.compiled
            + [f"memory budget {self.budget}"] * (self.budget < 1)
            + ["padded"] * self.padded
        )

    def apply(self, model: GDT) -> Shapes:
        """Set layout, compilation and padding, without changing the state dict; returns the result of `pad_widths`.

        Raises UserError if code cannot be compiled for the GPU.
        """
        shapes = pad_widths(model) if self.padded else {}
        if self.precision == torch.float64:
            model.double()
        for module in model.modules():
            if isinstance(module, nn.Conv3d) and self.channels_last:
                module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        if not self.channels_last and "video" in model.modalities:
            # the loader's batches are channels last, and convolutions follow the layout of their input
            model.video_network.base.register_forward_pre_hook(_make_contiguous)
        if self.compiled and "video" in model.modalities:
            if next(model.parameters()).device.type == "cuda" and (problem := compiler_problem()):
                raise UserError(problem)
            model.video_network.base.compile(dynamic=False, backend=_inductor_with_budget(self.budget))
        return shapes


@cache  # torch compiles again for a new function
def _inductor_with_budget(budget: float) -> Callable[..., Any]:
    """torch.compile's default backend with a memory budget, set while it splits a graph into passes."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return torch._dynamo.lookup_backend("inductor")(graph, inputs)

    return compile_graph


def _make_contiguous(trunk: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def candidate_kernels(precision: torch.dtype, compiled: bool, padded: bool = False) -> list[Kernels]:
    """Kernels to try, from the fastest to the safest; `padded`: also with padded widths, if channels last."""
    found = [Kernels(precision), Kernels(precision, channels_last=False)]
    if compiled:
        found.insert(0, Kernels(precision, compiled=True))
    if padded and precision == torch.bfloat16:
        found = [one for kernels in found for one in (replace(kernels, padded=True), kernels) if one.channels_last]
        found.append(Kernels(precision, channels_last=False))
    return [*found, Kernels(torch.float32), Kernels(torch.float32, False)] if precision == torch.bfloat16 else found
