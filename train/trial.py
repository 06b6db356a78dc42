"""Choose kernels: compute a forward and backward pass of the run with each, and compare the results with float32.

bfloat16 3D convolutions have returned wrong results (cuDNN 9.10, pytorch#163539) and have been many times slower than
float32 (torch 2.9, pytorch#166122).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gdt.common.errors import first_line, is_out_of_memory, plural
from gdt.pipeline.leaves import Clip
from gdt.train.distributed import group_of_one
from gdt.train.kernels import Kernels
from gdt.train.metrics import mark
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Network
from gdt.train.norm import RunningStatistics, allow_masks, synchronise

TOLERANCE = 0.2
"""Largest relative difference from float32, of the features and of the gradient of each convolution.

On a CPU, rounding to bfloat16 gives up to 0.06 and 0.13; wrong kernels of oneDNN give 0.39 to infinity, a wrong sign 2.
"""
_BIAS = 2.0
"""Bias of batch norms in a trial. It keeps most inputs of ReLUs away from 0, where rounding switches gradients on and
off; with a bias of 0, correct gradients in bfloat16 differ from float32 by up to 1.2."""
_MAX_DISTINCT = 8
"""Maximum number of distinct clips. A trial repeats them, so that float32, which needs more memory than the run, can
compute each once: batch norm over whole repetitions gives the same results."""


@dataclass(frozen=True)
class Trial:
    """What a trial computes: the forward passes of the video network whose activations a run holds at once."""

    network: Network
    clip: Clip
    leaves: int
    """Leaves of a forward pass; a trial has at least 2, since batch norm over one leaf has constant features."""
    passes: int = 1
    recomputed: int = 0
    """As in `Backbone`."""
    shared: bool = False
    """Whether the run's batch norm is over all ranks. The trial's is over this rank, or a failing rank would stop the
    others."""
    masked: bool = False
    """Whether batch norm may have a mask."""

    @property
    def masks(self) -> tuple[bool, ...]:
        """Cases to try, without and with a mask: shared passes always have one if `masked`, others only sometimes."""
        return (False, True) if self.masked and not self.shared else (self.masked,)

    @property
    def distinct_counts(self) -> list[int]:
        """Possible numbers of distinct clips, largest first: each divides the number of leaves."""
        few = range(min(_MAX_DISTINCT, self.leaves), 1, -1)
        return [number for number in few if self.leaves % number == 0] or [self.leaves]


class _Result(NamedTuple):
    clips: Tensor
    """The clip of each leaf: int64 [leaves]."""
    features: Tensor
    """float32 [leaves, dim]."""
    gradients: dict[str, Tensor]
    """Of the weights of convolutions. Those of batch norms nearly cancel out and are mostly rounding errors."""
    seconds: float
    """Seconds of forward and backward pass, per leaf."""

    def differences(self, reference: _Result) -> tuple[float, float]:
        """Relative differences from a reference: of the features, and of the gradient that differs most."""
        by_clip = reference.features[reference.clips.argsort()]
        centred = by_clip - by_clip.mean(0)  # the mean is due to the bias of batch norm, not to convolutions
        features = (self.features - by_clip[self.clips]).norm() / centred[self.clips].norm()
        gradients = [
            (self.gradients[name][tuple(map(slice, expected.shape))] - expected).norm() / expected.norm()  # unpadded
            for name, expected in reference.gradients.items()
        ]
        return float(features), float(torch.stack(gradients).max())


def choose_kernels(
    candidates: list[Kernels], trial: Trial, device: torch.device, say: Callable[[str], None]
) -> Kernels:
    """The first candidate with the features and gradients of float32 that is not slower than float32.

    Padded kernels are timed against the next candidate, which is the same without padding. If float32 itself fails,
    returns the last candidate that runs, unchecked. `say` gets the reasons for rejections. Raises when out of memory.
    """
    trial = replace(trial, leaves=max(2, trial.leaves))
    with group_of_one() if trial.shared else nullcontext() as group:
        distinct, reference = _compute_reference(trial, device, group, say)
        accepted: list[tuple[float, Kernels, str, Counter[str]]] = []
        for kernels in candidates if reference else candidates[::-1]:
            before = _count_graph_breaks(kernels)
            try:
                results = [_compute(kernels, trial, distinct, masked, device, group) for masked in trial.masks]
                fault, accuracy = _judge(kernels, results, reference)
            except Exception as error:  # compilers and libraries raise anything
                if is_out_of_memory(error) and not kernels.padded:
                    raise
                fault = first_line(error)
            finally:
                breaks = _count_graph_breaks(kernels) - before
                if kernels.compiled:
                    torch.compiler.reset()  # or graphs of trials would count against the run's recompile limit
            if fault:
                say(f"warning: {kernels} is not used: {fault} (torch {torch.__version__}, cuDNN {_cudnn()})")
            else:
                accepted.append((sum(one.seconds for one in results), kernels, accuracy, breaks))
            if accepted and not (kernels.padded and reference):
                break
    if not accepted:
        return candidates[-1]
    _, kernels, accuracy, breaks = min(accepted, key=lambda one: one[0])
    say(f"computing in {kernels}; cuDNN {_cudnn()}, {accuracy}")
    if breaks:
        parts, first = plural(breaks.total(), "part"), next(iter(breaks)).splitlines()[0]
        say(f"warning: torch.compile leaves {parts} of the video network uncompiled, which makes it slow: {first}")
    return kernels


def _judge(kernels: Kernels, results: list[_Result], reference: list[_Result]) -> tuple[str, str]:
    """What is wrong with kernels, empty if nothing; and their accuracy."""
    if not reference:
        return "", "unchecked"
    pairs = list(zip(results, reference, strict=True))
    features, gradients = torch.tensor([one.differences(other) for one, other in pairs]).amax(0).tolist()  # keeps NaN
    slower = max(one.seconds / other.seconds for one, other in pairs)
    fault = ""
    if not features < TOLERANCE:  # true for NaN, too
        fault = f"its features differ from float32 by {features:.2g} of their norm"
    elif not gradients < TOLERANCE:
        fault = f"the gradient of a convolution differs from float32 by {gradients:.2g} of its norm"
    elif kernels.precision == torch.bfloat16 and slower > 1:
        fault = f"it takes {slower:.1f} times as long as float32"
    return fault, f"relative difference from float32: features {features:.2g}, gradients {gradients:.2g}"


def _compute_reference(
    trial: Trial, device: torch.device, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> tuple[int, list[_Result]]:
    """The number of distinct clips, and float32's result for each of `trial.masks`; no results if it fails."""
    for kernels in (Kernels(torch.float32), Kernels(torch.float32, channels_last=False)):
        for distinct in trial.distinct_counts:
            few = replace(trial, leaves=distinct, passes=1)
            try:
                return distinct, [_compute(kernels, few, distinct, masked, device, group) for masked in few.masks]
            except Exception as error:
                if not is_out_of_memory(error):
                    why = f"{first_line(error)} (cuDNN {_cudnn()})"
                    say(f"warning: {kernels} fails, so nothing is compared with it: {why}")
                    break
                if distinct == trial.distinct_counts[-1]:
                    raise
    return trial.distinct_counts[-1], []


def _compute(
    kernels: Kernels, trial: Trial, distinct: int, masked: bool, device: torch.device, group: dist.ProcessGroup | None
) -> _Result:
    """Compute a trial twice, and time the second pass. Weights and clips are the same in every call."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GDT(trial.network, ("video",)).train()
        size, trunk = trial.clip.size, model.video_network
        # each clip has its own colour, since errors would average out over pure noise
        clips = torch.randn(distinct, trial.clip.frames, size, size, 3) + torch.randn(distinct, 1, 1, 1, 3)
        gradient = torch.randn(distinct, trunk.base.dim) / (trial.leaves * trial.passes)
        order = torch.randperm(trial.leaves) % distinct
        mask = order > 0 if masked else None
    for norm in trunk.modules():
        if isinstance(norm, _BatchNorm):
            nn.init.constant_(norm.bias, _BIAS)
    trunk.base.recomputed = trial.recomputed
    if trial.shared:
        synchronise(model, group)
    elif trial.masked:
        allow_masks(model)
    kernels.apply(model)
    inputs = clips[order].permute(0, 4, 1, 2, 3).to(kernels.precision)
    statistics = RunningStatistics({"video": [trunk]})

    def run_passes() -> Tensor:
        model.zero_grad()
        features = []
        with statistics.step(shared=False):
            with torch.autocast(device.type, kernels.precision, enabled=kernels.precision == torch.bfloat16):
                for _ in range(trial.passes):
                    statistics.set_mask("video", mask)
                    features.append(trunk(inputs).float())
                    statistics.add("video")
            joined = torch.cat(features)
            joined.backward(gradient[order].repeat(trial.passes, 1))
        return joined.detach()

    run_passes()  # compiles, and lets cuDNN choose algorithms
    began = mark(device)
    features = run_passes()
    done = mark(device)
    done.synchronize()
    gradients = {name: p.grad.float() for name, p in trunk.named_parameters() if p.grad is not None and p.dim() > 1}
    seconds = began.elapsed_time(done) / 1000 / len(features)
    return _Result(order.repeat(trial.passes), features, gradients, seconds)


def _count_graph_breaks(kernels: Kernels) -> Counter[str]:
    """Reasons for graph breaks so far, and how often each occurred."""
    if not kernels.compiled:
        return Counter()
    from torch._dynamo.utils import counters  # importing takes seconds

    return counters["graph_break"] + counters["unimplemented"]


def _cudnn() -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version or "not available")
