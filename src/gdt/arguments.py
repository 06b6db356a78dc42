"""The arguments of `gdt.api`: paths, settings by name, and networks, as the functions behind it take them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gdt.common import serialization
from gdt.common.errors import UserError, unknown
from gdt.train.models.own import NetworkLike

Paths = str | Path | Sequence[str | Path]
T = TypeVar("T")


def weights_of(paths: Paths) -> tuple[str, ...]:
    """The paths or names of weights, one or several. Raises UserError for anything else."""
    several = [paths] if isinstance(paths, str | Path) else paths
    if not isinstance(several, Iterable):
        raise UserError(f"checkpoints are paths or names of weights, not {type(several).__name__}")
    return tuple(map(str, several))


def with_changes(base: T, changes: Mapping[str, Any]) -> T:
    """Settings with changes, and ~ expanded. Raises UserError for an unknown name or a value of the wrong type."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)

    known = vars(base)
    kind = type(base)
    for name in changes:
        if name not in known:
            raise unknown("setting", name, known, f"they are the fields of {kind.__module__}.{kind.__name__}")
    # by way of JSON, which checks types, and in which a group of settings is a mapping
    values = _merge(json.loads(serialization.to_json(base)), json.loads(json.dumps(dict(changes), default=plain)))
    try:
        return serialization.from_dict(kind, values)
    except ValueError as error:
        raise UserError(f"settings of {kind.__name__}: {error}") from error


def separate_networks(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sequence[NetworkLike]]]:
    """Settings, with texts that name networks of the user's own, and the networks given as objects, by modality."""
    values = dict(settings)
    texts: dict[str, Any] = {}
    objects: dict[str, Sequence[NetworkLike]] = {}
    for modality in ("video", "audio"):
        option = f"{modality}_network"
        network = values.pop(option, None)
        several = network if isinstance(network, list | tuple) else [network]
        if all(isinstance(each, str) for each in several):
            texts[option] = several
        elif network is not None:
            objects[modality] = several
    if texts:
        values["own_networks"] = texts
    return values, objects


def _merge(base: Any, changes: Any) -> Any:
    """JSON values with changes; a mapping changes only the keys that it has."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {name: _merge(base.get(name), value) for name, value in changes.items()}
