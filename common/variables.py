"""make's variables as options: `make pretrain DATASET=x CLIP_SIZE=64` is `gdt pretrain --dataset x --clip.size 64`.

The Makefile passes names: of variables on make's command line (GDT_TYPED), of variables that it takes from the
environment (GDT_SET), and of the targets (GDT_GOALS). The values are environment variables, so that no shell parses
them. A variable replaces the same option of the recipe.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from gdt.common.errors import MAKE_OPTIONS, UserError
from gdt.common.gpu import default_size


class Option(NamedTuple):
    """The option of a variable."""

    name: str
    """--name; empty for a positional argument, which comes first."""
    kind: Any
    """Its type."""


Variables = Mapping[str, Option]
"""The options of a command by the names of their variables."""
_ALIASES = {"GPUS": "JOBS"}
"""Variable names that stand for an option with another name."""
_OF_CHECKPOINT = ("--preset", "--factors", "--seed")
"""Options whose variables choose the default checkpoint in the Makefile, whatever the command."""
_COUNTS = ("GPUS", "NODES")
_SIMILAR = 0.65
"""Accepts PRESETS for PRESET and DATA for DATASET, but not STEPS for SEEDS."""
_FLAGS = {"1": "", "yes": "", "true": "", "on": "", "0": "no-", "no": "no-", "false": "no-", "off": "no-"}

_QUOTED = re.compile(r"""'[^']*'|\\.|"(?:\\.|[^"\\])*\"""", re.S)
_HIDDEN = {ord(char): chr(0xE000 + ord(char)) for char in "$~*?["}
_SHOWN = {ord(hidden): chr(char) for char, hidden in _HIDDEN.items()}
_ESCAPED = {hidden: f"[{char}]" if char in "*?[" else char for hidden, char in _SHOWN.items()}


def options_of(kind: Any, prefix: str = "", prefixed: bool = True) -> dict[str, Option]:
    """Options of a dataclass and of the dataclasses nested in it; nested options have a prefix unless OmitArgPrefixes
    is set.
    """
    options: dict[str, Option] = {}
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, name = types[field.name], prefix + field.name.replace("_", "-")
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(bare):
            options |= options_of(bare, f"{name}." if prefixed else prefix, prefixed)
        elif tyro.conf.Suppress not in getattr(hint, "__metadata__", ()):
            options[name.replace("-", "_").replace(".", "_").upper()] = Option(f"--{name}", bare)
    return options


def with_variables(
    arguments: Sequence[str],
    options: Callable[[Sequence[str]], Variables],
    environment: MutableMapping[str, str] = os.environ,
    all_variables: Callable[[], Iterable[str]] = tuple,
) -> list[str]:
    """Add make's variables to the arguments of a recipe, as options; outside make, return the arguments unchanged.

    With several targets, a variable of any command (`all_variables`) is accepted. Raises UserError for a variable
    without effect and for a value that cannot be parsed.
    """
    if "GDT_GOALS" not in environment:
        return list(arguments)
    goals, typed, inherited = (environment.pop(f"GDT_{name}", "").split() for name in ("GOALS", "TYPED", "SET"))
    known = options(arguments)
    names = [option.name + "=1" * (option.kind is bool) for option in known.values()]
    environment[MAKE_OPTIONS] = " ".join([*names, *_OF_CHECKPOINT])
    given: dict[str, list[str]] = {}
    for name in [*inherited, *typed]:
        value = environment.get(name)
        if value is None:
            raise UserError(f"make did not export {name}; run make itself, not the command that 'make -n' prints")
        option = known.get(name, known.get(_ALIASES.get(name, "")))
        if option is not None and value:
            given[option.name] = _arguments(name, option, value)
        if option is None and name in typed and name != "ARGS":
            elsewhere = name in {*all_variables(), *_ALIASES}
            if len(goals) == 1 or not elsewhere:
                raise UserError(_unknown_variable(goals, name, known, elsewhere))
    more = split("ARGS", environment["ARGS"]) if "ARGS" in (*inherited, *typed) else []
    if "SIZE" in known and known["SIZE"].name not in given:
        size = default_size([*given.get("--device", ()), *more])
        given[known["SIZE"].name] = _arguments("SIZE", known["SIZE"], size)
    replaced = {*given, "--dataset"} if _names_data_set({**given, **dict(_pairs(more))}, known) else given
    recipe = _without(arguments, replaced)
    return [*given.pop("", []), *recipe, *(word for words in given.values() for word in words), *more]


def name_after_shards(arguments: Sequence[str], options: Variables) -> list[str]:
    """Add --dataset, named after the folder of --shards, unless it is given or defaults to a checkpoint's."""
    values = dict(_pairs(arguments))
    if not _names_data_set(values, options):
        return list(arguments)
    return [*arguments, "--dataset", Path(values["--shards"]).absolute().name]


def _names_data_set(given: Container[str], options: Variables) -> bool:
    return "--shards" in given and "--dataset" not in given and "DATASET" in options and "CKPT" not in options


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options and their first values."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            yield name, value if separator else following


def _arguments(variable: str, option: Option, value: str) -> list[str]:
    if variable in _COUNTS and not (value.isdecimal() and int(value)):
        raise UserError(f"{variable} is '{value}'; it must be 1 or more")
    if not option.name:
        return [value]
    if option.kind is bool:
        if value.lower() not in _FLAGS:
            raise UserError(f"{variable} is '{value}'; it must be 1 or 0")
        return [f"--{_FLAGS[value.lower()]}{option.name[2:]}"]
    if lists := [each for each in (option.kind, *get_args(option.kind)) if get_origin(each) is tuple]:
        whole = Path(os.path.expanduser(value))  # noqa: PTH111 - pathlib's raises for an unknown user
        one_path = Path in get_args(lists[0]) and whole.exists()  # its name may have spaces
        return [option.name, *([str(whole)] if one_path else split(variable, value))]
    return [f"{option.name}={value}"]


def split(variable: str, value: str) -> list[str]:
    """Split a value as a shell would, with ~, variables and file patterns outside quotes, but without commands."""
    try:
        words = shlex.split(_QUOTED.sub(_hide, value))
    except ValueError as error:
        raise UserError(f"{variable} is {value!r}, which a shell cannot parse ({error})") from error
    words = [os.path.expandvars(os.path.expanduser(word)) for word in words]  # noqa: PTH111
    found = [sorted(glob.glob(word.translate(_ESCAPED))) or [word.translate(_SHOWN)] for word in words]  # noqa: PTH207
    return [path for paths in found for path in paths]


def _hide(quoted: re.Match[str]) -> str:
    """Quoted text with placeholders for characters that are literal there; $ is special within double quotes."""
    return quoted[0].translate(_HIDDEN | {ord("$"): "$"} if quoted[0][0] == '"' else _HIDDEN)


def _without(arguments: Iterable[str], options: Iterable[str]) -> list[str]:
    """Remove options and their values from the arguments."""
    kept, skipping = [], False
    for word in arguments:
        if word.startswith("--"):
            skipping = word.split("=")[0] in options
        if not skipping:
            kept.append(word)
    return kept


def _unknown_variable(goals: Sequence[str], name: str, known: Variables, elsewhere: bool) -> str:
    message = f"'make {' '.join(goals)}' has no variable {name}"
    typed, names = name.upper().replace("-", "_"), [*known, "GPUS", "ARGS"]
    longer = [each for each in names if each.endswith(f"_{typed}")]  # SPLIT for QUERY_SPLIT
    if similar := difflib.get_close_matches(typed, names, 1, _SIMILAR) or longer:
        return f"{message}; did you mean {' or '.join(similar)}?"
    if elsewhere:
        why = "; this command takes such settings from the checkpoint" if "CKPT" in known else ""
        return f"{message}, which other targets or data sets take; remove it{why}"
    return f"{message}; 'make help' lists the variables of every target"
