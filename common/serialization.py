"""Dataclasses to JSON and back, with nested ones, paths, literals, tuples, named tuples and dicts with int keys."""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gdt.common.folders import Folder, local_path

T = TypeVar("T")
_SCALARS: dict[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,), Path: (str,)}
"""The JSON types of each scalar type."""


def to_json(values: Any, indent: int | None = None) -> str:
    """A dataclass, or a list of them, as JSON."""
    plain = [asdict(value) for value in values] if isinstance(values, list) else asdict(values)
    return json.dumps(plain, indent=indent, default=str)


def from_dict(kind: type[T], values: Any) -> T:
    """Build a dataclass from parsed JSON; a field that is missing has its default, so a new one needs no version.

    Raises ValueError, naming the fields (`clip.size`), if one without a default is missing, or one is unknown or of
    another type, and whatever the dataclasses raise.
    """
    return _build(kind, values, "")


def from_json(kind: type[T], text: Any) -> T:
    """`from_dict` of a text of JSON. Raises ValueError, too, if it is none, or too deep or large for Python."""
    try:
        return from_dict(kind, json.loads(text))
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _build(kind: Any, value: Any, name: str) -> Any:
    origin = get_origin(kind)
    types = get_args(kind)
    if is_dataclass(kind):
        _require(isinstance(value, dict), name, value, f"the fields of {getattr(kind, '__name__', kind)}")
        hints = get_type_hints(kind)
        prefix = f"{name}." if name else ""
        unknown = [prefix + key for key in sorted(value.keys() - {field.name for field in fields(kind)})]
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}")
        required = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]
        missing = [prefix + key for key in required if key not in value]
        if missing:
            raise ValueError(f"missing: {', '.join(missing)}")
        built: Any = kind
        return built(**{key: _build(hints[key], item, prefix + key) for key, item in value.items()})
    if kind is Any:
        return value
    if origin in (Union, UnionType):  # X | None
        if value is None and NoneType in types:
            return None
        if Folder in types:  # or a path
            _require(isinstance(value, str), name, value, "a path or a URL")
            return Folder(value)
        (inner,) = (option for option in types if option is not NoneType)
        return _build(inner, value, name)
    if origin is Literal:
        _require(value in types, name, value, f"one of {', '.join(map(str, types))}")
        return value
    if origin is dict:
        _require(isinstance(value, dict), name, value, "a table")
        return {types[0](key): _build(types[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is tuple or _is_named_tuple(kind):
        if _is_named_tuple(kind):
            types = tuple(get_type_hints(kind).values())
        _require(isinstance(value, list), name, value, "a list")
        if types[-1] is Ellipsis:
            types = types[:1] * len(value)
        _require(len(value) == len(types), name, value, f"a list of {len(types)}")
        parts = [_build(part, item, name) for part, item in zip(types, value, strict=True)]
        return kind(*parts) if _is_named_tuple(kind) else tuple(parts)
    _require(type(value) in _SCALARS[kind], name, value, kind.__name__)
    return local_path(value) if kind is Path else kind(value)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _require(fits: bool, name: str, value: Any, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name or 'the value'} is {value!r} instead of {expected}")
