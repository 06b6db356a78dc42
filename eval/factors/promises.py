"""What a composition promises about each factor, and whether the embeddings keep it.

Distinctive: embeddings separate the factor's values. Invariant: they ignore them. A promise counts as kept only if
the 95 % intervals show it, so with few videos a promise may count as broken because the intervals are wide.
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

DISTANCE, DISTANCE_RANDOM = "distance", "distance of random weights"
DISTANCE_MORE = "distance minus random weights"
"""See `probing.relative_distance`; not measured for the factor video."""
ACCURACY, ACCURACY_RANDOM = "accuracy", "accuracy of random weights"
"""See `probing.probe_accuracy`; for the factor video, `probing.video_accuracy`."""
Metrics = Mapping[str, Metric]
_HIGH = 90.0
"""Accuracy from which a factor counts as encoded even if random weights encode it as well, percent."""
_WITHIN = ("time_shift", "augmentation")
"""Factors whose values in training have no meaning across videos (a time, the number of a draw)."""
RULES = (
    f"distinctive is kept if accuracy is above chance and above random weights (or at least {_HIGH:.0f} %). For "
    f"{' and '.join(_WITHIN)}, whose values have a meaning only within a video, a larger distance than with random "
    "weights is enough; for video, if time_shift is distinctive, accuracy above chance is enough",
    "invariant is kept if the distance is below that of random weights and below 1, and accuracy is neither above "
    f"random weights nor at least {_HIGH:.0f} %",
    "! marks a promise that the 95 % intervals on these videos do not show to be kept",
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


def check_promise(factor: str, contrasts: Mapping[str, Promise], metrics: Metrics) -> tuple[bool, str]:
    """Whether embeddings with these metrics keep a promise, and the evidence against it."""
    accuracy, random = metrics[ACCURACY], metrics[ACCURACY_RANDOM]
    _, more_accurate, _ = difference([accuracy], [random])
    accuracies = f"accuracy {accuracy.value:.1f} %, random weights {random.value:.1f} %"
    distance, more = metrics.get(DISTANCE), metrics.get(DISTANCE_MORE)
    distances = (
        f"distance {distance.value:.2f}, random weights {metrics[DISTANCE_RANDOM].value:.2f}" if distance else ""
    )
    if contrasts[factor] == "invariant":
        against = []
        if distance and more:
            if more.high >= 0:
                against.append(f"it moves features no less than with random weights ({distances})")
            elif distance.high >= 1:
                against.append(f"it moves features as far as another video ({distances})")
        if more_accurate > 0:
            against.append(f"a probe classifies it better than with random weights ({accuracies})")
        elif accuracy.low >= _HIGH:
            against.append(f"a probe classifies it ({accuracies})")
        return not against, " and ".join(against)
    if factor in _WITHIN and more:
        if more.low > 0:
            return True, ""
        accuracies += f", {distances}"
    if accuracy.low <= accuracy.chance:
        return False, f"a probe does not classify it ({accuracies}, chance {accuracy.chance:.1f})"
    enough = factor == "video" and contrasts.get("time_shift") == "distinctive"  # its other times are negatives
    if enough or accuracy.low >= _HIGH or more_accurate > 0:
        return True, ""
    return False, f"a probe classifies it no better than with random weights ({accuracies})"
