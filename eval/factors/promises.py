"""What a composition promises about each factor, and whether the embeddings keep it.

Distinctive: embeddings separate the factor's values. Invariant: they ignore them. A promise is kept or broken only if
the 95 % intervals show it; otherwise there are too few videos to tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gdt.common.errors import UserError
from gdt.eval.metrics import Metric, difference
from gdt.eval.record import Promise
from gdt.eval.show_tree import toy
from gdt.pipeline.composition import Composition, Contrast, contrast, weight
from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.transformations.base import Transformation
from gdt.train.checkpoint import Trained

DISTANCE, DISTANCE_RANDOM = "distance", "distance of random weights"
DISTANCE_MORE = "distance minus random weights"
"""See `probing.relative_distance`; not measured for the factor video."""
ACCURACY, ACCURACY_RANDOM = "accuracy", "accuracy of random weights"
"""See `probing.probe_accuracy`; for the factor video, `probing.video_accuracy`."""
Metrics = Mapping[str, Metric]
_HIGH = 90.0
"""Accuracy from which a factor counts as encoded even if random weights encode it as well, percent."""
_SMALL = 10.0
"""Smaller gains count as none; in points of accuracy, or percent of the distance that is compared with."""
_WITHIN = ("time_shift", "augmentation")
"""Factors whose values have a meaning only within a video (a time, the number of a draw)."""
RULES = (
    "promised: that embeddings encode a distinctive factor and ignore an invariant one",
    f"distinctive is kept if accuracy is above chance and above random weights (or at least {_HIGH:.0f} %). For "
    f"{' and '.join(_WITHIN)}, whose values have a meaning only within a video, a larger distance than with random "
    "weights is enough; for video, if time_shift is distinctive, accuracy above chance is enough",
    "invariant is kept if the distance is below that of random weights and below 1, and accuracy is neither above "
    f"random weights nor at least {_HIGH:.0f} %",
    f"! broken, ? too few videos to tell: the 95 % intervals neither show that it is kept nor exclude it; gains below "
    f"{_SMALL:.0f} points or {_SMALL:.0f} % of a distance count as none",
)


@dataclass(frozen=True)
class Promises:
    """What a model's composition promises."""

    factors: tuple[Transformation, ...]
    """All known factors: those of the composition with their settings, the others with defaults."""
    contrasts: dict[str, Promise]
    """By factor; factors that are not varied are missing."""
    composition: str
    """Empty if not known."""
    reason: str = ""
    """Why it is not known."""

    def of(self, factor: str) -> Promise:
        return self.contrasts.get(factor, "not varied" if self.composition else "not known")


def promises_of(trained: Trained) -> Promises:
    """The promises of the composition that a checkpoint was trained with."""
    plain = tuple(kind() for kind in TRANSFORMATIONS.values())
    if trained.foreign is not None:
        return Promises(
            plain, {}, "", f"{trained.foreign.kind} do not record their composition, so nothing is promised"
        )
    settings = trained.settings
    try:
        if settings.factors_from and settings.resolved().factors_digest != settings.factors_digest:
            raise UserError(f"{settings.factors_from} has changed since the training")
        composition = settings.composition
        known = {name: kind() for name, kind in settings.transformations.items()}
    except UserError as error:  # the file of custom transformations is missing or changed
        reason = f"the composition cannot be rebuilt, so nothing is promised: {error}"
        return Promises(plain, {}, "", reason)
    varied = {factor.name: factor.transformation for factor in composition.factors}
    return Promises(tuple((known | varied).values()), promised_contrasts(composition), str(composition))


def promised_contrasts(composition: Composition) -> dict[str, Promise]:
    """What the loss demands of each varied factor.

    Distinctive if the composition says so and K > 1. Any other factor is invariant if leaves that differ in it attract
    each other; also at K = 1, if every branch draws it independently, as for augmentations.
    """
    first, *rest = composition.factors
    few = Composition((replace(first, k=2), *rest))  # the relations within a video do not depend on the others
    columns = toy(few).plan(0, 0).columns
    attracted = contrast(few.factors, columns, columns) & weight(few.factors, columns, columns)
    contrasts: dict[str, Promise] = {}
    for factor in few.factors:
        values = columns[factor.name]
        if factor.contrast is Contrast.DISTINCTIVE:
            contrasts |= {factor.name: "distinctive"} if factor.k > 1 else {}
        elif (attracted & (values[:, None] != values)).any():
            contrasts[factor.name] = "invariant"
    return contrasts


class Verdict(NamedTuple):
    """Whether a promise, or a part of it, is kept."""

    kept: bool | None
    """None if there are too few videos to tell."""
    needed: float = 0.0
    """If so, the number of videos that would do."""
    against: str = ""
    """Evidence against it; the measured values if there are too few videos to tell."""


def check_promise(factor: str, contrasts: Mapping[str, Promise], metrics: Metrics, videos: int) -> Verdict:
    """Whether embeddings keep a promise, given metrics on `videos` videos."""
    accuracy, random = metrics[ACCURACY], metrics[ACCURACY_RANDOM]
    gain = difference([accuracy], [random])
    accuracies = f"accuracy {accuracy.value:.1f} %, random weights {random.value:.1f} %"
    distance, more = metrics.get(DISTANCE), metrics.get(DISTANCE_MORE)
    distances = (
        f"distance {distance.value:.2f}, random weights {metrics[DISTANCE_RANDOM].value:.2f}" if distance else ""
    )
    small = _SMALL / 100 * metrics[DISTANCE_RANDOM].value if distance else 0.0
    if contrasts[factor] == "invariant":
        parts = []
        if distance and more:
            moves = f"it moves features no less than with random weights ({distances})"
            parts.append(_exceeds(_below(0, more), small, videos, moves))
            far = f"it moves features as far as another video ({distances})"
            parts.append(_exceeds(_below(1, distance), _SMALL / 100, videos, far))
        if gain[1] > 0:
            parts.append(Verdict(False, 0, f"a probe classifies it better than with random weights ({accuracies})"))
        else:
            parts.append(_exceeds(_below(_HIGH, accuracy), 0.0, videos, f"a probe classifies it ({accuracies})"))
        return _with_values(_all(parts), distances or accuracies)
    more_distant = []
    if factor in _WITHIN and more:
        more_distant.append(_exceeds(_above(0, more), small, videos))
        accuracies += f", {distances}"
    none = f"a probe does not classify it ({accuracies}, chance {accuracy.chance:.1f})"
    parts = [_exceeds(_above(accuracy.chance, accuracy), _SMALL, videos, none)]
    if not (factor == "video" and contrasts.get("time_shift") == "distinctive"):  # its other times are negatives
        no_better = f"a probe classifies it no better than with random weights ({accuracies})"
        better = _exceeds(gain, _SMALL, videos, no_better)
        parts.append(_any([better, _exceeds(_above(_HIGH, accuracy), 0.0, videos)]))
    return _with_values(_any([_all(parts), *more_distant]), f"{accuracies}, chance {accuracy.chance:.1f}")


def _above(number: float, metric: Metric) -> tuple[float, float, float]:
    """How far a metric is above a number, with its 95 % interval."""
    return metric.value - number, metric.low - number, metric.high - number


def _below(number: float, metric: Metric) -> tuple[float, float, float]:
    """How far a metric is below a number, with its 95 % interval."""
    return number - metric.value, number - metric.high, number - metric.low


def _with_values(verdict: Verdict, values: str) -> Verdict:
    """A verdict with the measured values as its text if there are too few videos to tell."""
    return verdict._replace(against=values) if verdict.kept is None else verdict


def round_up(number: float) -> int:
    """A number rounded up to one significant digit, as 300 for 230."""
    digit = 10 ** max(0, len(str(int(number))) - 1)
    return math.ceil(number / digit) * digit


def _exceeds(gain: tuple[float, float, float], least: float, videos: int, against: str = "") -> Verdict:
    """Whether a gain is above 0, by its 95 % interval; one below `least` counts as none."""
    value, low, high = gain
    if low > 0:
        return Verdict(True)
    if high <= least:
        return Verdict(False, 0.0, against)
    width, gap = (value - low, value) if value >= least / 2 else (high - value, least - value)
    return Verdict(None, videos * (width / max(gap, width / 100)) ** 2)


def _all(parts: Sequence[Verdict]) -> Verdict:
    """Whether every part is kept, with the evidence of all that are not."""
    for kept in (False, None):
        if found := [part for part in parts if part.kept is kept]:
            texts = (part.against for part in found if part.against)
            return Verdict(kept, max(part.needed for part in found), " and ".join(texts))
    return Verdict(True)


def _any(parts: Sequence[Verdict]) -> Verdict:
    """Whether at least one part is kept, with the evidence against the first."""
    for kept in (True, None):
        if found := [part for part in parts if part.kept is kept]:
            return Verdict(kept, min(part.needed for part in found))
    return parts[0]
