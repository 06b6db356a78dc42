"""Settings of `gdt study theorem`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import presets

_MAX_SAMPLES = 4096
"""Maximum size of the population: the losses of all pairs are in memory, in float64."""


@dataclass(frozen=True)
class Theorem:
    """Simulate the paper's theorem, and count the pairs that differ in one factor only (section A.1.3)."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "simulation": ("k_v", "k_i", "videos", "values", "temperature", "batches"),
        "counts": ("presets", "batch_size"),
        "run": ("seed", "out"),
    }
    """Headings of `--help`, each with its settings."""

    k_v: tuple[int, ...] = (2, 4, 8)
    """Numbers of distinctive values per batch, K_V; each is simulated with each of --k-i."""
    k_i: tuple[int, ...] = (2, 4, 8)
    """Numbers of invariant values for each of them, K_I."""
    videos: int = 24
    """Distinctive values in the population; a real batch draws K_V of them."""
    values: int = 12
    """Invariant values of each distinctive one; a batch draws K_I of them."""
    temperature: float = 0.07
    """Temperature of equation 1."""
    batches: int = 10_000
    """Simulated batches for each size and way of sampling."""
    presets: tuple[str, ...] = ("d", "e", "i", "j", "l", "m")
    """Presets whose single-factor contrasts are counted."""
    batch_size: int = 512
    """Videos per batch in these counts."""
    seed: int = 0
    """Seed of the encoder and of all draws."""
    out: Path = Path("runs/theorem")
    """Output folder of table, numbers and plot."""

    def __post_init__(self) -> None:
        for name, drawn_from, pair in (("k_v", "videos", "negative"), ("k_i", "values", "positive")):
            option, sizes, available = f"--{name.replace('_', '-')}", getattr(self, name), getattr(self, drawn_from)
            if not sizes or len(set(sizes)) < len(sizes):
                given = " ".join(map(str, sizes)) or "empty"
                raise UserError(f"{option} is {given}; it must be one or more different numbers")
            if min(sizes) < 2:
                raise UserError(
                    f"{option} contains {min(sizes)}; it must be 2 or more; otherwise there is no {pair} pair"
                )
            if available <= max(sizes):
                raise UserError(
                    f"the population is too small: --{drawn_from} is {available} and {option} contains {max(sizes)}; "
                    f"set --{drawn_from} to {max(sizes) + 1} or more"
                )
        if (samples := self.videos * self.values) > _MAX_SAMPLES:
            raise UserError(
                f"--videos {self.videos} with --values {self.values} is a population of {samples} samples, above the "
                f"limit of {_MAX_SAMPLES}; lower them"
            )
        if not 0.01 <= self.temperature < float("inf"):
            raise UserError(f"--temperature is {self.temperature}; it must be 0.01 or more")
        require_positive(self, "", "batches", least=100, why="otherwise the intervals are unreliable")
        if not self.presets:
            raise UserError("--presets is empty; name one or more")
        for preset in self.presets:
            presets.preset(preset, is_option=False)
        require_positive(self, "", "batch_size", least=2, why="otherwise there is nothing to contrast")
        require_positive(self, "", "seed", least=0)
