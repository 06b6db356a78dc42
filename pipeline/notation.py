"""Compositions as text: `video:d:512 time_shift:d:2 modality:i:2:differs time_reversal:i:2 augmentation:i:1`.

A factor is name:contrast:K, the contrast d (distinctive) or i (invariant), and `:differs` where only pairs count that
differ in it. Brackets after the name set up the transformation: `speed(1,2,4):i:3`, `modality(video,text):i:2:differs`.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pipeline.composition import Composition
from pipeline.errors import UserError, first_line
from pipeline.factors import Contrast, Factor, Weight
from pipeline.transformations.augmentation import Augment, Augmentation
from pipeline.transformations.base import Transformation
from pipeline.transformations.modality import Modality
from pipeline.transformations.order import Order
from pipeline.transformations.rotation import Rotation
from pipeline.transformations.speed import Speed
from pipeline.transformations.time_reversal import TimeReversal
from pipeline.transformations.time_shift import TimeShift
from pipeline.transformations.video import Video

Transformations = Mapping[str, type[Transformation]]
TRANSFORMATIONS: Transformations = {
    kind.name: kind for kind in (Video, TimeShift, Modality, TimeReversal, Augment, Speed, Order, Rotation)
}
_CONTRASTS = {contrast.value[0]: contrast for contrast in Contrast}
_FACTOR = re.compile(r"(?P<name>\w+)(\((?P<settings>[^()]*)\))?:(?P<contrast>\w+)(:(?P<k>\d+))?(:(?P<weight>\w+))?")
_HOW = "a factor is name:contrast:K, as in time_reversal:i:2, or name:contrast:K:differs"


def parse(
    text: str,
    videos_per_batch: int,
    augmentation: Augmentation = Augmentation(),
    known: Transformations = TRANSFORMATIONS,
) -> Composition:
    """The composition that a text stands for. `video:d` without a K takes `videos_per_batch`.

    Raises UserError that names the factor where the text is none, or no batch could meet the conditions.
    """
    factors = tuple(_factor(part, videos_per_batch, augmentation, known) for part in text.split())
    if not factors or not isinstance(factors[0].transformation, Video):
        raise UserError(f"a composition begins with its videos, as in 'video:d'; '{text}' does not")
    composition = Composition(factors)
    if not any(isinstance(factor.transformation, Augment) for factor in factors):
        raise UserError(f"'{text}' has no 'augmentation', which crops and normalises; add augmentation:i:1")
    return composition


def _factor(text: str, videos_per_batch: int, augmentation: Augmentation, known: Transformations) -> Factor:
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise UserError(f"factor '{text}' cannot be read; {_HOW}")
    name, settings, contrast, k, weight = match.group("name", "settings", "contrast", "k", "weight")
    if name not in known:
        raise UserError(f"there is no factor '{name}'; there are {', '.join(known)}, and --factors-from adds your own")
    if contrast not in _CONTRASTS:
        raise UserError(f"factor '{text}' is neither distinctive (d) nor invariant (i); {_HOW}")
    if weight not in (None, *(w.value for w in Weight)):
        raise UserError(f"factor '{text}' has the weight '{weight}'; leave it out or write 'differs'")
    if known[name] is Video:
        if k is not None and int(k) != videos_per_batch:
            raise UserError(
                f"factor '{text}' takes {k} videos and --videos-per-batch is {videos_per_batch}; "
                f"set --videos-per-batch {k}, or write 'video:{contrast}'"
            )
        k = str(videos_per_batch)
    if k is None:
        raise UserError(f"factor '{text}' has no K; {_HOW}")
    transformation = (
        Augment(augmentation) if known[name] is Augment else _set_up(known[name], (settings or "").strip(), text)
    )
    return Factor(transformation, int(k), _CONTRASTS[contrast], Weight(weight or "any"))


def _set_up(kind: type[Transformation], settings: str, text: str) -> Transformation:
    if not settings:
        return kind()
    parts = [part.strip() for part in settings.split(",")]
    try:
        parameters = list(inspect.signature(kind).parameters.values())
        if len(parameters) != 1:
            raise ValueError("it takes none")
        default = parameters[0].default
        if isinstance(default, tuple):
            return kind(tuple(type(default[0])(part) for part in parts))  # type: ignore[call-arg]
        if len(parts) > 1:
            raise ValueError("it takes one")
        return kind(type(default)(parts[0]))  # type: ignore[call-arg]
    except ValueError as error:
        raise UserError(f"what is in the brackets of factor '{text}' cannot be read ({error})") from error


@lru_cache(maxsize=4)
def with_own(path: Path) -> Transformations:
    """The transformations there are and those of a Python file. Raises UserError, with its line, where it is broken."""
    if not path.is_file():
        raise UserError(f"there is no file {path} with factors (--factors-from)")
    space: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(path.read_bytes(), path, "exec"), space)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(sys.exc_info()[2]) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        raise UserError(f"{path}, line {line}: {type(error).__name__}: {first_line(error)}") from error
    own = {
        kind.name: kind
        for kind in space.values()
        if isinstance(kind, type) and issubclass(kind, Transformation) and kind.__module__ == path.stem
        and not inspect.isabstract(kind)
    }  # fmt: skip
    if not own:
        raise UserError(f"{path} defines no transformation: no class that has a Transformation's or a Choice's methods")
    if taken := own.keys() & TRANSFORMATIONS.keys():
        raise UserError(f"{path} defines '{min(taken)}', which there is already; give it another name")
    return {**TRANSFORMATIONS, **own}


def listing(known: Transformations = TRANSFORMATIONS) -> str:
    """Every factor with its first sentence and its values."""
    lines = []
    for name, kind in known.items():
        says = (inspect.getdoc(kind) or "").split("\n")[0]
        lines.append(f"{name:14}  {says}")
    return "\n".join([*lines, "", _HOW])
