"""What a network of the user's own is, found out by running it once, and what it must keep."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Clip
from gdt.train.models.network import OwnNetwork
from gdt.train.models.own import Maker, input_shape, positions

_DRAWING = ("rand", "rand_like", "uniform_", "bernoulli", "bernoulli_")
"""Operations of torch that draw from 0 to 1."""
_CLASSIFIERS = ("fc", "head", "classifier", "proj")
"""Names of classifiers in torchvision, timm, pytorchvideo and transformers."""


def check_network(modality: str, maker: Maker, clip: Clip, device: torch.device = torch.device("cpu")) -> OwnNetwork:
    """Make a network, find its classifier and run it on two inputs.

    Raises UserError if its output is not [n, dim], [n, positions, dim] or [n, dim, ...], or if it breaks what a run
    promises: the same numbers on any number of ranks and after a resumption. Its own errors are Python's.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else ()), torch.no_grad():
        net = maker.make().to(device)
        inputs = torch.randn(2, *input_shape(modality, clip), device=device)
        where = f"{maker.name}, given inputs {list(inputs.shape)},"
        try:
            removed = _classifier(net.eval(), inputs)
            for name in removed:
                net.set_submodule(name, nn.Identity())
            output = net(inputs)
        except Exception as error:  # a network may raise anything
            error.add_note(
                f"{where} fails; set --clip.frames, --clip.size or --clip.mel-frames to what it takes, or "
                "give a callable that rearranges the inputs"
            )
            raise
        dim = positions(output, 2, where).shape[1]
        before = {name: value.clone() for name, value in net.named_buffers()}
        passes = []
        for _ in range(2):
            torch.manual_seed(0)
            passes.append(positions(net.train()(inputs), 2, where))
        counts = [_norm_passes(net, inputs, drawn) for drawn in (0.0, 1.0)]
    _require_promises(maker.name, net, before, passes)
    skipped = [name for name, passes in counts[0].items() if passes != counts[1].get(name, passes)]
    if skipped:
        raise UserError(
            f"{maker.name} does not run its batch norm {skipped[0]} in every pass, so its running statistics would "
            "depend on ranks and groups; multiply what a block adds by 0 instead of skipping it"
        )
    return OwnNetwork(maker.name, dim, removed)


class _Draws(TorchDispatchMode):
    """Makes all numbers that torch draws from 0 to 1 the same, so that all blocks that may be skipped are, or none."""

    def __init__(self, drawn: float) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        drawing = str(func.overloadpacket).rpartition(".")[2] in _DRAWING
        return result.fill_(self._drawn) if drawing else result


def _norm_passes(net: nn.Module, inputs: Tensor, drawn: float) -> dict[str, int]:
    """How often each batch norm runs in a training pass whose random numbers are `drawn`."""
    norms = {path: part for path, part in net.named_modules() if isinstance(part, _BatchNorm)}
    counted = {path: part.num_batches_tracked for path, part in norms.items() if part.num_batches_tracked is not None}
    before = {path: int(count) for path, count in counted.items()}
    with _Draws(drawn):
        net(inputs)
    return {path: int(count) - before[path] for path, count in counted.items()}


def _require_promises(name: str, net: nn.Module, before: Mapping[str, Tensor], passes: Sequence[Tensor]) -> None:
    """Raise UserError unless only batch norms changed their buffers, and two passes from a seed are the same."""
    norms = set[str]()
    for path, part in net.named_modules():
        if isinstance(part, _BatchNorm) and not isinstance(part, nn.SyncBatchNorm) and part.momentum is not None:
            norms.add(path)
    for path, value in net.named_buffers():
        if not torch.equal(value, before[path]) and path.rpartition(".")[0] not in norms:
            raise UserError(
                f"{name} changes {path} in every pass, so a run would depend on ranks and groups; "
                "batch norm (nn.BatchNorm1d to 3d, with a momentum) is supported, and norms without running statistics"
            )
    first, second = passes
    if (first - second).norm() > 1e-2 * first.norm():  # on a GPU, equal sums may round differently
        raise UserError(
            f"{name} draws random numbers elsewhere than from torch, so a run could not be repeated; "
            "use torch's for dropout and drop path"
        )


def _classifier(net: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """Names of the last layer, if it is a classifier by its name, and of what normalises its scores."""
    ran = list[nn.Module]()
    names = {part: name for name, part in net.named_modules()}
    hook = nn.modules.module.register_module_forward_hook(lambda part, *_: ran.append(part))
    try:
        net(inputs)
    finally:
        hook.remove()
    # a name that occurs again is that of a layer inside blocks, as attention's proj
    times = Counter(name.rpartition(".")[2] for name in names.values())
    removed = list[str]()
    leaves = [part for part in ran if part in names and next(part.children(), None) is None]
    for part in reversed(leaves):
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            named = any(word in _CLASSIFIERS and times[word] == 1 for word in names[part].split("."))
            return (names[part], *removed) if named else ()
        if next(part.parameters(), None) is not None:
            break
        if isinstance(part, nn.Softmax | nn.LogSoftmax | nn.Sigmoid):
            removed.append(names[part])
    return ()
