"""Networks as the user gives them: as text, as modules or as callables."""

import ast
import copy
import importlib
import importlib.util
import operator
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from gdt.common.errors import UserError, first_line, unknown
from gdt.common.folders import local_path

Given = str | nn.Module | Callable[[], nn.Module]
"""A network: text as in `network.OwnNetworks`, a module, of which copies are used, or a callable that makes one."""


class Maker(NamedTuple):
    name: str
    """As the user wrote it, without folders."""
    call: Callable[[], Any]

    def make(self) -> nn.Module:
        """A new network. Raises UserError if it is none that can be trained; its own errors are Python's."""
        net = self.call()
        if not isinstance(net, nn.Module) or next(net.parameters(), None) is None:
            raise UserError(f"{self.name} makes {type(net).__name__}; a network is a module with parameters")
        if any(isinstance(value, nn.parameter.UninitializedParameter) for value in net.parameters()):
            raise UserError(f"{self.name} has lazy modules; give a callable that runs one pass and returns the network")
        return net


Makers = Mapping[str, Sequence[Maker]]
"""The networks that the user has given, by modality."""


def makers(given: Mapping[str, Sequence[Given]]) -> Makers:
    """Import networks, by modality. Raises UserError if there is none; errors of the user's file are Python's own."""
    return {modality: tuple(map(_maker, networks)) for modality, networks in given.items()}


def _maker(network: Given) -> Maker:
    if isinstance(network, str):
        name, network = _from_text(network)
    else:
        kind = network.func if isinstance(network, partial) else network
        name = getattr(kind, "__qualname__", type(kind).__qualname__)
    if isinstance(network, nn.Module):
        return Maker(name, partial(copy.deepcopy, copy.deepcopy(network)))  # as it is now
    if not callable(network):
        raise UserError(f"a network is a torch.nn.Module, a callable that makes one or a text, not {network!r}")
    return Maker(name, network)


def _from_text(text: str) -> tuple[str, Any]:
    """The name without folders, and the object that a text names, with its arguments."""
    # the folders of a file may have brackets and colons in their names
    parts = re.fullmatch(r"(.+?\.py|[^:(]+):([\w.]+)(\(.*)?", text, re.DOTALL)
    place, name, arguments = parts.groups("()") if parts else ("", "", "")
    try:
        call = ast.parse(f"f{arguments}", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError(text)
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"cannot read the network '{text}'; write file.py:Name or package.module:function, and arguments with "
            "their names, as numbers, strings, lists, None, True or False: file.py:Name(width=3)"
        ) from error
    module = _import(place)
    try:
        kind = operator.attrgetter(name)(module)
    except AttributeError as error:
        public = [key for key in vars(module) if key[0] != "_"]
        raise unknown(f"name in {place}", name, public) from error
    return text.replace(place, Path(place).name, 1), partial(kind, **options) if options else kind


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not f"{place}.".startswith(f"{error.name}."):
                raise  # of what the module imports
            raise UserError(f"cannot import {place}: {first_line(error)}; install it, or name a file.py") from error
    path = local_path(place).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {place}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for what the file imports from beside it
    unique = f"gdt_network_{path.stem}_{zlib.crc32(bytes(path)):08x}"
    spec: Any = importlib.util.spec_from_file_location(unique, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, inspect and torch.compile look there
    spec.loader.exec_module(module)
    _require_own_helpers(module, path)
    return module


def _require_own_helpers(module: ModuleType, path: Path) -> None:
    """Raise UserError if a file took what lies beside it from elsewhere: Python has one module per name."""
    for value in vars(module).values():
        source = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
        name = str(source).partition(".")[0]
        beside = [file for file in (path.parent / f"{name}.py", path.parent / name / "__init__.py") if file.is_file()]
        taken = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        installed = name in sys.stdlib_module_names or "site-packages" in taken.parts
        if beside and taken.name and not installed and taken.resolve() != beside[0].resolve():
            raise UserError(f"{path} uses {name} of {taken}, not of {beside[0]}; rename one of the two")
