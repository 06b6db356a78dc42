"""make's variables as options: `make pretrain DATASET=x CLIP_SIZE=64` is `gdt pretrain --dataset x --clip.size 64`.

A recipe names the variables that were typed (GDT_TYPED), those of the environment that count as well (GDT_SET) and the
targets (GDT_GOALS); make hands their values on in the environment, where no shell reads them. Options in the recipe are
defaults, which a variable replaces.
"""

from __future__ import annotations

import difflib
import glob
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from gdt.common.errors import UserError


class Option(NamedTuple):
    """What a variable stands for."""

    name: str
    """--name; empty where the value is a word of its own, before all others."""
    kind: Any
    """Its type."""


Variables = Mapping[str, Option]
"""The options of a command, by the names of their variables."""
_OTHER_NAMES = {"GPUS": "JOBS"}
"""What a variable is called where a command has no option of its name."""
_COUNTS = ("GPUS", "NODES")
_ALIKE = 0.65
"""PRESETS and PRESET, DATA and DATASET are; STEPS and SEEDS are not."""
_SWITCHES = {"1": "", "yes": "", "true": "", "on": "", "0": "no-", "no": "no-", "false": "no-", "off": "no-"}


def options_of(kind: Any, prefix: str = "", prefixed: bool = True) -> dict[str, Option]:
    """The options of a dataclass; of those within it, with their prefixes or, as with OmitArgPrefixes, without."""
    found: dict[str, Option] = {}
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, name = types[field.name], prefix + field.name.replace("_", "-")
        if is_dataclass(hint):
            found |= options_of(hint, f"{name}." if prefixed else prefix, prefixed)
        elif tyro.conf.Suppress not in getattr(hint, "__metadata__", ()):
            found[name.replace("-", "_").replace(".", "_").upper()] = Option(f"--{name}", hint)
    return found


def with_variables(
    arguments: Sequence[str],
    options: Callable[[Sequence[str]], Variables],
    environment: MutableMapping[str, str] = os.environ,
    anywhere: Callable[[], Iterable[str]] = tuple,
) -> list[str]:
    """The arguments of a recipe, and those that the variables stand for; outside make, the arguments as they are.

    `anywhere` gives the variables of all commands, for several targets. Raises UserError for a variable that has no
    effect, or a value that cannot be read.
    """
    if "GDT_GOALS" not in environment:
        return list(arguments)
    goals, typed, already = (environment.pop(f"GDT_{name}", "").split() for name in ("GOALS", "TYPED", "SET"))
    known = options(arguments)
    given: dict[str, list[str]] = {}
    for name in [*already, *typed]:
        value = environment.get(name)
        if value is None:
            raise UserError(f"make has not handed {name} on; run make itself, not the command that 'make -n' prints")
        option = known.get(name, known.get(_OTHER_NAMES.get(name, "")))
        if option is not None and value:
            given[option.name] = _words(name, option, value)
        unknown = option is None and name in typed and name != "ARGS"
        if unknown and (len(goals) == 1 or name not in {*anywhere(), *_OTHER_NAMES}):
            raise UserError(_refusal(goals, name, known))
    if "SIZE" in known and known["SIZE"].name not in given:
        given[known["SIZE"].name] = _words("SIZE", known["SIZE"], "paper" if _has_gpu() else "tiny")
    more = _as_a_shell("ARGS", environment["ARGS"]) if "ARGS" in (*already, *typed) else []
    own = _without(list(arguments), given)
    return [*given.pop("", []), *own, *(word for words in given.values() for word in words), *more]


def _words(variable: str, option: Option, value: str) -> list[str]:
    if variable in _COUNTS and not (value.isdecimal() and int(value)):
        raise UserError(f"{variable} is '{value}'; it must be 1 or more")
    if not option.name:
        return [value]
    if option.kind is bool:
        if value.lower() not in _SWITCHES:
            raise UserError(f"{variable} is '{value}'; it must be 1 or 0")
        return [f"--{_SWITCHES[value.lower()]}{option.name[2:]}"]
    if any(get_origin(each) is tuple for each in (option.kind, *get_args(option.kind))):
        return [option.name, *_as_a_shell(variable, value)]
    return [f"{option.name}={value}"]


def _as_a_shell(variable: str, value: str) -> list[str]:
    """Words as a shell would read them: quotes, ~, variables and patterns of files, but no commands."""
    try:
        words = [os.path.expandvars(os.path.expanduser(word)) for word in shlex.split(value)]  # noqa: PTH111
    except ValueError as error:
        raise UserError(f"{variable} is {value!r}, which are no words for a shell ({error})") from error
    return [found for word in words for found in (sorted(glob.glob(word)) or [word])]  # noqa: PTH207


def _without(arguments: list[str], options: Iterable[str]) -> list[str]:
    """Arguments but for some options and their values."""
    kept, skipping = [], False
    for word in arguments:
        if word.startswith("--"):
            skipping = word.split("=")[0] in options
        if not skipping:
            kept.append(word)
    return kept


def _refusal(goals: Sequence[str], name: str, known: Variables) -> str:
    make, meant = f"'make {' '.join(goals)}'", name.upper().replace("-", "_")
    if near := difflib.get_close_matches(meant, [*known, "GPUS", "ARGS"], 1, _ALIKE):
        return f"{make} knows no variable {name}; write {near[0]}"
    return f"{make} knows no variable {name}; its options, in capitals, are its variables: {', '.join(sorted(known))}"


def _has_gpu() -> bool:
    try:
        return not subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode
    except OSError:
        return False
