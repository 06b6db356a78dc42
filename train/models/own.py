"""Networks of the user's own: made from text, modules or callables, and as trunks of a model.

A checkpoint holds the name of its network, and nothing that is imported. Whoever loads it gives the network again,
whose parameters must have the same names and shapes; what its code computes is up to its author.
"""

import ast
import copy
import importlib
import importlib.util
import operator
import re
import sys
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from gdt.common.errors import UserError, first_line, unknown
from gdt.common.folders import local_path
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.layout import BANDS
from gdt.train.models.backbone import Backbone
from gdt.train.models.network import Architecture, OwnNetwork

NetworkLike = str | nn.Module | Callable[[], nn.Module]
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


def makers(given: Mapping[str, Sequence[NetworkLike]]) -> Makers:
    """Import networks, by modality. Raises UserError if there is none; errors of the user's file are Python's own."""
    return {modality: tuple(map(_maker, networks)) for modality, networks in given.items()}


def _maker(network: NetworkLike) -> Maker:
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
    return module


class OwnTrunk(Backbone):
    """A network of the user's own, without its classifier."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net = net
        self.dim = dim

    def maps(self, x: Tensor) -> Tensor:
        """Its output as [n, dim, ...]; a network that is already pooled has one position."""
        # the loader's clips are channels-last, which .view() refuses
        return positions(self.net(x.contiguous()), len(x))


def build(maker: Maker, recorded: OwnNetwork) -> OwnTrunk:
    """A network of a checkpoint with new weights. Raises UserError if it is another one."""
    net = maker.make()
    for name in recorded.removed:
        try:
            net.set_submodule(name, nn.Identity(), strict=True)
        except AttributeError as error:
            raise UserError(
                f"{maker.name} has no layer {name}, which was taken off {recorded.name}; give the same network"
            ) from error
    return OwnTrunk(net, recorded.dim)


def input_shape(modality: str, clip: Clip) -> tuple[int, ...]:
    """Shape of an input, without the batch."""
    return (3, clip.frames, clip.size, clip.size) if modality == "video" else (1, BANDS, clip.mel_frames)


def chosen(network: Architecture, modalities: Collection[str], given: Makers, source: str) -> dict[str, Maker]:
    """The networks of the user's own of a checkpoint: of several for a modality, the one with the recorded name.

    Raises UserError if none is given, or none of several has that name.
    """
    found: dict[str, Maker] = {}
    for modality in network.own.keys() & {*modalities}:
        recorded = network.own[modality]
        makers = given.get(modality, ())
        named = makers if len(makers) == 1 else [maker for maker in makers if maker.name == recorded.name]
        if not named:
            others = ", ".join(maker.name for maker in makers)
            raise UserError(
                f"the {modality} network of {source} is {recorded.name}, which is not "
                f"{f'among {others}' if others else 'imported by itself'}; "
                f"give the same with --{modality}-network (Python: {modality}_network=)"
            )
        found[modality] = named[0]
    return found


def positions(output: Any, n: int, where: str = "the network") -> Tensor:
    """The output of a network on n inputs as [n, dim, ...]. Raises UserError if it has another form."""
    for name in ("last_hidden_state", "logits"):  # of transformers
        if isinstance(getattr(output, name, None), Tensor):
            output = getattr(output, name)
            break
    if not isinstance(output, Tensor) or not 2 <= output.dim() <= 5 or len(output) != n:
        form = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"{where} returns {form} instead of [n, features], [n, positions, features] or maps [n, features, ...]; "
            "give a callable whose network returns one of them"
        )
    if output.dim() == 2:
        return output[..., None]
    return output.transpose(1, 2) if output.dim() == 3 else output
