"""A composition of factors and the paper's algebra: contrast, weight and conditions (sections 3.1 and A.1).

`contrast` and `weight` take factor tables (name -> one value per leaf) of NumPy arrays or torch tensors. The column
`leaf` numbers the leaves of the batch: T = T' iff the numbers are equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from gdt.common.errors import UserError
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.transformations.base import Transformation

Columns = Mapping[str, Any]


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
    """One transformation t_m, its K_m, its contrast and its weight."""

    transformation: Transformation
    k: int
    contrast: Contrast
    weight: Weight = Weight.ANY

    def __str__(self) -> str:
        """The factor as written on the command line."""
        weight = f":{self.weight.value}" if self.weight is not Weight.ANY else ""
        return f"{self.transformation}:{self.contrast.value[0]}:{self.k}{weight}"

    @property
    def name(self) -> str:
        """The transformation's name, which is also the column of the factor table."""
        return self.transformation.name


@dataclass(frozen=True)
class Composition:
    """Factors in the order in which they are sampled.

    Raises UserError, naming the factor to change, if no batch can meet the conditions of section 3.1.
    """

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        check(self.factors)

    def __str__(self) -> str:
        return " ".join(map(str, self.factors))

    @property
    def batch_size(self) -> int:
        """Videos per batch, K of the first factor."""
        return self.factors[0].k

    @property
    def modalities(self) -> tuple[str, ...]:
        varied = {name for factor in self.factors for name in factor.transformation.modalities(factor.k)}
        return tuple(sorted(varied, key=MODALITIES.index)) or MODALITIES[:1]

    @property
    def clips_per_video(self) -> int:
        """Leaves per video and modality; use it to compare compositions at equal cost."""
        return prod(factor.k for factor in self.factors[1:]) // len(self.modalities)

    @property
    def reach(self) -> float:
        """Longest stretch of video that a leaf may span, in clip lengths."""
        return prod(factor.transformation.reach(factor.k) for factor in self.factors)

    @property
    def starts_needed(self) -> int:
        """Minimum start frames of a video."""
        return max(factor.transformation.starts_needed(factor.k) for factor in self.factors)


def contrast(factors: Sequence[Factor], rows: Columns, columns: Columns) -> Any:
    """c(T, T') = prod_m c(t_m, t'_m) for T in `rows` [n] and T' in `columns` [n']: bool [n, n']."""
    equal = _outer(rows, columns, "leaf")
    result = equal | ~equal  # one everywhere, in the caller's array library
    for factor in factors:
        if factor.contrast is Contrast.DISTINCTIVE:
            result = result & _outer(rows, columns, factor.name)
    return result


def weight(factors: Sequence[Factor], rows: Columns, columns: Columns) -> Any:
    """w(T, T') = [T != T'] prod_m w(t_m, t'_m): bool [n, n']; cross-modal learning needs m != m'."""
    result = ~_outer(rows, columns, "leaf")
    for factor in factors:
        if factor.weight is Weight.DIFFERS:
            result = result & ~_outer(rows, columns, factor.name)
    return result


def check(factors: Sequence[Factor]) -> None:
    """Raise UserError, naming the factor to change, unless every batch meets conditions (i)-(iii) of section 3.1."""
    names = [factor.name for factor in factors]
    for factor in factors:
        if names.count(factor.name) > 1:
            raise UserError(f"factor '{factor.name}' occurs twice; remove one")
        why = factor.transformation.refuses(factor.k)
        if why:
            raise UserError(f"K of factor '{factor.name}' is {factor.k}; {why}")
        if factor.weight is Weight.DIFFERS and factor.contrast is Contrast.DISTINCTIVE:
            raise UserError(
                f"factor '{factor.name}' is distinctive and ':differs' keeps only pairs that differ in it, "
                "so no positive pair is left (condition i of section 3.1); make it invariant"
            )
        if factor.weight is Weight.DIFFERS and factor.k < 2:
            raise UserError(
                f"pairs must differ in factor '{factor.name}' but its K is {factor.k}, "
                "so no positive pair is left (condition i of section 3.1); set its K to 2 or more"
            )
    _check_order(factors)
    _check_variation(factors, Contrast.INVARIANT, "every positive pair is trivial, T = T'", "ii")
    _check_variation(factors, Contrast.DISTINCTIVE, "no leaf has a negative T''", "iii")


def _check_order(factors: Sequence[Factor]) -> None:
    """The lemmas assume that branches of an invariant factor agree in the distinctive factors after it."""
    before = ""
    for factor in factors:
        if factor.contrast is Contrast.INVARIANT:
            if factor.k > 1 and not before:
                before = factor.name
        elif before and not factor.transformation.takes_all(factor.k):
            raise UserError(
                f"distinctive factor '{factor.name}' is sampled anew in every branch of the invariant factor "
                f"'{before}'; put '{factor.name}' before '{before}', or set its K to the number of its values"
            )


def _check_variation(factors: Sequence[Factor], kind: Contrast, consequence: str, condition: str) -> None:
    consequence += f" (condition {condition} of section 3.1)"
    candidates = [factor for factor in factors if factor.contrast is kind]
    if not candidates:
        raise UserError(f"there is no {kind.value} factor, so {consequence}; add one with K = 2 or more")
    if all(factor.k < 2 for factor in candidates):
        listed = ", ".join(f"{factor.name} (K = {factor.k})" for factor in candidates)
        raise UserError(
            f"K is below 2 for every {kind.value} factor: {listed}; then {consequence}. Set one of them to 2 or more"
        )


def _outer(rows: Columns, columns: Columns, name: str) -> Any:
    return rows[name][:, None] == columns[name][None, :]
