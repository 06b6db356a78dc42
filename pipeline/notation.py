"""Compositions as text: `video:d:512 time_shift:d:2 modality:i:2:differs time_reversal:i:2 augmentation:i:1`.

A factor is name:contrast:K, the contrast d (distinctive) or i (invariant), and `:differs` where only pairs count that
differ in it. Brackets after the name set up the transformation: `speed(1,2,4):i:3`, `modality(video,text):i:2:differs`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from gdt.common.errors import UserError, first_line
from gdt.pipeline import transformations
from gdt.pipeline.composition import Composition
from gdt.pipeline.factors import Contrast, Factor, Weight
from gdt.pipeline.transformations.augmentation import Augment, Augmentation
from gdt.pipeline.transformations.base import Choice, Transformation
from gdt.pipeline.transformations.video import Video

Transformations = Mapping[str, type[Transformation]]


def _defined_in(module: types.ModuleType) -> list[type[Transformation]]:
    """The transformations that a module defines."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Transformation)]
    return [kind for kind in kinds if kind.__module__ == module.__name__ and not inspect.isabstract(kind)]


TRANSFORMATIONS: Transformations = {
    kind.name: kind
    for file in transformations.FILES
    for kind in _defined_in(importlib.import_module(f"gdt.pipeline.transformations.{file}"))
}
_CONTRASTS = {contrast.value[0]: contrast for contrast in Contrast}
_FACTOR = re.compile(r"(?P<name>\w+)(\((?P<settings>[^()]*)\))?:(?P<contrast>\w+)(:(?P<k>\d+))?(:(?P<weight>\w+))?")
_HOW = "a factor is name:contrast:K, as in time_reversal:i:2, or name:contrast:K:differs"


def parse(
    text: str,
    batch_size: int,
    augmentation: Augmentation = Augmentation(),
    known: Transformations = TRANSFORMATIONS,
) -> Composition:
    """The composition that a text stands for. `video:d` without a K takes `batch_size`.

    Raises UserError that names the factor where the text is none, or no batch could meet the conditions.
    """
    factors = tuple(_factor(part, batch_size, augmentation, known) for part in text.split())
    if not factors or not isinstance(factors[0].transformation, Video):
        raise UserError(f"a composition begins with its videos, as in 'video:d'; '{text}' does not")
    composition = Composition(factors)
    if not any(isinstance(factor.transformation, Augment) for factor in factors):
        raise UserError(f"'{text}' has no 'augmentation', which crops and normalises; add augmentation:i:1")
    return composition


def _factor(text: str, batch_size: int, augmentation: Augmentation, known: Transformations) -> Factor:
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
        if k is not None and int(k) != batch_size:
            raise UserError(
                f"factor '{text}' takes {k} videos and --batch-size is {batch_size}; "
                f"set --batch-size {k}, or write 'video:{contrast}'"
            )
        k = str(batch_size)
    if k is None:
        raise UserError(f"factor '{text}' has no K; {_HOW}")
    transformation = (
        Augment(augmentation) if known[name] is Augment and settings is None else _set_up(known[name], settings, text)
    )
    return Factor(transformation, int(k), _CONTRASTS[contrast], Weight(weight or "any"))


def _set_up(kind: type[Transformation], settings: str | None, text: str) -> Transformation:
    if settings is None:
        return kind()
    parts = [part.strip() for part in settings.split(",")]
    try:
        parameters = list(inspect.signature(kind).parameters.values())
        if len(parameters) != 1 or kind is Augment:
            raise ValueError("it takes none")
        default = parameters[0].default
        if isinstance(default, tuple):
            return kind(tuple(type(default[0])(part) for part in parts))  # type: ignore[call-arg]
        if len(parts) > 1:
            raise ValueError("it takes one")
        return kind(type(default)(parts[0]))  # type: ignore[call-arg]
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(f"what is in the brackets of factor '{text}' cannot be read ({error})") from error


def load_factors(path: Path) -> Transformations:
    """The transformations there are and those of a Python file. Raises UserError, with its line, where it is broken."""
    return compile_factors(path, read_factors(path))


def read_factors(path: Path) -> bytes:
    """What a file of factors says. Raises UserError where there is none."""
    if not path.is_file():
        raise UserError(f"there is no file {path} with factors (--factors-from)")
    return path.read_bytes()


@lru_cache(maxsize=4)
def compile_factors(path: Path, code: bytes) -> Transformations:
    """The same of what was read from the file."""
    module = types.ModuleType(_OWN + path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    try:
        exec(compile(code, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _located(path, error) from error
    own = {_name_of(kind, path): kind for kind in _defined_in(module)}
    if not own:
        raise UserError(f"{path} defines no transformation: no class that has a Transformation's or a Choice's methods")
    if taken := own.keys() & (TRANSFORMATIONS.keys() | _COLUMNS):
        raise UserError(f"{path} defines '{min(taken)}', which there is already; give it another name")
    return {**TRANSFORMATIONS, **own}


def _located(path: Path, error: BaseException) -> UserError:
    """What went wrong in a file of the user's, with its line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return UserError(f"{path}, line {line}: {type(error).__name__}: {first_line(error)}")


@contextlib.contextmanager
def report_custom_errors(transformation: Transformation) -> Iterator[None]:
    """While this lasts, an error of a transformation from a file of the user's is one sentence with its line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        module = sys.modules.get(type(transformation).__module__)
        if module is None or not module.__name__.startswith(_OWN):
            raise
        raise _located(Path(str(module.__file__)), error) from error


_OWN = "_factors_of_"
_COLUMNS = {"leaf", "usable"}
"""Of the factor table, beside those of the factors."""


def _name_of(kind: type[Transformation], path: Path) -> str:
    """The name of a transformation of the user's. Raises UserError where it cannot be one of a factor."""
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError(
            f'{path}: class {kind.__name__} needs a name, one word of letters, digits and _: name = "freeze"'
        )
    try:
        made = kind()
        if isinstance(made, Choice):
            len(made.values)
    except Exception as error:
        raise UserError(
            f"{path}: class {kind.__name__} cannot be made without arguments, or lacks the values of a Choice "
            f"({type(error).__name__}: {first_line(error)}); give its settings defaults"
        ) from error
    return name


def listing(known: Transformations = TRANSFORMATIONS) -> str:
    """Every factor with the first sentence of what it does."""
    lines = []
    for name, kind in known.items():
        says = (inspect.getdoc(kind) or "").split("\n")[0]
        lines.append(f"{name:14}  {says}")
    return "\n".join([*lines, "", _HOW])
