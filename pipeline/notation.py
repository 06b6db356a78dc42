"""Compositions as text: `video:d:512 time_shift:d:2 modality:i:2:differs time_reversal:i:2 augmentation:i:1`.

A factor is name:contrast:K with the contrast d (distinctive) or i (invariant); `:differs` keeps only the pairs that
differ in it. Settings of the transformation follow the name in brackets: `speed(1,2,4):i:3`.
"""

import hashlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdt.common.errors import UserError, unknown
from gdt.pipeline import transformations
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight
from gdt.pipeline.transformations.augmentation import Augment, Augmentation
from gdt.pipeline.transformations.base import Transformation
from gdt.pipeline.transformations.video import Video

Transformations = Mapping[str, type[Transformation]]


def _defined_in(module: types.ModuleType) -> list[type[Transformation]]:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Transformation)]
    return [kind for kind in kinds if kind.__module__ == module.__name__ and not inspect.isabstract(kind)]


TRANSFORMATIONS: Transformations = {
    kind.name: kind
    for file in transformations.FILES
    for kind in _defined_in(importlib.import_module(f"gdt.pipeline.transformations.{file}"))
}
_FACTOR = re.compile(r"(?P<name>\w+)(\((?P<settings>[^()]*)\))?:(?P<contrast>[di])(:(?P<k>\d+))?(?P<weight>:differs)?")


def parse(
    text: str, batch_size: int, augmentation: Augmentation = Augmentation(), known: Transformations = TRANSFORMATIONS
) -> Composition:
    """Parse a composition; `video:d` without a K takes `batch_size`.

    Raises UserError, naming the factor, if the text is invalid or no batch can meet the paper's conditions.
    """
    factors = tuple(_factor(part, batch_size, augmentation, known) for part in text.split())
    if not factors or not isinstance(factors[0].transformation, Video):
        raise UserError(f"composition '{text}' does not begin with the factor video; put 'video:d' first")
    composition = Composition(factors)
    if not any(isinstance(factor.transformation, Augment) for factor in factors):
        raise UserError(f"'{text}' has no 'augmentation', which crops and normalises; add augmentation:i:1")
    return composition


def batch_size(text: str) -> int:
    """K of the factor video in a composition, 0 if it has none."""
    match = _FACTOR.fullmatch("".join(text.split()[:1]))
    return int(match["k"] or 0) if match and match["name"] == Video.name else 0


def without_batch_size(text: str) -> str:
    """A composition without the K of the factor video."""
    return re.sub(rf"^(\s*{Video.name}:[di]):\d+", r"\1", text)


def _factor(text: str, batch_size: int, augmentation: Augmentation, known: Transformations) -> Factor:
    match = _FACTOR.fullmatch(text)
    unreadable = UserError(
        f"cannot parse factor '{text}'; a factor is name:contrast:K, as in time_reversal:i:2, with the contrast d "
        "(distinctive) or i (invariant); ':differs' may follow, and a row of table 1 is a --preset"
    )
    if match is None:
        raise unreadable
    name, settings, contrast, k, weight = match.group("name", "settings", "contrast", "k", "weight")
    if name not in known:
        raise unknown("factor", name, known)
    kind = known[name]
    if kind is Video:
        if k is not None and int(k) != batch_size:
            raise UserError(
                f"factor '{text}' takes {k} videos and --batch-size is {batch_size}; "
                f"set --batch-size {k}, or write 'video:{contrast}'"
            )
        k = str(batch_size)
    if k is None:
        raise unreadable
    transformation = Augment(augmentation) if kind is Augment and settings is None else _create(kind, settings, text)
    how = Contrast.DISTINCTIVE if contrast == "d" else Contrast.INVARIANT
    return Factor(transformation, int(k), how, Weight.DIFFERS if weight else Weight.ANY)


def _create(kind: type[Transformation], settings: str | None, text: str) -> Transformation:
    """A transformation, with the comma-separated settings in brackets for its only parameter, of its default's type."""
    if settings is None:
        return kind()
    parameters = [*inspect.signature(kind).parameters.values()]
    if kind is Augment or len(parameters) != 1:
        raise UserError(f"'{kind.name}' in factor '{text}' takes no settings in brackets")
    try:
        return kind(_value(settings, parameters[0].default))  # type: ignore[call-arg]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"'{settings}' in factor '{text}' does not fit {kind.name}: {error}") from error


def _value(text: str, default: Any) -> Any:
    """The value that a text writes, of the type of a default. Raises ValueError, TypeError or KeyError."""
    if isinstance(default, tuple):
        return tuple(_value(part.strip(), default[0]) for part in text.split(","))
    return {"True": True, "False": False}[text] if isinstance(default, bool) else type(default)(text)


def read_transformations(path: Path | None) -> tuple[Transformations, str]:
    """The built-in transformations with those of a Python file, which is run, and the file's checksum.

    Only for a file that the user has given to this process: one that a checkpoint names is never run. Without a file,
    the checksum is empty. Raises UserError if it cannot be read, or a name is taken; other errors are Python's own.
    """
    if path is None:
        return TRANSFORMATIONS, ""
    try:
        code = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the factors in {path} ({error.strerror}); give the path of your file") from error
    return {**TRANSFORMATIONS, **_defined_by(path, code)}, checksum_of(code)


def checksum_of(code: bytes) -> str:
    """The checksum of the text of a Python file: 16 hex digits."""
    return hashlib.sha256(code).hexdigest()[:16]


def _defined_by(path: Path, code: bytes) -> Transformations:
    module = types.ModuleType(f"_factors_of_{path.stem}_{checksum_of(code)}")
    sys.modules[module.__name__] = module  # dataclasses look up annotations there
    exec(compile(code, path, "exec", dont_inherit=True), module.__dict__)
    defined = {kind.name: kind for kind in _defined_in(module)}
    taken = defined.keys() & {*TRANSFORMATIONS, "leaf", "usable"}  # the last two are columns of the factor table, too
    if taken:
        raise UserError(f"{path} defines '{min(taken)}', a name that is taken; choose another name")
    for kind in defined.values():
        for parameter in inspect.signature(kind).parameters.values():
            starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not starred:
                raise UserError(f"{kind.__name__} in {path} needs its {parameter.name}; give every parameter a default")
    return defined
