"""Other ways to compute the convolutions of a model, with the same results, and the speed of each convolution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from benchmarks.gpu.device import cudnn_settings, on_gpu, seconds
from benchmarks.gpu.settings import PREDICTED, Size
from benchmarks.gpu.table import Row, Values
from gdt.common.errors import UserError
from gdt.train.models.gdt import GDT
from gdt.train.padding import pad_widths

TOLERANCE = 0.02
"""Relative difference of a result in bfloat16 from float32; rounding gives 0.002 to 0.004."""
WRONG = "WRONG"
"""Begins the sentence of a row whose results are wrong."""


def fold_convolutions(model: GDT) -> None:
    """Compute convolutions over space on n·t images, and those over time on images of t rows and h·w columns.

    With channels last neither moves anything in memory. Pointwise convolutions of shortcuts are left alone: they are
    not factorised, and as strided 2-D convolutions they make torch 2.13 write out of bounds on a CPU.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv3d and (child.kernel_size[0] > 1) != (child.kernel_size[1] > 1):
                shape: dict[str, Any] = {name: getattr(child, name) for name in ("kernel_size", "stride", "padding")}
                folded = _Folded(child.in_channels, child.out_channels, **shape, bias=False, device="meta")
                folded.weight = child.weight
                setattr(parent, name, folded)


class _Folded(nn.Conv3d):
    """A convolution over space alone or time alone."""

    def forward(self, x: Tensor) -> Tensor:
        (by_t, *by), (pad_t, *pad) = self.stride, map(int, self.padding)
        if self.kernel_size[0] > 1:
            rows = functional.conv2d(x.flatten(3), self.weight[..., 0], None, (by_t, 1), (pad_t, 0))
            return rows.unflatten(3, x.shape[3:])
        frames = functional.conv2d(x.transpose(1, 2).flatten(0, 1), self.weight[:, :, 0], None, by, pad)
        return frames.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


WAYS: dict[str, Callable[[GDT], object]] = {"plain": lambda model: None, "folded": fold_convolutions,
                                            "padded": pad_widths}  # fmt: skip
Ways = Mapping[str, tuple[nn.Conv3d, torch.Size]]
"""For each of `WAYS`, the convolution on the meta device and the shape of its input."""


def trunk_convolutions(size: Size) -> dict[str, list[Ways]]:
    """The convolutions of the video trunk, by their shapes; without a way that does not change them."""
    found: dict[str, dict[str, tuple[nn.Conv3d, torch.Size]]] = defaultdict(dict)

    def keep(name: str, way: str, conv: nn.Conv3d, shape: torch.Size) -> None:
        own = found[name]
        if not own or (type(conv), conv.weight.shape) != (type(own["plain"][0]), own["plain"][0].weight.shape):
            own[way] = conv, shape

    for way, change in WAYS.items():
        with torch.device("meta"):
            model = GDT(size.network, ("video",))
        change(model)
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv3d):
                module.register_forward_hook(
                    lambda conv, given, made, name=name, way=way: keep(name, way, conv, given[0].shape)
                )
        clip = size.clip
        model.video_network(torch.empty(1, 3, clip.frames, clip.size, clip.size, device="meta"))
    by_shape: dict[str, list[Ways]] = defaultdict(list)
    for ways in found.values():
        by_shape[_name(*ways["plain"])].append(ways)
    return by_shape


def _name(conv: nn.Conv3d, shape: torch.Size) -> str:
    kernel, stride, of = ("x".join(map(str, sizes)) for sizes in (conv.kernel_size, conv.stride, shape[2:]))
    by = f" by {stride}" * (prod(conv.stride) > 1)
    return f"{kernel}{by}, {conv.in_channels} to {conv.out_channels}, of {of}"


def measure(ways: Ways, times: int, size: Size, device: torch.device) -> Values:
    """TFLOP/s of forward, dgrad and wgrad in bfloat16, ms of all three, and the largest difference from float32.

    Padding does not count as work. The stem needs no dgrad.
    """
    conv, shape = ways["plain"]
    torch.manual_seed(0)
    x = random_channels_last(device, size.leaves_of_ideas, *shape[1:])
    w = random_channels_last(device, *conv.weight.shape) * prod(conv.weight.shape[1:]) ** -0.5
    g = random_channels_last(device, *functional_call(conv, {"weight": w.to("meta")}, (x.to("meta"),)).shape)
    work = 2 * g.numel() * prod(w.shape[1:])
    with cudnn_settings(benchmark=False, exact=True):
        right = {name: run() for name, run in _passes(conv, x.float(), w.float(), g.float()).items()}
    values: dict[str, float | str] = {"times": times}
    off: dict[str, float] = {}
    for way, (other, _) in ways.items():
        outputs, inputs = other.weight.shape[:2]
        given = _pad(x, 1, inputs), _pad(_pad(w, 0, outputs), 1, inputs), _pad(g, 1, outputs)
        taken = []
        with cudnn_settings(benchmark=True):
            for name, run in _passes(other, *given).items():
                found = run()[tuple(map(slice, right[name].shape))]
                off[f"{way} {name}"] = difference(found, right[name])
                taken.append(seconds(run, size.steps, device))
        values |= {way: "/".join(f"{work / one / 1e12:.3g}" for one in taken), f"{way} ms": 1000 * sum(taken)}
    values["off"] = max(off.values())
    wrong = [f"{name} by {value:.2g}" for name, value in off.items() if not value < TOLERANCE]
    return values | ({"is": f"{WRONG}: {', '.join(wrong)}"} if wrong else {})


def _passes(conv: nn.Conv3d, x: Tensor, w: Tensor, g: Tensor) -> dict[str, Callable[[], Tensor]]:
    x, w = x.detach().requires_grad_(conv.in_channels > 3), w.detach().requires_grad_()
    y = functional_call(conv, {"weight": w}, (x,))
    passes = {
        "forward": lambda: functional_call(conv, {"weight": w.detach()}, (x.detach(),)),
        "dgrad": lambda: torch.autograd.grad(y, x, g, retain_graph=True)[0],
        "wgrad": lambda: torch.autograd.grad(y, w, g, retain_graph=True)[0],
    }
    return {name: run for name, run in passes.items() if name != "dgrad" or x.requires_grad}


def difference(found: Tensor, right: Tensor) -> float:
    """Norm of the difference, relative to that of `right`."""
    return float((found.float() - right.float()).norm() / right.float().norm())


def random_channels_last(device: torch.device, n: int, channels: int, *rest: int) -> Tensor:
    """[n, channels, ...], channels last; float32 on a CPU, where some gradients are wrong in bfloat16."""
    dtype = torch.bfloat16 if on_gpu(device) else torch.float32
    return torch.randn(n, *rest, channels, device=device, dtype=dtype).movedim(-1, 1)


def _pad(x: Tensor, dim: int, length: int) -> Tensor:
    """Pad a dimension to a length, with zeros at its end."""
    if x.shape[dim] == length:
        return x
    larger = x.new_zeros(*x.shape[:dim], length, *x.shape[dim + 1 :]).contiguous(memory_format=torch.channels_last_3d)
    larger.narrow(dim, 0, x.shape[dim]).copy_(x)
    return larger


def total(rows: Sequence[Row], leaves: int) -> Values:
    """Sums over the convolutions of the trunk that were measured."""
    measured = [row.values for row in rows if "plain ms" in row.values]
    if not measured:
        raise UserError("no convolution was measured")
    times = [float(values["times"]) for values in measured]
    each = [{way: float(values.get(f"{way} ms", values["plain ms"])) for way in WAYS} for values in measured]
    values: dict[str, float | str] = {"times": sum(times)}
    values |= {f"{way} ms": sum(n * one[way] for n, one in zip(times, each, strict=True)) for way in WAYS}
    best = sum(n * min(one.values()) for n, one in zip(times, each, strict=True))
    per_clip = f"{float(values['plain ms']) / leaves:.3g} ms per clip, {best / leaves:.3g} with the fastest of each"
    return values | {
        "off": max(float(one["off"]) for one in measured),
        "is": f"{per_clip}; {PREDICTED['convolutions']}",
    }
