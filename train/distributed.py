"""The ranks of a run, which torchrun starts: join, check that all start equal, and stop together."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gdt.common.errors import UserError
from gdt.common.machine import keep_freed_memory, leave_terminal
from gdt.common.wording import plural
from gdt.train.gpu import require_no_gpu

T = TypeVar("T")


class Process(NamedTuple):
    """One of the processes of a run."""

    rank: int
    world: int
    """How many there are."""
    device: torch.device


def join_ranks(requested: Literal["auto", "cpu", "cuda"], threads: int) -> Process:
    """Join the process group if torchrun started several ranks.

    `threads`: CPU threads of this process; 0 for torch's default. Raises UserError if there are too few GPUs.
    """
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    require_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)), requested)
    cuda = torch.cuda.is_available() and requested != "cpu"
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # worth its time, since shapes do not change
    else:
        keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    return Process(rank, world, device)


def is_first_here() -> bool:
    """Whether this rank is the first of its machine."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0


def require_gpus(ranks: int, device: Literal["auto", "cpu", "cuda"]) -> None:
    """Raise UserError if this machine has fewer GPUs than ranks, or a GPU that torch cannot use."""
    # device_count alone also counts GPUs that an old driver makes unusable
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or ranks <= gpus:
        return
    if not gpus:
        require_no_gpu()
    if ranks > 1 or device == "cuda":
        raise UserError(
            f"{plural(ranks, 'process', 'processes')} on this machine, but torch finds {plural(gpus, 'GPU')}; start "
            "one per GPU, check the driver with nvidia-smi, or set --device cpu"
        )


def require_equal(facts: Mapping[str, str], advice: str) -> None:
    """Raise UserError on every rank unless `facts` are equal on all; the message names the first difference."""
    if not dist.is_initialized():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(facts))
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs[name] != value:
                raise UserError(
                    f"rank {rank} starts with a different {name} from rank 0 ({theirs[name]}, not {value}); {advice}"
                )


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def agreed(signal: int, error: Exception | None) -> tuple[int, Exception | None]:
    """A signal that any rank has received, or 0, and an error that any rank has, or None: the same on all ranks.

    So all end together, and rank 0 says why: torchrun ends the others as soon as one has ended.
    """
    if not dist.is_initialized():
        return signal, error
    highest = torch.tensor([signal, int(error is not None)])
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if highest[1]:
        texts = [""] * dist.get_world_size()
        dist.all_gather_object(texts, "" if error is None else str(error) or type(error).__name__)
        error = error or UserError(next(filter(None, texts)))
    return int(highest[0]), error


def together(prepare: Callable[[], T]) -> T | None:
    """What `prepare` returns on this rank; if it raises UserError on any rank, all raise it."""
    prepared: T | None = None
    error: Exception | None = None
    try:
        prepared = prepare()
    except UserError as raised:
        error = raised
    _, error = agreed(0, error)
    if error is not None:
        raise error
    return prepared


def gather(rows: Tensor) -> list[Tensor]:
    """Rows of all ranks, in their order; all have the same number."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return parts


def all_reduce_flat(tensors: list[Tensor]) -> None:
    """Sum tensors over all ranks in place, in one collective."""
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])


def leave_without_teardown(status: int = 0) -> NoReturn:
    """Exit without tearing down the interpreter, once all work is on disk.

    During teardown, torch's communication threads sometimes abort the process ("terminate called without an active
    exception"), and torchrun would report a failed run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class StopSignal:
    """Context that remembers SIGTERM, SIGUSR1, Ctrl-C or a hang-up, so that the step in progress is finished and saved.

    nohup lets a process ignore SIGHUP; torchrun takes it over even so, and then ends its ranks, which do not ignore it.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # only it can set signal handlers
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        self.signal = number
        if number == signal.SIGHUP:
            leave_terminal()
