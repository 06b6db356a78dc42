"""Dataclasses as JSON and back: nested ones, paths, literals, tuples, named tuples, dicts whose keys are numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_SCALARS: dict[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,), Path: (str,)}
"""What JSON holds for a value of each type."""


def to_json(values: Any, indent: int | None = None) -> str:
    """A dataclass, or a list of some, as JSON; paths become text, tuples lists, numbers that are keys text."""
    plain = [asdict(value) for value in values] if isinstance(values, list) else asdict(values)
    return json.dumps(plain, indent=indent, default=str)


def rebuilt(kind: type[T], values: Any, missing: Mapping[str, Any] | None = None) -> T:
    """The dataclass whose JSON, once parsed, is `values`.

    A field that `values` does not hold takes its value from `missing`, by its dotted name (`clip.size`), and never its
    default, which may have changed since. Raises ValueError that names the fields where one is missing, unknown or of
    another type, and whatever the dataclasses raise.
    """
    instance: T = _build(kind, values, "", missing or {})
    return instance


def _build(kind: Any, value: Any, name: str, missing: Mapping[str, Any]) -> Any:
    if is_dataclass(kind):
        return _dataclass(kind, value, name, missing)
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # of a type and None
        (some,) = (option for option in arguments if option is not NoneType)
        return None if value is None else _build(some, value, name, missing)
    if origin is Literal:
        _require(value in arguments, name, value, f"one of {', '.join(map(str, arguments))}")
        return value
    if origin is dict:
        return _dict(arguments, value, name, missing)
    if origin is tuple or _is_named_tuple(kind):
        return _tuple(kind, value, name, missing)
    _require(type(value) in _SCALARS[kind], name, value, kind.__name__)
    return kind(value)


def _dataclass(kind: Any, value: Any, name: str, missing: Mapping[str, Any]) -> Any:
    _require(isinstance(value, dict), name, value, f"the fields of {kind.__name__}")
    prefix = f"{name}." if name else ""
    names = {field.name: prefix + field.name for field in fields(kind)}
    if unknown := sorted(value.keys() - names.keys()):
        raise ValueError(f"unknown: {', '.join(prefix + key for key in unknown)}")
    given = {key: value.get(key, missing.get(dotted, MISSING)) for key, dotted in names.items()}
    if absent := [names[key] for key, found in given.items() if found is MISSING]:
        raise ValueError(f"missing: {', '.join(absent)}")
    types = get_type_hints(kind)
    return kind(**{key: _build(types[key], found, names[key], missing) for key, found in given.items()})


def _dict(types: tuple[Any, ...], value: Any, name: str, missing: Mapping[str, Any]) -> Any:
    _require(isinstance(value, dict), name, value, "a table")
    key_type, value_type = types
    if key_type is int:
        for key in value:
            _require(key.removeprefix("-").isdecimal(), name, key, "int")
    return {key_type(key): _build(value_type, found, f"{name}.{key}", missing) for key, found in value.items()}


def _tuple(kind: Any, value: Any, name: str, missing: Mapping[str, Any]) -> Any:
    types = tuple(get_type_hints(kind).values()) if _is_named_tuple(kind) else get_args(kind)
    _require(isinstance(value, list), name, value, "a list")
    if types[-1] is Ellipsis:
        types = types[:1] * len(value)
    _require(len(value) == len(types), name, value, f"a list of {len(types)}")
    parts = [_build(part, found, name, missing) for part, found in zip(types, value, strict=True)]
    return kind(*parts) if _is_named_tuple(kind) else tuple(parts)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _require(fits: bool, name: str, value: Any, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name or 'all of it'} is {value!r} instead of {expected}")
