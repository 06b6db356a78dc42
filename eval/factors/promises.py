"""What a composition promises of each factor, and whether what was seen keeps it.

A promise is of the embeddings, which the loss compares. It counts as kept where the 95 % intervals show it, on the
videos there were; so one that is not kept may also be one for which these were too few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, difference
from gdt.eval.record import Promise
from gdt.eval.show_tree import toy
from gdt.pipeline.composition import Composition, Contrast, contrast, weight
from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.transformations.base import Transformation
from gdt.train.checkpoint import Trained

MOVES, MOVES_RANDOM, MOVES_MORE = "moves", "moves of random weights", "moves more than random weights"
"""See `probing.moved`; not of the video itself, which it is a multiple of."""
TOLD, TOLD_RANDOM = "told", "told of random weights"
"""See `probing.told`; of the video, `probing.recognised`."""
Seen = Mapping[str, Metric]
"""What was measured in one place, by these names."""
_PLAIN = 90.0
"""Percent from which on a value is told plainly, whatever random weights do, which may tell it, too."""
_WITHIN = ("time_shift", "augmentation")
"""Factors whose values have no meaning across videos in training: a second, a running number."""
RULES = (
    "distinctive is kept where the probe's interval lies above chance, and it tells more than from random weights, or "
    f"{_PLAIN:.0f} % and more; of {' and '.join(_WITHIN)}, whose values mean something within a video only, also where "
    "they move more than with random weights; of video, where time_shift is distinctive, above chance is enough",
    "invariant is kept where features move less than those of random weights, and less than between videos, and the "
    f"probe tells no more than from random weights, and not in {_PLAIN:.0f} % and more",
    "a ! says that these videos do not show it kept, by the 95 % intervals of the numbers or of their difference",
)  # fmt: skip


@dataclass(frozen=True)
class Promises:
    """Of a model."""

    factors: tuple[Transformation, ...]
    """All there are: those of the composition as it sets them up, the others as they are by default."""
    contrasts: dict[str, Promise]
    """By the factor's name; `not known` is not in it, and whatever is not in it is not varied, where it is `known`."""
    composition: str
    """In words; empty where it is not known."""
    why: str = ""
    """Why it is not known."""

    def of(self, factor: str) -> Promise:
        return self.contrasts.get(factor, "not varied" if self.composition else "not known")


def promises(trained: Trained) -> Promises:
    """What the composition says that a checkpoint was trained with."""
    plain = {name: kind() for name, kind in TRANSFORMATIONS.items()}
    if trained.foreign is not None:
        why = f"{trained.foreign.kind} do not say with which composition they were trained, so nothing is promised"
        return Promises(tuple(plain.values()), {}, "", why)
    settings = trained.settings
    try:
        if settings.factors_from and settings.resolved().factors_digest != settings.factors_digest:
            raise UserError(f"{settings.factors_from} has changed since the training")
        composition = settings.composition
        known = {name: kind() for name, kind in settings.transformations.items()}
    except UserError as error:  # the file of somebody's own factors is gone, or another
        why = f"the factors of the training cannot be made again, so nothing is promised: {error}"
        return Promises(tuple(plain.values()), {}, "", why)
    varied = {factor.name: factor for factor in composition.factors}
    factors = tuple(varied[name].transformation if name in varied else kind for name, kind in known.items())
    return Promises(factors, contrasts_of(composition), str(composition))


def contrasts_of(composition: Composition) -> dict[str, Promise]:
    """What the loss asks of each factor that it sees varied: of distinctive ones with K > 1, to tell values apart;
    of others, that leaves attract each other that differ in them, which they may with K = 1, too, where a factor is
    drawn anew in every branch, as augmentations are.
    """
    first, *rest = composition.factors
    few = Composition((replace(first, k=2), *rest))  # no leaf of one video depends on how many others there are
    columns = toy(few).plan(0, 0).columns
    attracted = contrast(few.factors, columns, columns) & weight(few.factors, columns, columns)
    found: dict[str, Promise] = {}
    for factor in few.factors:
        values = columns[factor.name]
        if factor.contrast is Contrast.DISTINCTIVE:
            found |= {factor.name: "distinctive"} if factor.k > 1 else {}
        elif (attracted & (values[:, None] != values)).any():
            found[factor.name] = "invariant"
    return found


def kept(factor: str, contrasts: Mapping[str, Promise], seen: Seen) -> tuple[bool, str]:
    """Whether a promise is kept by what embeddings show, and what speaks against it, in words."""
    told, told_random = seen[TOLD], seen[TOLD_RANDOM]
    _, more_low, _ = difference([told], [told_random])
    beside = f"{told.value:.1f} % told, {told_random.value:.1f} % from random weights"
    moves, more = seen.get(MOVES), seen.get(MOVES_MORE)
    moving = f"moves {moves.value:.2f}, {seen[MOVES_RANDOM].value:.2f} with random weights" if moves else ""
    if contrasts[factor] == "invariant":
        against = []
        if moves and more:
            if more.high >= 0:
                against.append(f"it does not move less than random weights do ({moving})")
            elif moves.high >= 1:
                against.append(f"it moves as far as to another video ({moving})")
        if more_low > 0:
            against.append(f"a probe tells it better than from random weights ({beside})")
        elif told.low >= _PLAIN:
            against.append(f"a probe tells it plainly ({beside})")
        return not against, " and ".join(against)
    if factor in _WITHIN and more:
        if more.low > 0:
            return True, ""
        beside += f", {moving}"
    if told.low <= told.chance:
        return False, f"it cannot be told ({beside}, chance {told.chance:.1f})"
    enough = factor == "video" and contrasts.get("time_shift") == "distinctive"  # other times of it are negatives
    if enough or told.low >= _PLAIN or more_low > 0:
        return True, ""
    return False, f"it is told no better than from random weights ({beside})"
