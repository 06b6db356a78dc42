"""Settings on the command line, in groups with a heading each: one flat list of twenty options is not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import docstring_parser
import tyro

T = TypeVar("T")


class Options(Generic[T]):
    """What tyro parses for a dataclass: the same options by the same names and defaults, below its `headings`."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        headings: Mapping[str, Sequence[str]] = getattr(kind, "headings", {})
        self._groups = {title: names for title, names in headings.items() if names}
        self.type = _view(kind, headings)

    def of(self, settings: T) -> Any:
        """Settings as they are the defaults of a command line."""
        values = vars(settings)
        types = get_type_hints(self.type)
        own = {name: values[name] for name in (f.name for f in fields(self.type)) if name not in self._groups}
        return self.type(
            **own, **{title: types[title](**{n: values[n] for n in names}) for title, names in self._groups.items()}
        )

    def settings(self, parsed: Any) -> T:
        """What was parsed, as settings. Raises whatever their dataclass does."""
        flat = dict(vars(parsed))
        for title in self._groups:
            flat |= vars(flat.pop(title))
        return self._kind(**flat)


def _view(kind: Any, groups: Mapping[str, Sequence[str]]) -> Any:
    types, texts = get_type_hints(kind, include_extras=True), _descriptions(kind)
    of = {f.name: f for f in fields(kind)}

    def option(name: str) -> tuple[str, Any, Any]:
        said = tyro.conf.arg(help=texts[name], prefix_name=False)
        return name, Annotated[types[name], said], _default(of[name])

    grouped = {name for names in groups.values() for name in names}
    members: list[tuple[str, Any, Any]] = []
    for title, names in groups.items():
        if not names:  # the options of a nested dataclass
            members.append((title, types[title], _default(of[title])))
            continue
        part = make_dataclass(title, [option(name) for name in names], frozen=True, kw_only=True)
        members.append((title, part, field(default_factory=part) if _complete(part) else field()))
    for name in [name for name in of if name not in grouped and name not in groups]:
        nested = is_dataclass(types[name])  # its options have names and texts of their own
        members.append((name, types[name], _default(of[name])) if nested else option(name))
    view = make_dataclass(kind.__name__, members, frozen=True, kw_only=True)
    view.__doc__ = kind.__doc__
    return view


def _complete(part: Any) -> bool:
    return all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(part))


def _default(known: Field[Any]) -> Any:
    if known.default_factory is not MISSING:
        return field(default_factory=known.default_factory)
    return field() if known.default is MISSING else field(default=known.default)


def _descriptions(kind: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, its bases' too."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        said = docstring_parser.parse_from_object(base).params
        found |= {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in said}
    return found
