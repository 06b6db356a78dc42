"""The ranks of a run: join, check that all start equal, and stop together.

If a rank dies, torch's collectives hang for minutes or forever. So every rank keeps an idle connection to rank 0, which
the system closes when a process ends; TCP keep-alive detects a lost machine within 30 seconds.
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
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from tqdm import tqdm

from gdt.common.errors import INTERRUPTED, UserError, first_line
from gdt.train.launch import require_gpus, sees_one_gpu, silence_other_ranks

_TIMEOUT = 60.0
"""Seconds to wait for a connection to another rank."""
_LOST = "it was killed or crashed, or its machine is gone; run the same command to resume from the last checkpoint"
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    # a machine is considered gone after 10 + 4 * 5 seconds
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10), (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4), (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
)  # fmt: skip
_TOKEN = 16
"""Bytes of the secret that the other ranks send to rank 0, followed by their rank."""


def join_ranks(requested: Literal["auto", "cpu", "cuda"], threads: int) -> tuple[int, int, torch.device]:
    """Join the process group if a launcher started several ranks; returns rank, world size and device.

    `threads`: CPU threads of this process; 0 for torch's default.
    """
    rank, world, local = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    own_gpu = sees_one_gpu(os.environ)
    with silence_other_ranks():
        require_gpus(1 if world == 1 or own_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)), requested)
    cuda = torch.cuda.is_available() and requested != "cpu"
    device = torch.device("cuda", 0 if own_gpu else local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # worth its time, since shapes do not change
    if threads:
        torch.set_num_threads(threads)
    if world > 1 and not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if cuda else "gloo")
        except dist.DistError as error:
            where = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise UserError(
                f"rank {rank} cannot join the others at {where} ({first_line(error)}); check that all {world} were "
                "started and can reach it, or set MASTER_PORT to another port"
            ) from error
    return rank, world, device


def require_equal(facts: Mapping[str, str], advice: str) -> None:
    """Raise UserError on every rank unless `facts` are equal on all; the message names the first difference."""
    if not dist.is_initialized():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(facts))
    for rank, own in enumerate(everyone):
        for name, value in everyone[0].items():
            if own[name] != value:
                raise UserError(
                    f"rank {rank} starts with a different {name} from rank 0 ({own[name]}, not {value}); {advice}"
                )


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


@contextlib.contextmanager
def group_of_one() -> Iterator[dist.ProcessGroup | None]:
    """A process group of this rank only."""
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def leave_without_teardown(status: int = 0) -> NoReturn:
    """Exit without tearing down the interpreter, once all work is on disk.

    During teardown, torch's communication threads sometimes abort the process ("terminate called without an active
    exception"), and torchrun would report a failed run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def watch_ranks(device: torch.device, clean_up: Callable[[], None]) -> Iterator[None]:
    """Context in which a failing rank ends all ranks, with one message.

    A rank sends its error to the others before raising it; they call `clean_up` and exit.
    """
    if not dist.is_initialized():
        yield
        return
    watch = _Watch(device, clean_up)
    try:
        yield
    except UserError as error:
        watch.end(f"error: {error}")
        if watch.rank:  # rank 0 prints it
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
            # a collective may have failed because another rank died: then the watch ends this process meanwhile
            time.sleep(_TIMEOUT / 12)
        watch.end(f"error: {first_line(error)}")
        raise
    else:
        watch.end(None)


class _Watch:
    """Connections between rank 0 and every other rank.

    Each side sends one message when it ends: JSON of [error or null, exit status].
    """

    def __init__(self, device: torch.device, clean_up: Callable[[], None]) -> None:
        self.rank, self._clean_up = dist.get_rank(), clean_up
        self._lock = threading.Lock()
        self._ended = False
        server = _server() if self.rank == 0 else None
        address: list[Any] = [server.getsockname()[1], secrets.token_bytes(_TOKEN)] if server else [None, None]
        dist.broadcast_object_list(address, 0, device=device)
        port, token = address
        if server:
            with server:
                self._peers = _accept(server, token, dist.get_world_size() - 1)
        else:
            self._peers = {0: _connect(port, token, self.rank)}
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)
        self._thread.start()

    def end(self, error: str | None, status: int = 2) -> None:
        """Send this rank's error and status to the others; without an error, wait for them to end, up to 15 seconds."""
        with self._lock:
            self._ended = error is not None
        self._send(error, status)
        if error is None:
            self._thread.join(_TIMEOUT / 4)

    def _send(self, error: str | None, status: int, skip: int = -1) -> None:
        for rank, peer in self._peers.items():
            if rank != skip:
                with contextlib.suppress(OSError):
                    peer.send_bytes(json.dumps([error, status]).encode())

    def _listen(self) -> None:
        """Receive messages until every peer has ended."""
        left = {peer: rank for rank, peer in self._peers.items()}
        while left:
            for peer in multiprocessing.connection.wait(list(left)):
                rank = left.pop(peer)  # type: ignore[call-overload]
                try:
                    error, status = json.loads(peer.recv_bytes())  # type: ignore[union-attr]
                    self._handle(rank, error, status)
                except (EOFError, OSError):
                    why = f"error: rank {rank} ended without a message, so all ranks end: {_LOST}"
                    self._handle(rank, why, 2, silent=True)

    def _handle(self, rank: int, error: str | None, status: int, silent: bool = False) -> None:
        """End this process if a peer failed."""
        with self._lock:
            if error is None or self._ended:
                return
            if self.rank == 0:
                self._send(error, status, skip=rank)
            if self.rank == 0 or (self.rank == 1 and silent):  # the lowest rank that is left
                tqdm.write(error, file=sys.stderr)
                sys.stderr.flush()
            self._clean_up()
            os._exit(status)


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept(server: socket.socket, token: bytes, count: int) -> dict[int, Connection]:
    """Accept `count` connections, by rank; reject peers without the token."""
    server.settimeout(_TIMEOUT)
    found: dict[int, Connection] = {}
    while len(found) < count:
        peer, _ = server.accept()
        peer.settimeout(_TIMEOUT)
        received = b""
        with contextlib.suppress(OSError):
            while len(received) < _TOKEN + 4 and (more := peer.recv(_TOKEN + 4 - len(received))):
                received += more
        if received[:_TOKEN] == token:
            found[int.from_bytes(received[_TOKEN:], "little")] = _with_keep_alive(peer)
        else:
            peer.close()
    return found


def _connect(port: int, token: bytes, rank: int) -> Connection:
    """Connect to rank 0."""
    host = os.environ.get("MASTER_ADDR", "localhost")
    try:
        peer = socket.create_connection((host, port), _TIMEOUT)
    except OSError as error:
        raise UserError(
            f"rank {rank} cannot reach rank 0 at {host}:{port} ({error}); allow connections to all ports of that "
            "machine"
        ) from error
    peer.sendall(token + rank.to_bytes(4, "little"))
    return _with_keep_alive(peer)


def _with_keep_alive(peer: socket.socket) -> Connection:
    peer.settimeout(None)
    for level, name, value in _KEEP_ALIVE:
        if (option := getattr(socket, name, None)) is not None:
            peer.setsockopt(level, option, value)
    return Connection(peer.detach())


class StopSignal:
    """Context that remembers SIGTERM, SIGUSR1 or Ctrl-C until the step is done; a second Ctrl-C stops at once."""

    REPEATED = 0.2
    """Seconds within which a second SIGINT is a duplicate: kill -INT of a process group reaches this process directly,
    and through its supervisor."""

    def __init__(self) -> None:
        self.signal = 0
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # only it can set signal handlers
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.signal == number == signal.SIGINT:
            if now - self._first < self.REPEATED:
                return
            raise KeyboardInterrupt
        self.signal, self._first = number, now
