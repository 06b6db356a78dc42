"""What is measured: sizes, ways to compute a step, and what was predicted of them; a module that needs no torch.

The predictions were written before anything was measured, for an H100 at the paper's size. They start from the
arithmetic of a clip (460 GFLOPs forward and backward, 76 % of it in the stem and the first two stages) at about 40 % of
the maker's peak where matrix units are fed (1.2 ms), and from its 450 MiB of activations, which element-wise layers and
batch norm pass over about six times (0.9 ms at 3 TB/s): about 2.1 ms a clip, near 480 clips/s, 22 % MFU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.network import Network

SECTIONS = {
    "machine": "device", "shards": "drawn", "kernels": "step", "step": "step", "training": "training",
    "loading": "loading", "ranks": "ranks", "ideas": "step",
}  # fmt: skip
"""What is measured, each by the function of that name in a module; what matters most first, since time may end it."""


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    bfloat16: bool = True
    channels_last: bool = True
    compiled: bool = True
    cudnn_benchmark: bool = True
    fused: bool = True
    """Whether the optimiser is one kernel, or goes from parameter to parameter."""
    recomputed: int = 0
    """Parts of the video trunk whose activations are made again for the gradient; see R2Plus1D."""
    side_stream: bool = False
    """Whether the sound network runs beside the video network."""
    one_forward: bool = True
    """Whether all leaves of a modality pass at once, or those of each branch, a group of batch norm, on their own."""
    cached: bool = False
    """Whether leaves are embedded twice, the second time a group at a time (gradient caching)."""
    padded: bool = False
    """Whether the widths inside factorised convolutions are multiples of 8, with channels that are always zero."""
    folded: bool = False
    """Whether the parts of factorised convolutions are convolutions of two dimensions over folded axes."""
    graph: bool = False
    """Whether forward, loss and backward are replayed as one CUDA graph."""
    bytes: bool = True
    """Whether clips are bytes that become floats in the step, or contiguous floats on the device already."""
    waits: bool = False
    """Whether the host waits for the loss of every step."""


PLAIN = Way(
    bfloat16=False, channels_last=False, compiled=False, fused=False, one_forward=False, bytes=False, waits=True
)
"""The published code's way, with what torch gives everyone: TF32 and cuDNN's benchmark."""


@dataclass(frozen=True)
class Idea:
    """One thing that is done in another way."""

    change: dict[str, Any]
    predicted: float
    """Clips/s with the change over those without it."""
    why: str
    same: bool = True
    """Whether the function that is computed is the same one."""

    def of(self, best: Way) -> Way:
        return replace(best, **self.change)


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
    "gradient-caching": Idea({"one_forward": False, "cached": True}, 0.73, "and one forward pass more, 3 of 4",
                             same=False),
    "padded": Idea({"padded": True}, 1.10, "45, 230, 460 and 921 channels are no multiples of 8; 4 of 20 "
                   "convolutions, the stem among them"),
    "folded": Idea({"folded": True}, 1.15, "cuDNN's kernels of two dimensions are better than those of three"),
    "padded-folded": Idea({"padded": True, "folded": True}, 1.25, "both"),
    "graph": Idea({"graph": True}, 1.01, "a step is longer than its launches"),
}  # fmt: skip
PREDICTED: dict[str, Any] = {
    "step": "480 clips/s predicted of an H100; the goals were 250 clips/s on an H100 and 350 clips/s on an H200",
    "plain": 4.0,
}  # fmt: skip
"""Of the best way, and of it over the plain one."""


@dataclass(frozen=True)
class Size:
    """What is computed, and how much of it; by default the paper's."""

    videos: int = 512
    """That are drawn, and of a batch in whole training."""
    frames: int = 48
    """Of each of them."""
    shorter_side: int = 160
    """Of these, pixels."""
    leaves: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Video clips per step, in turn until memory ends; multiples of 4, as row l takes four of a video."""
    leaves_of_ideas: int = 64
    """Video clips per step of each idea and of the plain way; a multiple of 4."""
    warm: int = 3
    """Steps in which kernels are chosen and compiled."""
    steps: int = 10
    """Steps after those, over which a measurement goes."""
    rows: tuple[str, ...] = ("l", "e", "a")
    """Rows of table 1 of which whole training is measured."""
    training_steps: int = 24
    """Steps of whole training; the first third does not count."""
    loading_seconds: float = 12.0
    """Length of each measurement of loading."""
    ranks_videos: int = 8
    """Videos of a batch that one and two processes share; a multiple of 4."""
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
    """Metric loading, training steps and whole training on a GPU, beside predictions and the plain way."""

    out: Path = Path("runs/bench-gpu")
    minutes: float = 40.0
    device: Literal["cuda", "cpu"] = "cuda"
    size: Size = SIZES["paper"]
    sections: tuple[str, ...] = tuple(SECTIONS)
    ideas: tuple[str, ...] = tuple(IDEAS)

    @property
    def shards(self) -> Path:
        """Where the drawn videos are."""
        return self.out / f"shards-{self.size.videos}x{self.size.frames}x{self.size.shorter_side}"


def parsed(arguments: Sequence[str]) -> Settings:
    """The settings of a command line; exits where they cannot be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=Settings.__doc__)
    say = parser.add_argument
    say("--out", type=Path, default=Settings.out, help="folder of the table, the logs and the shards that are made")
    say("--minutes", type=float, default=Settings.minutes, help="for all of it; what has no time left is skipped")
    say("--device", choices=("cuda", "cpu"), default="cuda", help="a CPU gives no figures of use; see --size")
    say("--size", choices=tuple(SIZES), default="paper", help="the paper's, or one that shows that everything runs")
    say(
        "--sections", nargs="+", choices=tuple(SECTIONS), default=SECTIONS, help="which; what they need comes with them"
    )
    say("--ideas", nargs="*", choices=tuple(IDEAS), default=IDEAS, help="which to switch over, one at a time")
    values = vars(parser.parse_args(arguments))
    needed = {"machine"} | ({"shards"} if {"loading", "training"} & set(values["sections"]) else set())
    values["sections"] = tuple(name for name in SECTIONS if name in needed.union(values["sections"]))
    return Settings(**values | {"size": SIZES[values["size"]], "ideas": tuple(values["ideas"])})
