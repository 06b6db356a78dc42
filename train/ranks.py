"""The processes of one run: whether they start alike, and that none waits for one that is gone.

Collective operations of torch wait for every rank, for minutes or for ever if one has died. So every rank keeps a
connection to the first, on which nothing is said while all is well: the system closes a process's connections however
it ends, and TCP notices within half a minute that a machine is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from gdt.common.errors import INTERRUPTED, UserError, first_line

_SECONDS = 60.0
_WHY = "it was killed or crashed, or its machine is gone; the same command goes on from the last checkpoint"
_SILENCE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    # a machine that does not answer is given up after 10 + 4 * 5 seconds
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10), (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4), (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
)  # fmt: skip


def require_alike(facts: Mapping[str, str], what_to_do: str) -> None:
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


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
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
    except RuntimeError as error:
        time.sleep(_SECONDS / 12)  # a collective operation fails where a rank is gone; the watch then ends this process
        watch.end(f"error: {first_line(error)}")
        raise
    except BaseException as error:
        watch.end(f"error: {first_line(error)}")
        raise
    else:
        watch.end(None)


class _Watch:
    """This rank's side of the connections."""

    def __init__(self, device: torch.device) -> None:
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self._lock = threading.Lock()
        self._over = False
        server = _server() if self.rank == 0 else None
        told = torch.zeros(2, dtype=torch.int64, device=device)
        if server is not None:
            told = torch.tensor([server.getsockname()[1], secrets.randbits(62)], device=device)
        dist.broadcast(told, 0)
        port, token = told.tolist()
        self._peers: dict[int, socket.socket] = {}
        if server is not None:
            server.settimeout(_SECONDS)
            with server:
                while len(self._peers) < world - 1:
                    self._admit(server.accept()[0], token)
        else:
            host = os.environ.get("MASTER_ADDR", "localhost")
            try:
                self._peers[0] = socket.create_connection((host, port), _SECONDS)
            except OSError as error:
                raise UserError(f"rank {self.rank} cannot reach rank 0 at {host}:{port} ({error})") from error
            self._peers[0].sendall(b"%d %d\n" % (token, self.rank))
        for peer in self._peers.values():
            peer.settimeout(None)
            for level, name, value in _SILENCE:
                if (option := getattr(socket, name, None)) is not None:
                    peer.setsockopt(level, option, value)
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)
        self._thread.start()

    def _admit(self, peer: socket.socket, token: int) -> None:
        peer.settimeout(_SECONDS)
        said: list[bytes] = []
        with contextlib.suppress(OSError), peer.makefile("rb") as line:
            said = line.readline(100).split()
        if len(said) == 2 and said[0] == b"%d" % token:
            self._peers[int(said[1])] = peer
        else:
            peer.close()  # somebody else's

    def end(self, error: str | None, status: int = 2) -> None:
        """Say that this rank is done, or why it is not, and wait a little for the others to say so.

        With such an exit status, if it is not.
        """
        with self._lock:
            self._over = error is not None
        self._say({"rank": self.rank, "error": error, "status": status})
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
        if error is None:
            self._thread.join(_SECONDS / 4)

    def _say(self, what: Mapping[str, Any], but: int = -1) -> None:
        for rank, peer in self._peers.items():
            if rank != but:
                with contextlib.suppress(OSError):
                    peer.sendall(json.dumps(what).encode() + b"\n")

    def _listen(self) -> None:
        """Until every peer is done."""
        with selectors.DefaultSelector() as selector:
            lines = dict.fromkeys(self._peers, b"")
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while lines:
                for key, _ in selector.select():
                    rank = key.data
                    try:
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    except OSError:
                        data = b""
                    lines[rank] += data
                    if data:
                        continue
                    selector.unregister(key.fileobj)
                    self._judge(rank, lines.pop(rank))

    def _judge(self, rank: int, said: bytes) -> None:
        """End this process where a peer that has gone was not done."""
        try:
            last = json.loads(said.splitlines()[-1])
        except (ValueError, IndexError):
            why = f"error: rank {rank} has ended without a word, and so do the others: {_WHY}"
            last = {"rank": rank, "error": why, "status": 2}
        with self._lock:
            if last["error"] is None or self._over:
                return
            if self.rank == 0:
                self._say(last, but=rank)
            if self.rank == 0 or (self.rank == 1 and not said):  # the first of those that are left
                tqdm.write(last["error"], file=sys.stderr)
                sys.stderr.flush()
            os._exit(last["status"])


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
