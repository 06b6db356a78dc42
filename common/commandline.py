"""Command lines of settings dataclasses, and the commands that messages suggest."""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from gdt.common.errors import UserError
from gdt.common.folders import Folder, local_path

T = TypeVar("T")


def _folder(words: list[str]) -> Folder:
    if not words[0]:  # as of a variable that is not set, and no name of the current folder
        raise ValueError("a path is empty")
    return Folder(words[0])


Location = Annotated[
    Folder | Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=_folder,
        is_instance=lambda value: isinstance(value, Folder),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""The type of options that take a path or the URL of a folder in a store; settings made in Python may hold a Path."""


def parse(kind: type[T], prog: str, arguments: Sequence[str], default: T | None = None) -> T:
    """The settings of a command line, with ~ expanded in paths; options that are not given are those of `default`.

    Exits after --help, and with status 2 on a mistake. Raises what the dataclass raises.
    """
    import tyro

    defaults: Any = {} if default is None else {"default": default}
    return _expand_home(tyro.cli(kind, prog=prog, args=arguments, **defaults))


def options(kind: Any, prefix: str = "", group: str = "") -> dict[str, str]:
    """The options of a settings dataclass, without hidden ones, with the dotted names of their fields."""
    import tyro

    found: dict[str, str] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner = getattr(hint, "__origin__", hint)
        notes = getattr(hint, "__metadata__", ())
        if tyro.conf.Suppress in notes:
            continue
        unnamed = any(getattr(note, "name", None) == "" for note in notes)
        option = prefix if unnamed else f"{prefix or '--'}{name.replace('_', '-')}"
        if is_dataclass(inner):
            found |= options(inner, option if unnamed else f"{option}.", f"{group}{name}.")
        else:
            found[option] = f"{group}{name}"
    return found


def arguments_of(settings: Any, default: Any) -> list[str]:
    """The options by which settings differ from `default`, of the same class; hidden ones must not."""
    arguments: list[str] = []
    for option, name in options(type(settings)).items():
        value = attrgetter(name)(settings)
        if value == attrgetter(name)(default):
            continue
        if isinstance(value, bool):
            group, dot, last = option.removeprefix("--").rpartition(".")
            arguments.append(option if value else f"--{group}{dot}no-{last}")
        elif isinstance(value, tuple) and len(value) != 1:
            arguments += [option, *map(str, value)]
        else:  # with =, since a value may begin with a dash
            (single,) = value if isinstance(value, tuple) else (value,)
            arguments.append(f"{option}={single}")
    return arguments


def size_of(option: str, text: str) -> int:
    """Bytes of a size such as 500GB; 0 for an empty one. Raises UserError, naming the option."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)b?", text.strip().lower() or "0")
    if not parts:
        raise UserError(f"{option} is {text}; set it to a size, such as 500GB")
    number, unit = parts.groups()
    return int(float(number) * 1000 ** " kmgt".index(unit or " "))


def _expand_home(value: Any) -> Any:
    """A path `local_path`, or all paths of a tuple or a dataclass; other values are returned as they are."""
    if isinstance(value, Path):
        return local_path(value)
    if type(value) is tuple:
        return tuple(_expand_home(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: _expand_home(part) for name, part in old.items()}
        return value if new == old else replace(value, **new)
    return value


def gdt_command(*arguments: object) -> str:
    """A gdt command for this shell, by its path if it is not on PATH."""
    script = Path(sys.executable).with_name("gdt")
    command = "gdt"
    if script.is_file() and shutil.which("gdt") != str(script):
        here = Path.cwd()
        command = str(script.relative_to(here) if script.is_relative_to(here) else script)
    return shlex.join([command, *map(str, arguments)])
