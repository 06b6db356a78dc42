"""The processes of one run: where each computes, whether they start alike, and that none waits for one that is gone.

Collective operations of torch wait for every rank, for minutes or for ever if one has died. So every rank keeps a
connection to the first, on which nothing is said while all is well: the system closes a process's connections however
it ends, and TCP notices within half a minute that a machine is gone.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.connection
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from tqdm import tqdm

from gdt.common.errors import INTERRUPTED, UserError, first_line
from gdt.train.launch import require_gpus, sees_one_gpu, silence_other_ranks

_SECONDS = 60.0
_WHY = "it was killed or crashed, or its machine is gone; the same command goes on from the last checkpoint"
_SILENCE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    # a machine that does not answer is given up after 10 + 4 * 5 seconds
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10), (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4), (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
)  # fmt: skip
_TOKEN = 16
"""Bytes by which the first rank knows the others, followed by the number of each."""


def join_ranks(wanted: Literal["auto", "cpu", "cuda"], threads: int) -> tuple[int, int, torch.device]:
    """Rank, number of ranks, device; joins the process group where a launcher has started several ranks.

    `threads` of the CPU are for one process; 0 leaves it to torch.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU; use --device cpu, or check the driver with nvidia-smi")
    cuda = torch.cuda.is_available() and wanted != "cpu"
    rank, world, local = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    own_gpu = sees_one_gpu(os.environ)
    if world > 1 and not own_gpu:
        with silence_other_ranks():
            require_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)), wanted)
    device = torch.device("cuda", 0 if own_gpu else local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # shapes stay the same from step to step
    if threads:
        torch.set_num_threads(threads)
    if world > 1 and not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if cuda else "gloo")
        except dist.DistError as error:
            where = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise UserError(
                f"rank {rank} does not meet the others at {where} ({first_line(error)}); see that all {world} were "
                "started and can reach it, or set MASTER_PORT to another port"
            ) from error
    return rank, world, device


def require_equal(facts: Mapping[str, str], what_to_do: str) -> None:
    """Raise UserError, on every rank, unless all ranks say the same; `facts` are in the words of the message."""
    if not dist.is_initialized():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(facts))
    for rank, said in enumerate(everyone):
        for name, value in everyone[0].items():
            if said[name] != value:
                raise UserError(
                    f"rank {rank} starts with another {name} than rank 0 ({said[name]}, not {value}); {what_to_do}"
                )


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


def leave_without_teardown(status: int = 0) -> NoReturn:
    """End a rank whose work is on disk.

    Threads of torch's communication that still run while the interpreter is torn down now and then abort the process
    ("terminate called without an active exception"), and torchrun would call a finished run a failed one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def watch_ranks(device: torch.device) -> Iterator[None]:
    """While this lasts, the end of any rank ends the others, with a reason, printed once; left only when all are done.

    An error that is raised inside is told to the other ranks first.
    """
    if not dist.is_initialized():
        yield
        return
    watch = _Watch(device)
    try:
        yield
    except UserError as error:
        watch.end(f"error: {error}")
        if watch.rank:  # the first rank prints it
            sys.exit(2)
        raise
    except KeyboardInterrupt:
        watch.end(INTERRUPTED, 130)
        raise
    except SystemExit:
        watch.end(None)
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError):
            time.sleep(_SECONDS / 12)  # a collective operation fails where a rank is gone; the watch ends this process
        watch.end(f"error: {first_line(error)}")
        raise
    else:
        watch.end(None)


class _Watch:
    """This rank's connections: of the first rank to every other, of the others to the first.

    On each, either side says once how it has ended: as JSON, what was wrong, if anything was, and its exit status.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self._lock = threading.Lock()
        self._over = False
        server = _server() if self.rank == 0 else None
        told: list[Any] = [server.getsockname()[1], secrets.token_bytes(_TOKEN)] if server else [None, None]
        dist.broadcast_object_list(told, 0, device=device)
        port, token = told
        if server:
            with server:
                self._peers = _admitted(server, token, dist.get_world_size() - 1)
        else:
            self._peers = {0: _reached(port, token, self.rank)}
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)
        self._thread.start()

    def end(self, error: str | None, status: int = 2) -> None:
        """Say that this rank is done, or why it is not, and wait a little for the others to say so.

        With such an exit status, if it is not.
        """
        with self._lock:
            self._over = error is not None
        self._say(error, status)
        if error is None:
            self._thread.join(_SECONDS / 4)

    def _say(self, error: str | None, status: int, but: int = -1) -> None:
        for rank, peer in self._peers.items():
            if rank != but:
                with contextlib.suppress(OSError):
                    peer.send_bytes(json.dumps([error, status]).encode())

    def _listen(self) -> None:
        """Until every peer has ended."""
        left = {peer: rank for rank, peer in self._peers.items()}
        while left:
            for peer in multiprocessing.connection.wait(list(left)):
                rank = left.pop(peer)  # type: ignore[call-overload]
                try:
                    error, status = json.loads(peer.recv_bytes())  # type: ignore[union-attr]
                    self._judge(rank, error, status)
                except (EOFError, OSError):
                    why = f"error: rank {rank} has ended without a word, and so do the others: {_WHY}"
                    self._judge(rank, why, 2, silent=True)

    def _judge(self, rank: int, error: str | None, status: int, silent: bool = False) -> None:
        """End this process where a peer was not done."""
        with self._lock:
            if error is None or self._over:
                return
            if self.rank == 0:
                self._say(error, status, but=rank)
            if self.rank == 0 or (self.rank == 1 and silent):  # the first of those that are left
                tqdm.write(error, file=sys.stderr)
                sys.stderr.flush()
            os._exit(status)


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _admitted(server: socket.socket, token: bytes, count: int) -> dict[int, Connection]:
    """So many connections, by the ranks at their other ends; whoever does not know the token is turned away."""
    server.settimeout(_SECONDS)
    found: dict[int, Connection] = {}
    while len(found) < count:
        peer, _ = server.accept()
        peer.settimeout(_SECONDS)
        said = b""
        with contextlib.suppress(OSError):
            while len(said) < _TOKEN + 4 and (more := peer.recv(_TOKEN + 4 - len(said))):
                said += more
        if said[:_TOKEN] == token:
            found[int.from_bytes(said[_TOKEN:], "little")] = _kept(peer)
        else:
            peer.close()
    return found


def _reached(port: int, token: bytes, rank: int) -> Connection:
    """The connection to the first rank."""
    host = os.environ.get("MASTER_ADDR", "localhost")
    try:
        peer = socket.create_connection((host, port), _SECONDS)
    except OSError as error:
        raise UserError(f"rank {rank} cannot reach rank 0 at {host}:{port} ({error})") from error
    peer.sendall(token + rank.to_bytes(4, "little"))
    return _kept(peer)


def _kept(peer: socket.socket) -> Connection:
    peer.settimeout(None)
    for level, name, value in _SILENCE:
        if (option := getattr(socket, name, None)) is not None:
            peer.setsockopt(level, option, value)
    return Connection(peer.detach())


class StopSignal:
    """While entered, remembers SIGTERM, SIGUSR1 or Ctrl-C until the step is done; Ctrl-C twice stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # no other can say what becomes of signals
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
