"""Choose a GPU's kernels: compute what a run will compute, and compare it with float32.

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
from gdt.train.distributed import alone
from gdt.train.kernels import Kernels
from gdt.train.metrics import mark
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Network
from gdt.train.norm import RunningStatistics, allow_partial, synchronise

TOLERANCE = 0.2
"""Largest relative difference from float32, of the features and of the gradient of each convolution.

On a CPU, rounding to bfloat16 alone gives up to 0.06 and 0.13; wrong kernels of oneDNN give 0.39 to infinity, a wrong
sign 2.
"""
_OFFSET = 2.0
"""Offset of batch norms in a trial: few values are near the kink of the ReLUs, at which rounding turns gradients on and
off. With an offset of 0, gradients in bfloat16 differ from float32 by up to 1.2, which would tell nothing."""
_DIFFERENT = 8
"""Different clips of a trial, which repeats them, since float32 needs more memory than a run. Batch norm over whole
repetitions gives the same results."""


@dataclass(frozen=True)
class Trial:
    """What a trial computes: the forward passes of the video network whose activations a run holds at once."""

    network: Network
    clip: Clip
    leaves: int
    """Leaves of a forward pass; at least 2 are tried, since batch norm makes the mean over one constant."""
    passes: int = 1
    recomputed: int = 0
    """As in `Backbone`."""
    shared: bool = False
    """Whether batch norm is over all ranks. In a trial it is over this one: ranks that fail must not stop others."""
    partial: bool = False
    """Whether batch norm may leave out leaves."""

    @property
    def masks(self) -> tuple[bool, ...]:
        """Whether passes have a mask of the leaves that count: shared ones always do, others only if they need it."""
        return (False, True) if self.partial and not self.shared else (self.partial,)

    @property
    def different(self) -> list[int]:
        """Numbers of different clips that can be repeated, the best first."""
        few = range(min(_DIFFERENT, self.leaves), 1, -1)
        return [number for number in few if self.leaves % number == 0] or [self.leaves]


class _Result(NamedTuple):
    clips: Tensor
    """The clip of each leaf: int64 [leaves]."""
    features: Tensor
    """float32 [leaves, dim]."""
    gradients: dict[str, Tensor]
    """Of the weights of convolutions; those of batch norms nearly cancel, so that rounding is most of them."""
    seconds: float
    """Seconds of forward and backward pass, per leaf."""

    def off(self, right: _Result) -> tuple[float, float]:
        """Relative differences of the features, and of the gradient that differs most."""
        of_clips = right.features[right.clips.argsort()]
        varying = of_clips - of_clips.mean(0)  # batch norm alone gives the mean
        features = (self.features - of_clips[self.clips]).norm() / varying[self.clips].norm()
        cut = {name: self.gradients[name][tuple(map(slice, one.shape))] for name, one in right.gradients.items()}
        gradients = [(cut[name] - one).norm() / one.norm() for name, one in right.gradients.items()]
        return float(features), float(torch.stack(gradients).max())


def choose_kernels(
    candidates: list[Kernels], trial: Trial, device: torch.device, say: Callable[[str], None]
) -> Kernels:
    """The first candidate with the features and gradients of float32 that is not slower than float32.

    Padded kernels are timed against the next candidate, the same ones without padding. If float32 itself fails, nothing
    can be compared: then the last candidate that computes. `say` gets the reasons for rejections. Raises when out of
    memory.
    """
    trial = replace(trial, leaves=max(2, trial.leaves))
    with alone() if trial.shared else nullcontext() as group:
        different, right = _reference(trial, device, group, say)
        accepted: list[tuple[float, Kernels, str, Counter[str]]] = []
        for kernels in candidates if right else candidates[::-1]:
            before = _uncompiled(kernels)
            try:
                found = [_computed(kernels, trial, different, masked, device, group) for masked in trial.masks]
                why, how = _judged(kernels, found, right)
            except Exception as error:  # compilers and libraries raise anything
                if is_out_of_memory(error) and not kernels.padded:
                    raise
                why = first_line(error)
            finally:
                left = _uncompiled(kernels) - before
                if kernels.compiled:
                    torch.compiler.reset()  # or graphs of trials count against the limit that a run has
            if why:
                say(f"warning: {kernels} is not used: {why} (torch {torch.__version__}, cuDNN {_cudnn()})")
            else:
                accepted.append((sum(one.seconds for one in found), kernels, how, left))
            if accepted and not (kernels.padded and right):
                break
    if not accepted:
        return candidates[-1]
    _, kernels, how, left = min(accepted, key=lambda one: one[0])
    say(f"computing in {kernels}; cuDNN {_cudnn()}, {how}")
    if left:
        parts, first = plural(left.total(), "part"), next(iter(left)).splitlines()[0]
        say(f"warning: torch.compile leaves {parts} of the video network uncompiled, which makes it slow: {first}")
    return kernels


def _judged(kernels: Kernels, found: list[_Result], right: list[_Result]) -> tuple[str, str]:
    """Why kernels are wrong or slow, empty if they are not; and how near they are to float32."""
    if not right:
        return "", "unchecked"
    pairs = list(zip(found, right, strict=True))
    features, gradients = torch.tensor([one.off(other) for one, other in pairs]).amax(0).tolist()  # NaN if one is
    slower = max(one.seconds / other.seconds for one, other in pairs)
    why = ""
    if not features < TOLERANCE:  # true for NaN, too
        why = f"its features differ from float32 by {features:.2g} of their norm"
    elif not gradients < TOLERANCE:
        why = f"the gradient of a convolution differs from float32 by {gradients:.2g} of its norm"
    elif kernels.precision == torch.bfloat16 and slower > 1:
        why = f"it takes {slower:.1f} times as long as float32"
    return why, f"relative difference from float32: features {features:.2g}, gradients {gradients:.2g}"


def _reference(
    trial: Trial, device: torch.device, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> tuple[int, list[_Result]]:
    """The number of different clips, and what float32 computes of them with each mask; nothing if it fails."""
    for kernels in (Kernels(torch.float32), Kernels(torch.float32, channels_last=False)):
        for different in trial.different:
            few = replace(trial, leaves=different, passes=1)
            try:
                return different, [_computed(kernels, few, different, masked, device, group) for masked in few.masks]
            except Exception as error:
                if not is_out_of_memory(error):
                    why = f"{first_line(error)} (cuDNN {_cudnn()})"
                    say(f"warning: {kernels} fails, so nothing is compared with it: {why}")
                    break
                if different == trial.different[-1]:
                    raise
    return trial.different[-1], []


def _computed(
    kernels: Kernels, trial: Trial, different: int, masked: bool, device: torch.device, group: dist.ProcessGroup | None
) -> _Result:
    """Compute a trial twice, and time the second; the same weights and clips each time."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GDT(trial.network, ("video",)).train()
        size, trunk = trial.clip.size, model.video_network
        # frames are smooth, and noise alone would average out errors
        clips = torch.randn(different, trial.clip.frames, size, size, 3) + torch.randn(different, 1, 1, 1, 3)
        towards = torch.randn(different, trunk.base.dim) / (trial.leaves * trial.passes)
        order = torch.randperm(trial.leaves) % different
        counted = order > 0 if masked else None
    for norm in trunk.modules():
        if isinstance(norm, _BatchNorm):
            nn.init.constant_(norm.bias, _OFFSET)
    trunk.base.recomputed = trial.recomputed
    if trial.shared:
        synchronise(model, group)
    elif trial.partial:
        allow_partial(model)
    kernels.apply(model)
    inputs = clips[order].permute(0, 4, 1, 2, 3).to(kernels.precision)
    statistics = RunningStatistics({"video": [trunk]})

    def compute() -> Tensor:
        model.zero_grad()
        features = []
        with statistics.step(shared=False):
            with torch.autocast(device.type, kernels.precision, enabled=kernels.precision == torch.bfloat16):
                for _ in range(trial.passes):
                    statistics.count("video", counted)
                    features.append(trunk(inputs).float())
                    statistics.add("video")
            joined = torch.cat(features)
            joined.backward(towards[order].repeat(trial.passes, 1))
        return joined.detach()

    compute()  # compiles, and lets cuDNN choose
    began = mark(device)
    features = compute()
    done = mark(device)
    done.synchronize()
    gradients = {name: p.grad.float() for name, p in trunk.named_parameters() if p.grad is not None and p.dim() > 1}
    seconds = began.elapsed_time(done) / 1000 / len(features)
    return _Result(order.repeat(trial.passes), features, gradients, seconds)


def _uncompiled(kernels: Kernels) -> Counter[str]:
    """Why code was left uncompiled so far, and how often."""
    if not kernels.compiled:
        return Counter()
    from torch._dynamo.utils import counters  # takes seconds

    return counters["graph_break"] + counters["unimplemented"]


def _cudnn() -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(version or "not available")
