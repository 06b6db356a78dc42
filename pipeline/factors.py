"""A factor of a composition: a transformation, how many of its values a batch holds, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gdt.pipeline.transformations.base import Transformation


class Contrast(Enum):
    """c(t, t') of one factor: 1 iff t = t' (distinctive), or always 1 (invariant)."""

    DISTINCTIVE = "distinctive"
    INVARIANT = "invariant"


class Weight(Enum):
    """w(t, t') of one factor: 1 always, or 1 iff t != t' (cross-modal learning)."""

    ANY = "any"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Factor:
    """One transformation t_m, its K_m, its contrast and its weight rule."""

    transformation: Transformation
    k: int
    contrast: Contrast
    weight: Weight = Weight.ANY

    def __str__(self) -> str:
        """As on the command line."""
        weight = f":{self.weight.value}" if self.weight is not Weight.ANY else ""
        return f"{self.transformation}:{self.contrast.value[0]}:{self.k}{weight}"

    @property
    def name(self) -> str:
        """The transformation's, which is also that of the column in the factor table."""
        return self.transformation.name
