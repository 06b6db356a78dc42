"""Networks of the user's own, in place of the paper's: how they are given, checked once, and made again.

A checkpoint records a network as `network.Made`. What it names is never imported: `build` makes only networks that the
user has given to this process with `use`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import operator
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gdt.common.commandline import expand_home
from gdt.common.errors import UserError, first_line, unknown
from gdt.train.models.backbone import Backbone
from gdt.train.models.network import FROM_PYTHON, Made

_CLASSIFIERS = ("fc", "head", "classifier", "proj")
"""Names of classifiers in torchvision, timm, pytorchvideo and transformers."""
_UNKNOWN = "(...)"
"""Arguments of an object from Python, which are not known and so fit any."""


class Given(NamedTuple):
    """A network that the user has given to this process."""

    name: str
    """As in `Made`."""
    digest: str
    """Of the text of the file that defines it."""
    make: Callable[[], Any]


_given: dict[str, dict[str, Given]] = {"video": {}, "audio": {}}
"""By modality and text, the latest last."""


class Foreign(Backbone):
    """A network of the user's own, without its classifier."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net, self.dim = net, dim

    def maps(self, x: Tensor) -> Tensor:
        """Its output as [n, dim, ...]; a network that is already pooled has one position."""
        return _positions(self.net(x.contiguous()), len(x))  # the loader's are channels-last, which .view() refuses


def use(modality: str, network: Any) -> str:
    """Let this process make a network, given as in `Own`, or as a module or a callable that makes one.

    Returns its text for `Own`. Raises UserError if there is no such network; errors of its file are Python's own.
    """
    if isinstance(network, str):
        text, given = network, _from_text(network)
    else:
        given = _from_object(network)
        text = given.name + FROM_PYTHON
    _given[modality].pop(text, None)
    _given[modality][text] = given
    return text


def _from_text(text: str) -> Given:
    target, bracket, arguments = text.partition("(")
    place, _, name = target.rpartition(":")
    try:
        call = ast.parse(f"f{bracket}{arguments}", mode="eval").body
        words, options = list[Any](), dict[str, Any]()
        if isinstance(call, ast.Call):
            words = [ast.literal_eval(each) for each in call.args]
            options = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
        if not place or not name or "" in options or isinstance(call, ast.Call) != bool(bracket):
            raise ValueError(text)
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"cannot read the network '{text}'; write file.py:Name or package.module:function, and arguments as "
            "numbers, strings, lists, None, True or False: file.py:Name(width=3)"
        ) from error
    module = _module_at(place)
    try:
        kind = operator.attrgetter(name)(module)
    except AttributeError as error:
        raise unknown(f"name in {place}", name, [each for each in vars(module) if each[0] != "_"]) from error
    shown = f"{Path(place).name}:{name}{ast.unparse(call)[1:].removesuffix('()')}"
    make = functools.partial(kind, *words, **options) if bracket or not isinstance(kind, nn.Module) else _copies(kind)
    return Given(shown, _digest(str(module.__file__) if place.endswith(".py") else _file(kind)), make)


def _module_at(place: str) -> Any:
    """A file or a module, imported."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UserError(f"cannot import {place}: {first_line(error)}; install it, or name a file.py") from error
    path = expand_home(Path(place)).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {place}")
    spec: Any = importlib.util.spec_from_file_location(f"gdt_network_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and inspect look there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for what the file imports from beside it
    spec.loader.exec_module(module)
    return module


def _from_object(network: Any) -> Given:
    """A module, or a callable that makes one."""
    if isinstance(network, nn.Module):
        kind, arguments, make = type(network), _UNKNOWN, _copies(network)
    elif callable(network):
        partial = isinstance(network, functools.partial)
        kind, arguments, make = (network.func, _UNKNOWN, network) if partial else (network, "", network)
    else:
        raise UserError(f"a network is a torch.nn.Module, a callable that makes one or a text, not {network!r}")
    file = _file(kind)
    name = f"{Path(file).name}:{getattr(kind, '__qualname__', type(kind).__name__)}{arguments}"
    return Given(name, _digest(file), make)


def _copies(module: nn.Module) -> Callable[[], nn.Module]:
    """Makes a module as it is now, again and again."""
    return functools.partial(copy.deepcopy, copy.deepcopy(module))


def _file(kind: Any) -> str:
    """The file that defines a class, a function or the class of an object."""
    kind = inspect.unwrap(kind if inspect.isroutine(kind) or isinstance(kind, type) else type(kind))
    for each in (kind, kind.__init__):  # of classes in notebooks, Python knows the file of their methods only
        with contextlib.suppress(TypeError, OSError):
            if file := inspect.getsourcefile(each):
                return file
    raise UserError(f"the source of {kind} cannot be read, and a checkpoint records it; define it in a file")


def _digest(file: str) -> str:
    linecache.checkcache(file)
    return hashlib.sha256("".join(linecache.getlines(file)).encode()).hexdigest()[:16]  # also of notebooks' cells


def build(modality: str, made: Made) -> Foreign:
    """The network of a checkpoint, with new weights. Raises UserError unless the user has given the same."""
    for given in reversed(_given[modality].values()):
        one, other = _call(given.name), _call(made.name)
        unknown_arguments = _UNKNOWN in one + other and one.partition("(")[0] == other.partition("(")[0]
        if (one == other or unknown_arguments) and _form(given, net := _make(modality, given)) == made.digest:
            for name in made.removed:
                net.set_submodule(name, nn.Identity())
            return Foreign(net, made.dim)
    others = "".join(f"; {each.name} is another or has changed" for each in [*_given[modality].values()][-1:])
    raise UserError(
        f"the {modality} network of the checkpoint is {made.name} with digest {made.digest}, which is not imported by "
        f"itself{others}; give the same with --{modality}-network (Python: {modality}_network=)"
    )


def _form(given: Given, net: nn.Module) -> str:
    """Digest of the text of a network's file and of what its layers say of themselves."""
    return hashlib.sha256(f"{given.digest}\n{net!r}".encode()).hexdigest()[:16]


def _call(name: str) -> str:
    """The name of `Made` without file or module, which are others in Python."""
    kind, bracket, arguments = name.partition("(")
    return kind.rpartition(":")[2] + bracket + arguments


def _make(modality: str, given: Given) -> nn.Module:
    net = given.make()
    if not isinstance(net, nn.Module) or next(net.parameters(), None) is None:
        raise UserError(f"{given.name} makes {type(net).__name__}; --{modality}-network needs a module with parameters")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in net.parameters()):
        raise UserError(f"{given.name} has lazy modules; give a callable that runs one pass and returns the network")
    return net


def check(modality: str, text: str, shape: tuple[int, ...], device: torch.device = torch.device("cpu")) -> Made:
    """Make the network of a text from `use`, take off its classifier and run it on inputs [2, *shape].

    Raises UserError if it fails, if its output is not [n, dim], [n, positions, dim] or [n, dim, ...], or if it breaks
    what a run promises: the same numbers on any number of ranks and after a resumption.
    """
    given = _given[modality][text]
    with torch.random.fork_rng([device] if device.type == "cuda" else ()), torch.no_grad():
        net, inputs = _make(modality, given).to(device), torch.randn(2, *shape, device=device)
        form = _form(given, net)
        where = f"{given.name}, given inputs {[2, *shape]},"
        removed = _classifier(net.eval(), inputs, where)
        for name in removed:
            net.set_submodule(name, nn.Identity())
        dim = _positions(_run(net, inputs, where), 2, where).shape[1]
        before = {name: value.clone() for name, value in net.named_buffers()}
        outs = []
        for _ in range(2):
            torch.manual_seed(0)
            outs.append(_positions(_run(net.train(), inputs, where), 2, where))
    norms = {
        name for name, part in net.named_modules()
        if isinstance(part, _BatchNorm) and not isinstance(part, nn.SyncBatchNorm) and part.momentum is not None
    }  # fmt: skip
    for name, value in net.named_buffers():
        if not torch.equal(value, before[name]) and name.rpartition(".")[0] not in norms:
            raise UserError(
                f"{given.name} changes {name} in every pass, so a run would depend on ranks and groups; "
                "batch norm (nn.BatchNorm1d to 3d, with a momentum) is supported, and norms without running statistics"
            )
    if (outs[0] - outs[1]).norm() > 1e-2 * outs[0].norm():  # on a GPU, equal sums may round differently
        raise UserError(
            f"{given.name} draws random numbers elsewhere than from torch, so a run could not be repeated; "
            "use torch's for dropout and drop path"
        )
    return Made(given.name, form, dim, removed)


def _run(net: nn.Module, inputs: Tensor, where: str) -> Any:
    try:
        return net(inputs)
    except Exception as error:  # a network may raise anything
        raise UserError(
            f"{where} fails ({first_line(error)}); set --clip.frames, --clip.size or --clip.mel-frames to what it "
            "takes, or give a callable that rearranges the inputs"
        ) from error


def _classifier(net: nn.Module, inputs: Tensor, where: str) -> tuple[str, ...]:
    """Names of the last layer, if it is a classifier by its name, and of what normalises its scores."""
    ran, names = list[nn.Module](), {part: name for name, part in net.named_modules()}
    hook = nn.modules.module.register_module_forward_hook(lambda part, *_: ran.append(part))
    try:
        _run(net, inputs, where)
    finally:
        hook.remove()
    # a name that occurs again is that of a layer inside blocks, as attention's proj
    times = Counter(name.rpartition(".")[2] for name in names.values())
    removed = list[str]()
    for part in reversed([part for part in ran if part in names and next(part.children(), None) is None]):
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            named = any(word in _CLASSIFIERS and times[word] == 1 for word in names[part].split("."))
            return (names[part], *removed) if named else ()
        if next(part.parameters(), None) is not None:
            break
        if isinstance(part, nn.Softmax | nn.LogSoftmax | nn.Sigmoid):
            removed.append(names[part])
    return ()


def _positions(out: Any, n: int, where: str = "the network") -> Tensor:
    """The output of a network on n inputs as [n, dim, ...]. Raises UserError if it has another form."""
    for name in ("last_hidden_state", "logits"):  # of transformers
        if isinstance(getattr(out, name, None), Tensor):
            out = getattr(out, name)
            break
    if not isinstance(out, Tensor) or not 2 <= out.dim() <= 5 or len(out) != n:
        form = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(
            f"{where} returns {form} instead of [n, features], [n, positions, features] or maps [n, features, ...]; "
            "give a callable whose network returns one of them"
        )
    return out[..., None] if out.dim() == 2 else out.transpose(1, 2) if out.dim() == 3 else out
