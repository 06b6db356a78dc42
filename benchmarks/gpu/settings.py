"""What the benchmark is told, in a module that needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.gpu.ways import IDEAS
from gdt.common.errors import UserError
from gdt.common.serialization import rebuilt, to_json
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.network import Network

SECTIONS = ("machine", "shards", "kernels", "step", "training", "loading", "caching", "ranks", "ideas")
"""What is measured, in this order: what matters most first, since time may end it."""
_SMALL_NETWORK = Network(
    stem=6, stem_middle=5, widths=(6, 10), depth=1, audio_stem=6, audio_widths=(6, 8), hidden=16, embedding=8
)


@dataclass(frozen=True)
class Settings:
    """Measure loading, training steps and whole training on a GPU, beside predictions and the plain way."""

    out: Path = Path("runs/bench-gpu")
    """Folder of the tables, the logs and the shards that are made."""
    minutes: float = 40.0
    """Time for all of it; what would take longer than is left is skipped, and the table says so."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Where to compute; a CPU gives no figures of use, and shows that everything runs."""
    size: Literal["paper", "tiny"] = "paper"
    """The paper's networks and clips, or such as a processor computes at once."""
    sections: tuple[str, ...] = SECTIONS
    """Which of them to measure; those that they need come with them."""
    ideas: tuple[str, ...] = tuple(IDEAS)
    """Which ideas to switch over, one at a time."""
    leaves: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Video clips per step, in turn until memory ends; multiples of 4, as row l takes four of a video."""
    leaves_of_ideas: int = 64
    """Video clips per step of each idea, of the plain way and of gradient caching; a multiple of 16."""
    steps: int = 10
    """Steps over which a measurement goes."""
    warm: int = 3
    """Steps before them, in which kernels are chosen and compiled."""
    rows: tuple[str, ...] = ("l", "e", "a")
    """Rows of table 1 of which whole training is measured."""
    videos: int = 0
    """Videos that are drawn, and videos of a batch in whole training; 0 for the paper's 512, or 64 of the tiny size."""
    frames: int = 48
    """Frames of each of them."""
    training_steps: int = 24
    """Steps of whole training; the first third does not count."""
    loading_seconds: float = 12.0
    """Length of each measurement of loading."""
    ranks_videos: int = 8
    """Videos of a batch that one and two processes share."""
    threads: int = 0
    """CPU threads of a process for the network; 0 leaves it to torch, or is one where a CPU computes."""
    processes: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Processes that draw the videos."""

    def __post_init__(self) -> None:
        for name, known in (("sections", SECTIONS), ("ideas", tuple(IDEAS))):
            if unknown := sorted(set(getattr(self, name)) - set(known)):
                raise UserError(f"--{name}: there is no {', '.join(unknown)}; choose of {', '.join(known)}")
        if any(n % 4 or n < 8 for n in (*self.leaves, self.leaves_of_ideas)):
            raise UserError("--leaves and --leaves-of-ideas must be multiples of 4, and 8 or more")
        if min(self.steps, self.processes) < 1 or self.batch < 2 or self.minutes <= 0:
            raise UserError("--steps and --processes must be 1 or more, --videos 2 or more, --minutes above 0")
        if self.ranks_videos < 4 or self.ranks_videos % 4:
            raise UserError("--ranks-videos must be a multiple of 4: two ranks share them in two groups of two or more")

    @property
    def measured(self) -> list[str]:
        """The sections, with what they need."""
        needed = {"machine"} | ({"shards"} if {"loading", "training"} & set(self.sections) else set())
        return [section for section in SECTIONS if section in needed.union(self.sections)]

    @property
    def batch(self) -> int:
        """Videos that are drawn, and videos of a batch."""
        return self.videos or (512 if self.size == "paper" else 64)

    @property
    def network(self) -> Network:
        return Network() if self.size == "paper" else _SMALL_NETWORK

    @property
    def clip(self) -> Clip:
        return Clip() if self.size == "paper" else Clip(frames=4, stride=2, size=16)

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation() if self.size == "paper" else Augmentation(scale=(18, 24))

    @property
    def shorter_side(self) -> int:
        """Of the frames that are drawn, pixels."""
        return 160 if self.size == "paper" else 32

    @property
    def shards(self) -> Path:
        """Where the drawn videos are."""
        return self.out / f"shards-{self.size}-{self.batch}x{self.frames}"


def parsed(arguments: Sequence[str]) -> Settings:
    """The settings of a command line; where tyro is not installed, each option takes its values in the same way."""
    try:
        import tyro
    except ModuleNotFoundError:
        return _plainly(arguments)
    return tyro.cli(Settings, args=arguments, prog="python -m benchmarks.gpu")


def _plainly(arguments: Sequence[str]) -> Settings:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=Settings.__doc__)
    for name, value in json.loads(to_json(Settings())).items():
        several = isinstance(value, list)
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, default=value, nargs="*" if several else None,
            type=type(value[0] if several else value),
        )  # fmt: skip
    try:
        return rebuilt(Settings, vars(parser.parse_args(arguments)))
    except ValueError as error:
        raise UserError(f"{error}; see --help") from error
