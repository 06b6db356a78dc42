"""A composition of factors, and the paper's algebra of them: contrast, weight, conditions, counts (3.1 and A.1).

`contrast` and `weight` take tables of factor values (name -> one entry per leaf) of NumPy arrays or torch tensors
alike. The column `leaf` numbers the leaves of the batch, so that T = T' iff the numbers agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from gdt.common.errors import UserError
from gdt.pipeline.factors import Contrast, Factor, Weight
from gdt.pipeline.leaves import MODALITIES

Table = Mapping[str, Any]
_MOST_LEAVES = 1 << 24
"""Of a batch: what would take terabytes is a slip of the keyboard."""


class Counts(NamedTuple):
    """What a batch of a composition holds (lemmas on counts, A.1.2)."""

    leaves: int
    """|T| = prod K_m."""
    positives: int
    """Pairs (T, T') with c = 1 and T != T'."""
    negatives_per_leaf: int
    """T'' with c(T, T'') = 0, for every T."""


@dataclass(frozen=True)
class Composition:
    """Factors in the order in which they are sampled; what a batch of them holds follows from them alone.

    Raises UserError, naming the factor to change, where no batch could meet the conditions of section 3.1.
    """

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        check(self.factors)

    def __str__(self) -> str:
        return " ".join(map(str, self.factors))

    @property
    def batch_size(self) -> int:
        """K of the first factor, the videos."""
        return self.factors[0].k

    @property
    def modalities(self) -> tuple[str, ...]:
        """Those that the leaves have."""
        found = {name for factor in self.factors for name in factor.transformation.modalities(factor.k)}
        return tuple(sorted(found, key=MODALITIES.index)) or MODALITIES[:1]

    @property
    def clips_per_video(self) -> int:
        """Leaves of one modality that a batch holds per video: the cost of a composition, to compare at equal cost."""
        return prod(factor.k for factor in self.factors[1:]) // len(self.modalities)

    @property
    def decoded_per_video(self) -> int:
        """Most clips that are decoded per video, each shared by the leaves that hold the same frames."""
        branches = decoded = 1
        for factor in self.factors[1:]:
            if not factor.transformation.modalities(factor.k):  # only one of the modalities is decoded
                branches *= factor.k
            if factor.transformation.selects_frames:
                # what is drawn anew in every branch differs from branch to branch, whatever those share until then
                decoded = decoded * factor.k if factor.transformation.takes_all(factor.k) else branches
        return decoded

    @property
    def reach(self) -> float:
        """How many times as long as the clip the stretch of video is that a leaf may take."""
        return prod(factor.transformation.reach(factor.k) for factor in self.factors)

    @property
    def starts_needed(self) -> int:
        """Start frames that a video must offer."""
        return max(factor.transformation.starts_needed(factor.k) for factor in self.factors)


def contrast(factors: Sequence[Factor], rows: Table, columns: Table) -> Any:
    """c(T, T') = prod_m c(t_m, t'_m) for T in `rows` [n] and T' in `columns` [n']: bool [n, n']."""
    equal = _outer(rows, columns, "leaf")
    result = equal | ~equal  # one everywhere, in the caller's array library
    for factor in factors:
        if factor.contrast is Contrast.DISTINCTIVE:
            result = result & _outer(rows, columns, factor.name)
    return result


def weight(factors: Sequence[Factor], rows: Table, columns: Table) -> Any:
    """w(T, T') = [T != T'] prod_m w(t_m, t'_m): bool [n, n']; cross-modal learning asks m != m'."""
    result = ~_outer(rows, columns, "leaf")
    for factor in factors:
        if factor.weight is Weight.DIFFERS:
            result = result & ~_outer(rows, columns, factor.name)
    return result


def counts(factors: Sequence[Factor]) -> Counts:
    """The lemmas' counts, from the K_m alone."""
    leaves = prod(factor.k for factor in factors)
    invariant = prod(factor.k for factor in factors if factor.contrast is Contrast.INVARIANT)
    return Counts(leaves, leaves * (invariant - 1), leaves - invariant)


def check(factors: Sequence[Factor]) -> None:
    """Raise UserError, naming the factor to change, unless every batch meets conditions (i)-(iii) of section 3.1."""
    names = [factor.name for factor in factors]
    for factor in factors:
        if names.count(factor.name) > 1:
            raise UserError(f"factor '{factor.name}' occurs twice; each may occur once")
        if prod(other.k for other in factors) > _MOST_LEAVES:
            raise UserError(
                f"a batch would have {prod(other.k for other in factors)} leaves, more than {_MOST_LEAVES}; lower a K"
            )
        if why := factor.transformation.refuses(factor.k):
            raise UserError(f"K of factor '{factor.name}' is {factor.k}; {why}")
        if factor.weight is Weight.DIFFERS and factor.contrast is Contrast.DISTINCTIVE:
            raise UserError(
                f"factor '{factor.name}' is distinctive and its weight keeps only pairs that differ in it, "
                "so no positive pair is left (condition i); make it invariant"
            )
        if factor.weight is Weight.DIFFERS and factor.k < 2:
            raise UserError(
                f"pairs must differ in factor '{factor.name}' but its K is {factor.k}, "
                "so no positive pair is left (condition i); set its K to 2 or more"
            )
    _need_order(factors)
    _need_two(factors, Contrast.INVARIANT, "every positive pair is trivial, T = T' (condition ii)")
    _need_two(factors, Contrast.DISTINCTIVE, "there is no negative T'' to tell apart (condition iii)")


def _need_order(factors: Sequence[Factor]) -> None:
    """The lemmas' counts assume that branches of an invariant factor agree in the distinctive factors after it."""
    before = ""
    for factor in factors:
        if factor.contrast is Contrast.INVARIANT:
            before = before or (factor.name if factor.k > 1 else "")
        elif before and not factor.transformation.takes_all(factor.k):
            raise UserError(
                f"distinctive factor '{factor.name}' is sampled anew in every branch of the invariant factor "
                f"'{before}', so the positive pairs of '{before}' would differ in it; put '{factor.name}' first, "
                "or sample all its values"
            )


def _need_two(factors: Sequence[Factor], kind: Contrast, consequence: str) -> None:
    candidates = [factor for factor in factors if factor.contrast is kind]
    if all(factor.k < 2 for factor in candidates):
        named = ", ".join(f"{factor.name} (K = {factor.k})" for factor in candidates) or "there is none"
        raise UserError(
            f"K is below 2 for every {kind.value} factor: {named}; then {consequence}. "
            f"Set K to 2 or more for one of them"
        )


def _outer(rows: Table, columns: Table, name: str) -> Any:
    return rows[name][:, None] == columns[name][None, :]
