"""Command-line options of settings dataclasses, grouped under headings."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
import tyro._errors

from gdt.common.errors import UserError, unknown, with_list

T = TypeVar("T")
ADVANCED = "advanced"
"""Heading of rarely used options, shown last in --help."""


class Options(Generic[T]):
    """The command-line options of a dataclass, for tyro.

    The dataclass may have `headings`: titles of groups in --help and the fields in each, most used first. A field that
    is a dataclass is a group of its own, whose options have a prefix (--clip.size); a heading of its name, without
    fields, sets its position. The group `advanced` comes last.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        headings: Mapping[str, Sequence[str]] = getattr(kind, "headings", {})
        self._groups = {title: names for title, names in headings.items() if names}
        self.type = _grouped(kind, headings)

    def defaults(self, settings: T) -> Any:
        """An instance of `type` with the values of `settings`, to pass to tyro as defaults."""
        values = vars(settings)
        types = get_type_hints(self.type)
        groups = {title: types[title](**{n: values[n] for n in names}) for title, names in self._groups.items()}
        return self.type(**groups, **{f.name: values[f.name] for f in fields(self.type) if f.name not in groups})

    def settings(self, parsed: Any) -> T:
        """The settings of a parsed instance of `type`, with ~ expanded in paths. Raises what the dataclass raises."""
        flat = dict(vars(parsed))
        for title in self._groups:
            flat |= vars(flat.pop(title))
        kind: Any = self._kind
        for option in fields(kind):
            if flat[option.name] == () != option.default:
                raise UserError(f"--{option.name.replace('_', '-')} lacks a value")
        return self._kind(**{name: expand_home(value) for name, value in flat.items()})

    def parse(self, prog: str, arguments: Sequence[str]) -> T:
        """The settings of a command line without subcommands. Exits after --help and on unknown options."""
        flat = (tyro.conf.OmitArgPrefixes,)
        return self.settings(tyro.cli(self.type, prog=prog, config=flat, args=arguments))


def expand_home(value: Any) -> Any:
    """Expand ~ in a path, or in all paths of a tuple or a dataclass; other values are returned as they are."""
    if isinstance(value, Path):
        return Path(os.path.expanduser(value))  # noqa: PTH111 - pathlib's raises for an unknown user
    if type(value) is tuple:
        return tuple(map(expand_home, value))
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: expand_home(part) for name, part in old.items()}
        return value if new == old else replace(value, **new)
    return value


@contextmanager
def report_mistakes(known: Iterable[str], command: str) -> Iterator[None]:
    """Raise tyro's errors about a command line as UserError; `known` are the options of the command."""

    def report(event: tyro._errors.ParseErrorEvent) -> None:
        listed = f"'{command} --help' lists the options"
        tokens: list[str] = getattr(event, "tokens", getattr(event, "unrecognized_tokens", []))
        if option := next((token.split("=")[0] for token in tokens if token.startswith("-")), ""):
            raise unknown("option", option, known, listed)
        if tokens:
            raise UserError(f"unexpected argument '{tokens[0]}'; {listed}")
        if isinstance(event, tyro._errors.MissingArgs):
            missing = [f"{each.arg.display_name()} {each.arg.lowered.metavar}" for each in event.missing_arguments]
            raise UserError(f"{command} needs {' and '.join(missing)}; {listed}")
        if isinstance(event, tyro._errors.MissingSubcommand):
            raise UserError(with_list(f"{command} needs one of", event.subcommand_spec.parser_from_name))
        if (argument := getattr(event, "argument", None)) is None:
            return
        name, kind = argument.display_name(), _KINDS.get(argument.lowered.metavar, argument.lowered.metavar)
        if isinstance(event, tyro._errors.InvalidChoice):
            raise unknown(name, event.value, [each for each in event.choices if each != "None"])
        if isinstance(event, tyro._errors.BadValue):
            raise UserError(f"{name} lacks a value; it must be {kind} (if it begins with a dash: {name}=...)")
        if isinstance(event, tyro._errors.InstantiationFailure) and (found := _VALUE.search(event.message)):
            raise UserError(f"{name} is {found[1] or found[2]}; it must be {kind}")

    with tyro._errors.on_parse_error(report):
        yield


_KINDS = {
    "INT": "an integer", "FLOAT": "a number", "INT ...": "integers, separated by spaces", "INT INT": "two integers",
    "FLOAT FLOAT": "two numbers",
}  # fmt: skip
_VALUE = re.compile(r"\[(.*?)\]|: ('.*')$")
"""The value quoted in tyro's error message."""


def _grouped(kind: Any, groups: Mapping[str, Sequence[str]]) -> Any:
    """A dataclass with a nested dataclass for each heading."""
    types, texts = get_type_hints(kind, include_extras=True), _descriptions(kind)
    known = {f.name: f for f in fields(kind)}

    def option(name: str) -> tuple[str, Any, Any]:
        argument = tyro.conf.arg(
            help=texts[name], prefix_name=False, metavar=_metavar(types[name]), help_behavior_hint=_shown_default
        )
        return name, Annotated[types[name], argument], _default(known[name])

    members: dict[str, tuple[str, Any, Any]] = {}
    for title, names in groups.items():
        if not names:
            members[title] = title, types[title], _default(known[title])
            continue
        part = make_dataclass(title, [option(name) for name in names], frozen=True, kw_only=True)
        complete = all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(part))
        members[title] = title, part, field(default_factory=part) if complete else field()
    grouped = {name for names in groups.values() for name in names}
    for name in [name for name in known if name not in grouped and name not in groups]:
        nested = is_dataclass(types[name])  # its options have their own names and descriptions
        members[name] = (name, types[name], _default(known[name])) if nested else option(name)
    if ADVANCED in members:
        members[ADVANCED] = members.pop(ADVANCED)
    view = make_dataclass(kind.__name__, members.values(), frozen=True, kw_only=True)
    view.__doc__ = kind.__doc__
    return view


def _metavar(hint: Any) -> str | None:
    """PATH for Path | None, INT ... for tuple[int, ...]; None for tyro's default."""
    arguments = get_args(hint)
    if NoneType in arguments:
        (hint,) = (option for option in arguments if option is not NoneType)
        return hint.__name__.upper() if hint in (Path, int, float, str) else None
    if get_origin(hint) is tuple and arguments[1:] == (Ellipsis,) and arguments[0] in (Path, int, float, str):
        return f"{arguments[0].__name__.upper()} ..."
    return None


def _shown_default(value: str) -> str:
    """The default shown in --help; empty if unset, which the description explains."""
    return "" if value in ("None", "''", "", "False") else f"(default: {value})"


def _default(known: Field[Any]) -> Any:
    if known.default_factory is not MISSING:
        return field(default_factory=known.default_factory)
    return field() if known.default is MISSING else field(default=known.default)


def _descriptions(kind: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, inherited ones included."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        parameters = docstring_parser.parse_from_object(base).params
        texts |= {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in parameters}
    return texts


def pip_command(package: str) -> str:
    """The command that installs a package for this Python."""
    return f"{_from_here(Path(sys.executable))} -m pip install {package}"


def gdt_command(*arguments: object) -> list[str]:
    """The words of a gdt command for this shell; the first is `gdt`, or its path if it is not on PATH."""
    script = Path(sys.executable).with_name("gdt")
    on_path = not script.is_file() or shutil.which("gdt") == str(script)
    return ["gdt" if on_path else str(_from_here(script)), *map(str, arguments)]


def _from_here(path: Path) -> Path:
    """The path relative to the current folder if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
