"""make's variables as options: `make pretrain DATASET=mine` is `gdt pretrain --dataset mine`.

A recipe names the variables that were typed (GDT_TYPED) and the targets (GDT_GOALS); make hands their values on in the
environment, where no shell reads them. Options in the recipe are defaults, which a variable replaces.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, get_args, get_origin

from gdt.common.errors import UserError

ALIASES = {"gpus": "side_by_side"}
"""What a variable is called where a command has no option of its name."""
_ALIKE = 0.65
"""PRESETS and PRESET, DATA and DATASET are; STEPS and SEEDS are not."""


def with_variables(
    arguments: Sequence[str],
    options: Callable[[Sequence[str]], Mapping[str, Any]],
    environment: MutableMapping[str, str] = os.environ,
) -> list[str]:
    """The arguments of a recipe, and those that the variables stand for; outside make, the arguments as they are.

    `options` are the types of a command's options, by name, and `size` where it comes as a first word. Raises UserError
    for a variable that the command has no option for.
    """
    if "GDT_GOALS" not in environment:
        return list(arguments)
    goals = environment.pop("GDT_GOALS").split()  # commands that this one starts have their arguments
    typed = {name: environment.get(name, "") for name in environment.pop("GDT_TYPED", "").split()}
    known = options(arguments)
    more = shlex.split(typed.pop("ARGS", ""))
    if "size" in known and "SIZE" not in typed:
        typed["SIZE"] = "paper" if _has_gpu() else "tiny"
    given: dict[str, list[str]] = {}
    for name, value in typed.items():
        option = name.lower() if name.lower() in known else ALIASES.get(name.lower(), "")
        if option in known and name.isupper():
            given[option] = _words(option, known[option], value) if value else []
        elif len(goals) == 1:
            raise UserError(_refusal(goals[0], name, known))
    own = _without(list(arguments), [name for name, words in given.items() if words])
    position = given.pop("size", []) if known.get("size") is POSITIONAL else []
    return [*position, *own, *(word for words in given.values() for word in words), *more]


POSITIONAL = "positional"
"""In the place of a type: the value is a word of its own, without the option's name."""


def _words(option: str, kind: Any, value: str) -> list[str]:
    name = f"--{option.replace('_', '-')}"
    if kind is POSITIONAL:
        return [value]
    if kind is bool:
        return [name] if value != "0" else []
    if any(get_origin(each) is tuple for each in (kind, *get_args(kind))):
        return [name, *value.split()]
    return [f"{name}={value}"]


def _without(arguments: list[str], options: Sequence[str]) -> list[str]:
    """Arguments but for some options and their values."""
    names = {f"--{option.replace('_', '-')}" for option in options}
    kept, skipping = [], False
    for word in arguments:
        if word.startswith("--"):
            skipping = word.split("=")[0] in names
        if not skipping:
            kept.append(word)
    return kept


def _refusal(goal: str, name: str, known: Mapping[str, Any]) -> str:
    make, heeded = f"'make {goal}'", sorted(option.upper() for option in known)
    meant = name.upper().replace("-", "_")
    if near := difflib.get_close_matches(meant, [*heeded, "GPUS", "ARGS"], 1, _ALIKE):
        return f"{make} knows no variable {name}; write {near[0]}"
    return f"{make} knows no variable {name}; its options, in capitals, are its variables: {', '.join(heeded)}"


def _has_gpu() -> bool:
    try:
        return not subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode
    except OSError:
        return False
