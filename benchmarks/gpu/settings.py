"""Sizes, ways to compute a step, and predictions. This module does not need torch.

The predictions were written before anything was measured, for an H100 at the paper's size. A clip takes 460 GFLOPs
forward and backward, 76 % of them in the stem and the first two stages, which at 25 to 40 % of the stated peak is 1.2
to 1.9 ms; element-wise layers and batch norm read or write its 450 MiB of activations six to eight times, 1.0 to 1.4
ms at 2.7 TB/s: 2.2 to 3.3 ms per clip, 300 to 450 clips/s at 64 to 128 clips per pass, 14 to 21 % MFU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.network import Network

SECTIONS = {
    "machine": "device", "smoke": "smoke", "shards": "shards", "kernels": "step", "step": "step",
    "training": "training", "loading": "loading", "ranks": "ranks", "ideas": "step",
}  # fmt: skip
"""Section -> module, in which it is a function; most important first, since time may run out."""
MINUTES = {"smoke": 9.5}
"""Time limits of sections."""


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    bfloat16: bool = True
    channels_last: bool = True
    compiled: bool = True
    cudnn_benchmark: bool = True
    fused: bool = True
    """Whether the optimizer is one fused kernel."""
    recomputed: int = 0
    """Parts of the video trunk whose activations are recomputed; see R2Plus1D."""
    side_stream: bool = False
    """Whether the audio network runs on its own stream."""
    one_forward: bool = True
    """Whether one forward pass takes all leaves of a modality; otherwise one branch, a batch-norm group."""
    cached: bool = False
    """Whether gradient caching embeds leaves twice, the second time group by group."""
    padded: bool = False
    """Whether inner widths of factorised convolutions are padded to multiples of 8 with zero channels."""
    folded: bool = False
    """Whether factorised convolutions are computed as 2-D convolutions over folded axes."""
    budget: float = 1.0
    """Share of the activations of the compiled trunk that may stay in memory."""
    graph: bool = False
    """Whether forward, loss and backward are replayed as one CUDA graph."""
    bytes: bool = True
    """Whether clips are bytes, which the step converts; otherwise contiguous floats."""
    waits: bool = False
    """Whether the host waits for the loss of every step."""


PLAIN = Way(
    bfloat16=False, channels_last=False, compiled=False, fused=False, one_forward=False, bytes=False, waits=True
)
"""The way of the published code, with TF32 and cuDNN's benchmark."""


@dataclass(frozen=True)
class Idea:
    """One change of the best way."""

    change: dict[str, Any]
    predicted: float
    """Clips/s with the change over clips/s without it."""
    why: str
    same: bool = True
    """Whether the change computes the same function."""

    def apply(self, best: Way) -> Way:
        return replace(best, **self.change)


IDEAS = {
    "float32": Idea({"bfloat16": False}, 0.45, "TF32 at half the rate, twice the bytes"),
    "channels-first": Idea({"channels_last": False}, 0.55, "cuDNN transposes for tensor cores"),
    "no-cudnn-benchmark": Idea({"cudnn_benchmark": False}, 0.85, "cuDNN's heuristics are weak for (1,3,3) and (3,1,1)"),
    "optimizer-not-fused": Idea({"fused": False}, 0.995, "under 1 ms of a step of 130 ms"),
    "recompute-2": Idea({"recomputed": 2}, 0.85, "stem and first stage twice: half a forward pass; frees memory"),
    "recompute-3": Idea({"recomputed": 3}, 0.80, "also the second stage: three quarters of it; frees more"),
    "side-stream": Idea({"side_stream": True}, 1.01, "audio has 0.2 % of the FLOPs; its launches overlap"),
    "forward-per-branch": Idea({"one_forward": False}, 0.97, "a quarter of the clips per kernel, four times the "
                               "launches; batch norm over each branch", same=False),
    "gradient-caching": Idea({"one_forward": False, "cached": True}, 0.73, "also another forward pass: 3/4 the speed",
                             same=False),
    "padded": Idea({"padded": True}, 1.10, "45, 230, 460 and 921 channels are not multiples of 8; 14 of 37 "
                   "convolutions, 21 % of the FLOPs"),
    "folded": Idea({"folded": True}, 1.15, "cuDNN's 2-D kernels are better than its 3-D kernels"),
    "padded-folded": Idea({"padded": True, "folded": True}, 1.25, "both"),
    "graph": Idea({"graph": True}, 1.01, "a step takes longer than its launches"),
}  # fmt: skip
PREDICTED: dict[str, Any] = {
    "step": "predicted 300 to 450 clips/s on an H100; goals: 250 clips/s on an H100, 350 clips/s on an H200",
    "plain": 4.0,
    "steps": {"eager": "255-380", "compiled": "300-450", "compiled with memory budget": "290-430",
              "batch norm over ranks": "290-440"},
    "hours": {"l": "9-14", "e": "2-3", "a": "4-6"},
    "convolutions": "predicted 1.2 to 1.9 ms per clip",
    "frames/s": "9000-13500",
}  # fmt: skip
"""Predictions: the best way, its gain over the plain one, `smoke`, and hours of 100 epochs of Kinetics-400 on 8 H100s.

The hours are those of `python -m benchmarks.size` with --share 0.206 and 0.137, which counts recomputation (19 % more
FLOPs for row l, which recomputes the first stage). Added are 4 % for a memory budget, 1 % for summing gradients, and
5 % for batch norm over all ranks (rows e and a: 80 collectives in a step of 150 to 400 ms, and waiting).
"""


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements; by default the paper's."""

    videos: int = 512
    """Synthetic videos; also the batch size of whole training."""
    frames: int = 48
    """Frames per synthetic video."""
    shorter_side: int = 160
    """Pixels."""
    leaves: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Video clips per step, multiples of 4, as row l has four per video."""
    leaves_of_ideas: int = 64
    """Video clips per step of each idea and of the plain way; a multiple of 4."""
    warm: int = 3
    """Warm-up steps, in which kernels are chosen and compiled."""
    steps: int = 10
    """Measured steps."""
    rows: tuple[str, ...] = ("l", "e", "a")
    """Rows of table 1 in whole training."""
    training_steps: int = 24
    """Steps of whole training; the first third is warm-up."""
    loading_seconds: float = 12.0
    """Seconds per measurement of loading."""
    ranks_videos: int = 8
    """Videos per batch of one rank or two; a multiple of 4."""
    network: Network = field(default_factory=Network)
    clip: Clip = field(default_factory=Clip)
    augmentation: Augmentation = field(default_factory=Augmentation)


SIZES = {
    "paper": Size(),
    "tiny": Size(
        videos=16, frames=40, shorter_side=32, leaves=(8,), leaves_of_ideas=8, warm=1, steps=1, rows=("l", "a"),
        training_steps=3, loading_seconds=0.1, ranks_videos=4,
        network=Network(
            stem=6, stem_middle=5, widths=(6, 10), depth=1, audio_stem=6, audio_widths=(6, 8), hidden=16, embedding=8
        ),
        clip=Clip(frames=4, stride=2, size=16), augmentation=Augmentation(scale=(18, 24)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Measure loading, training steps and whole training on a GPU, against predictions and the plain way."""

    out: Path = Path("runs/bench-gpu")
    minutes: float = 40.0
    device: Literal["cuda", "cpu"] = "cuda"
    size: Size = SIZES["paper"]
    sections: tuple[str, ...] = tuple(SECTIONS)
    ideas: tuple[str, ...] = tuple(IDEAS)

    @property
    def shards(self) -> Path:
        """Folder of the synthetic videos."""
        return self.out / f"shards-{self.size.videos}x{self.size.frames}x{self.size.shorter_side}"


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from the command line, with the sections that others need. Exits on invalid ones."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", usage="%(prog)s [options]", description=Settings.__doc__,
        formatter_class=partial(argparse.HelpFormatter, width=100),
    )  # fmt: skip
    add = parser.add_argument
    add("--minutes", type=float, default=Settings.minutes, help="time limit; default: 40")
    add("--out", type=Path, default=Settings.out, help="folder of results; default: runs/bench-gpu")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="speeds on a CPU mean nothing; use with --size tiny")
    add("--size", choices=tuple(SIZES), default="paper", help="the paper's, or a tiny one that only shows that it runs")
    add("--sections", nargs="+", choices=tuple(SECTIONS), default=SECTIONS, metavar="SECTION",
        help=f"sections to run, with those they need: {', '.join(SECTIONS)}")  # fmt: skip
    add("--ideas", nargs="*", choices=tuple(IDEAS), default=IDEAS, metavar="IDEA",
        help=f"ideas to measure, one at a time: {', '.join(IDEAS)}")  # fmt: skip
    values = vars(parser.parse_args(arguments))
    needed = {"machine"} | ({"shards"} if {"loading", "training"} & set(values["sections"]) else set())
    values["sections"] = tuple(name for name in SECTIONS if name in needed.union(values["sections"]))
    return Settings(**values | {"size": SIZES[values["size"]], "ideas": tuple(values["ideas"])})
