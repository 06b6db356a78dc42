"""Ways to compute a training step, and the ideas that tell them apart, each with the gain that is predicted of it.

The predictions were written before anything was measured, for an H100 at the paper's size. They start from the
arithmetic of a clip (460 GFLOPs forward and backward, 76 % of it in the stem and the first two stages) at about 40 % of
the maker's peak where matrix units are fed (1.2 ms), and from its 450 MiB of activations, which element-wise layers and
batch norm pass over about six times (0.9 ms at 3 TB/s): about 2.1 ms a clip, near 480 clips/s, 22 % MFU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    bfloat16: bool = True
    channels_last: bool = True
    compiled: bool = True
    cudnn_benchmark: bool = True
    fused: bool = True
    """Whether the optimiser is one kernel."""
    recomputed: int = 0
    """Parts of the video trunk whose activations are made again for the gradient; see Backbone."""
    side_stream: bool = False
    """Whether the sound network runs beside the video network."""
    one_forward: bool = True
    """Whether all leaves of a modality pass at once, or those of each branch on their own."""
    padded: bool = False
    """Whether the widths inside factorised convolutions are multiples of 8, with channels that are always zero."""
    folded: bool = False
    """Whether the parts of factorised convolutions are convolutions of two dimensions over folded axes."""
    graph: bool = False
    """Whether forward, loss and backward are replayed as one CUDA graph."""


@dataclass(frozen=True)
class Idea:
    """One thing that is done in another way."""

    change: dict[str, object]
    predicted: float
    """Clips/s with the change over those without it."""
    why: str
    same: bool = True
    """Whether the function that is computed is the same one."""

    def of(self, best: Way) -> Way:
        return replace(best, **self.change)  # type: ignore[arg-type]


IDEAS = {
    "float32": Idea({"bfloat16": False}, 0.45, "TF32 at half the rate, twice the bytes"),
    "channels-first": Idea({"channels_last": False}, 0.55, "cuDNN transposes for matrix units"),
    "eager": Idea({"compiled": False}, 0.85, "batch norm, ReLU and sums pass over memory one by one"),
    "no-cudnn-benchmark": Idea({"cudnn_benchmark": False}, 0.85, "heuristics are weak for (1,3,3) and (3,1,1)"),
    "optimiser-not-fused": Idea({"fused": False}, 0.995, "under 1 ms of a step of 130 ms"),
    "recompute-2": Idea({"recomputed": 2}, 0.85, "stem and first stage twice: half of a forward pass; frees memory"),
    "recompute-3": Idea({"recomputed": 3}, 0.80, "and the second stage: three quarters of it; frees more"),
    "side-stream": Idea({"side_stream": True}, 1.01, "sound has 0.2 % of the arithmetic; its launches hide"),
    "forward-per-branch": Idea({"one_forward": False}, 0.97, "a quarter of the clips per kernel, four times the "
                               "launches; batch norm over each branch", same=False),
    "padded": Idea({"padded": True}, 1.10, "45, 230, 460 and 921 channels are no multiples of 8; 4 of 20 "
                   "convolutions, the stem among them"),
    "folded": Idea({"folded": True}, 1.15, "cuDNN's kernels of two dimensions are better than those of three"),
    "padded-folded": Idea({"padded": True, "folded": True}, 1.25, "both"),
    "graph": Idea({"graph": True}, 1.01, "a step is longer than its launches"),
}  # fmt: skip
PREDICTED = {"clips/s": 480.0, "caching": 0.75, "plain": 4.0}
"""Of the best way; with each leaf embedded twice (one forward more: 3 of 4); times the plain way's clips/s."""
GOALS = {"H200": 350.0, "H100": 250.0}
"""Clips/s of a training step, by a part of the device's name; and as many times the plain way's as predicted."""
