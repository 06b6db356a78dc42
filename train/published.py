"""The loss of the published release, which compares each leaf with different leaves than equation 1 does.

The release embeds each branch of the tree (a time shift in one direction of time) in a separate pass. It compares a
leaf with one key: the other modality of the same video, in the same branch, or in the other branch if a factor is
invariant. The denominator holds the key's branch for the videos on the same GPU; for those on other GPUs, it holds
several branches, some of them several times. Does not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight

_FACTORS = ("video", "time_shift", "modality", "time_reversal", "augmentation")
_PAIRS = {"time_reversal": ((0, 2), (1, 3)), "time_shift": ((0, 1), (2, 3))}
"""Branches that differ in one factor only; branch = shift + 2 * direction."""


def videos_per_gpu(factors: Sequence[Factor]) -> int:
    """How many consecutive videos of a batch count as one GPU's, whatever the real number of GPUs.

    As in the release's scripts: 8 in `pretrain_gdt_k400.sh`, 12 with text (`pretrain_gdt_ht100m.sh`).
    """
    return 12 if "text" in Composition(tuple(factors)).modalities else 8


class Comparison(NamedTuple):
    """Terms of the loss, one for each leaf of a branch: -log of the key's share of the denominator."""

    branch: int
    """Branch of the leaves."""
    key: int
    """Branch of their keys."""
    near: Mapping[int, int]
    """Number of times each branch is in the denominator, for videos on the same GPU."""
    far: Mapping[int, int]
    """The same for videos on other GPUs."""


class Position(NamedTuple):
    """Positions of n leaves in the tree: int64 [n] each."""

    video: Any
    """Number of the video in the batch."""
    branch: Any


def comparisons(factors: Sequence[Factor]) -> list[Comparison]:
    """All comparisons, whose terms have equal weight. Raises UserError if the release has no loss for these factors."""
    contrasts = _contrasts(factors)
    if not contrasts:
        return [Comparison(0, 0, {0: 1}, {0: 1})]
    # an invariant factor is first compared within a branch, as if it had one value
    passes: list[tuple[Contrast | None, tuple[int, int]]] = [
        (None, _PAIRS[name][0]) for name, contrast in contrasts.items() if contrast is Contrast.INVARIANT
    ]
    passes += [(contrast, pair) for name, contrast in contrasts.items() for pair in _PAIRS[name][: len(contrasts)]]
    gathered = {branch: Counter([branch]) for branch in range(4)}
    found = []
    for contrast, (first, second) in passes:
        crossed, hard = contrast is Contrast.INVARIANT, contrast is Contrast.DISTINCTIVE
        # the release extends its lists of other GPUs' leaves in place, so that later passes count some twice
        longer, added = (second, first) if crossed else (first, second)
        gathered[longer] = gathered[longer] + gathered[added]
        for branch, other in ((first, second), (second, first)):
            key = other if crossed else branch
            near = {key: 1} | ({other: 1} if hard else {})
            found.append(Comparison(branch, key, near, dict(gathered[longer])))
    return found


def positions(factors: Sequence[Factor], table: Mapping[str, Any]) -> Position:
    """Positions of the leaves of a factor table."""
    branch = 0 * table["leaf"]
    after = prod(factor.k for factor in factors)
    for factor in factors:
        after //= factor.k
        index = table["leaf"] // after % factor.k
        branch = branch + {"time_shift": 1, "time_reversal": 2}.get(factor.name, 0) * index
    return Position(table["leaf"] // prod(factor.k for factor in factors[1:]), branch)


def _contrasts(factors: Sequence[Factor]) -> dict[str, Contrast]:
    """Contrasts of the factors in `_PAIRS` that have two values. Raises UserError as `comparisons`."""
    by_name = {factor.name: factor for factor in factors}
    names, modality = [factor.name for factor in factors], by_name.get("modality")
    known = (
        names[0] == "video" and factors[0].contrast is Contrast.DISTINCTIVE and set(names) <= {*_FACTORS}
        # video and audio of a clip start at the same time
        and "modality" not in names[: names.index("time_shift") if "time_shift" in names else 0]
        and modality is not None and (modality.k, modality.weight) == (2, Weight.DIFFERS)
        and all(by_name[name].k <= (1 if name == "augmentation" else 2) for name in names[1:])
        and all(factor.weight is Weight.ANY for factor in factors if factor is not modality)
    )  # fmt: skip
    if not known:
        raise UserError(
            f"--loss published: the release has no loss for '{Composition(tuple(factors))}'; use presets 1 to 9, e to "
            "m or text-b to text-g, or --loss paper"
        )
    return {name: by_name[name].contrast for name in _PAIRS if name in by_name and by_name[name].k == 2}
