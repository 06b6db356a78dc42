"""Settings of the check of the theorem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdt.common.errors import UserError, require_positive
from gdt.pipeline import presets

_MOST_SAMPLES = 4096
"""Of the population: the losses of all pairs are held, in float64."""


@dataclass(frozen=True)
class Theorem:
    """Simulate the estimates of the paper's theorem on variance, and count the contrasts of section A.2."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "simulation": ("k_v", "k_i", "videos", "values", "temperature", "batches"),
        "counts": ("presets", "batch_size"),
    }
    """Of `--help`, and the settings below them."""

    k_v: tuple[int, ...] = (2, 4, 8)
    """Numbers of distinctive values in a batch, K_V; each is simulated with each of --k-i."""
    k_i: tuple[int, ...] = (2, 4, 8)
    """Numbers of invariant values in a batch for each distinctive one, K_I."""
    videos: int = 24
    """Distinctive values of the population, of which a real batch draws K_V."""
    values: int = 12
    """Invariant values of each of them, of which a batch draws K_I."""
    temperature: float = 0.07
    """Of equation 1."""
    batches: int = 10_000
    """Batches simulated for every size and way of sampling."""
    presets: tuple[str, ...] = ("d", "e", "i", "j", "l", "m")
    """Compositions whose single-factor contrasts are counted, by the names of --preset help."""
    batch_size: int = 512
    """K_i of the batches in which they are counted."""
    seed: int = 0
    """Decides the encoder and everything that is drawn."""
    out: Path = Path("runs/theorem")
    """Folder of the tables, the numbers and the plot."""

    def __post_init__(self) -> None:
        for name, drawn_from in (("k_v", "videos"), ("k_i", "values")):
            option, sizes, most = f"--{name.replace('_', '-')}", getattr(self, name), getattr(self, drawn_from)
            if not sizes or len(set(sizes)) < len(sizes):
                raise UserError(
                    f"{option} is {' '.join(map(str, sizes)) or 'empty'}; it must be one or more different numbers"
                )
            if min(sizes) < 2:
                lacking = "negative" if name == "k_v" else "positive"
                raise UserError(f"{option} has {min(sizes)}; it must be 2 or more, or there is no {lacking} pair")
            if most <= max(sizes):
                raise UserError(
                    f"the population is too small: --{drawn_from} is {most} and {option} has {max(sizes)}, which "
                    f"leaves nothing to chance; set --{drawn_from} to {max(sizes) + 1} or more"
                )
        if self.videos * self.values > _MOST_SAMPLES:
            raise UserError(
                f"--videos {self.videos} with --values {self.values} are {self.videos * self.values} samples, more "
                f"than the {_MOST_SAMPLES} whose pairs can all be looked at; set them lower"
            )
        if not 0.01 <= self.temperature < float("inf"):
            raise UserError(f"--temperature is {self.temperature}; it must be 0.01 or more")
        require_positive(self, "", "batches", least=100, why="or there are no intervals")
        if not self.presets:
            raise UserError("--presets is empty; name one or more")
        for preset in self.presets:
            presets.preset(preset)
        require_positive(self, "", "batch_size", least=2, why="or there is nothing to contrast")
        require_positive(self, "", "seed", least=0)
