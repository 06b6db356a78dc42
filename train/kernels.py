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
"""Budget that keeps the outputs of convolutions and recomputes the layers in between; `cost.memory` counts it."""
Precision = Literal["auto", "float32", "bfloat16", "float64"]


def resolve_precision(asked: Precision, device: torch.device) -> Precision:
    """The precision that `auto` stands for on a device."""
    return asked if asked != "auto" else "bfloat16" if device.type == "cuda" else "float32"


@dataclass(frozen=True)
class Kernels:
    """How to compute a network; all ways give the same results up to rounding."""

    precision: torch.dtype
    channels_last: bool = True
    """Memory layout; the loader's batches are channels last."""
    compiled: bool = False
    """torch.compile for the video trunk, which fuses the operations between convolutions."""
    budget: float = 1.0
    """Share of the activations that the compiled trunk may keep: torch's activation_memory_budget."""
    padded: bool = False
    """Zero channels bring inner widths of convolutions to multiples of 8, as tensor cores need."""

    def __str__(self) -> str:
        return ", ".join(
            [str(self.precision).removeprefix("torch."), "channels last" if self.channels_last else "channels first"]
            + ["compiled"] * self.compiled
            + [f"memory budget {self.budget}"] * (self.budget < 1)
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
            if next(model.parameters()).device.type == "cuda" and (problem := compiler_problem()):
                raise UserError(problem)
            model.video_network.base.compile(dynamic=False, backend=_with_budget(self.budget))
        return shapes


@cache  # with a new function, torch would compile again
def _with_budget(budget: float) -> Callable[..., Any]:
    """torch.compile's default backend with a memory budget, which has to be set when a graph is split into passes."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return torch._dynamo.lookup_backend("inductor")(graph, inputs)

    return compile_graph


def _contiguous(trunk: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def candidate_kernels(precision: torch.dtype, compiled: bool, padded: bool = False) -> list[Kernels]:
    """Kernels to try, from the fastest to the safest; `padded`: those with channels last also with padded widths."""
    found = [Kernels(precision), Kernels(precision, channels_last=False)]
    if compiled:
        found.insert(0, Kernels(precision, compiled=True))
    if padded and precision == torch.bfloat16:
        found = [one for kernels in found for one in (replace(kernels, padded=True), kernels) if one.channels_last]
        found.append(Kernels(precision, channels_last=False))
    return [*found, Kernels(torch.float32), Kernels(torch.float32, False)] if precision == torch.bfloat16 else found
