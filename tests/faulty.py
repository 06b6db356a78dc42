"""Servers on this machine: a local S3 (moto's) behind a proxy that counts requests and can fail as networks do."""

import contextlib
import http.client
import logging
import random
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gdt.common import retries

FAULTS = ("unavailable", "reset", "cut", "wrong bytes", "slow")


class Store:
    """The proxy's state: what it saw, and what it is to do."""

    def __init__(self, port: int) -> None:
        self.moto = port
        self.seen: list[tuple[str, str, int]] = []
        """Method, path and status of requests."""
        self.faults: list[tuple[str, str, int]] = []
        """Pattern of `METHOD path`, fault, and how often yet."""
        self.lock = threading.Lock()
        self.over = threading.Event()

    def fail(self, pattern: str, fault: str, times: int = 1) -> None:
        """Fail the next requests that match."""
        self.faults.append((pattern, fault, times))

    def begin_anew(self) -> None:
        """Let go of requests that wait, and empty the store but for a bucket named bucket."""
        self.over.set()
        self.over = threading.Event()
        self.faults.clear()
        urllib.request.urlopen(f"http://127.0.0.1:{self.moto}/moto-api/reset", b"")
        type(self.files).clear_instance_cache()
        self.files.mkdir("bucket")
        self.seen.clear()

    def take(self, request: str) -> str:
        with self.lock:
            for k, (pattern, fault, left) in enumerate(self.faults):
                if left and re.search(pattern, request):
                    self.faults[k] = (pattern, fault, left - 1)
                    return random.choice(FAULTS) if fault == "any" else fault
        return ""

    @property
    def files(self) -> Any:
        """The file system."""
        import s3fs

        return s3fs.S3FileSystem()

    def paths(self, method: str, pattern: str) -> list[str]:
        """Of requests that succeeded."""
        seen = [(how, path) for how, path, status in self.seen if status < 300]
        return [path for how, path in seen if how == method and re.search(pattern, path)]


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], **attributes: object) -> Iterator[str]:
    """The address of a server that logs nothing, whose handlers have some attributes."""
    quiet = type("Quiet", (handler,), attributes | {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.store.take(f"{self.command} {self.path}")
        if fault == "no answer":
            self.store.over.wait()
            return
        if fault in ("unavailable", "forbidden"):
            status, code = (503, "SlowDown") if fault == "unavailable" else (403, "AccessDenied")
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.answer(status, {"Content-Type": "application/xml"}, b"" if self.command == "HEAD" else text)
            return
        backend = http.client.HTTPConnection("127.0.0.1", self.store.moto)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        backend.request(self.command, self.path, body, headers)
        response = backend.getresponse()
        data = response.read()
        hop = ("connection", "transfer-encoding")
        kept = {name: value for name, value in response.getheaders() if name.lower() not in hop}
        if fault == "wrong bytes" and data:
            at = random.randrange(len(data))  # the same twice would be a damaged object
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if fault == "slow":
            time.sleep(1.0)
        if fault in ("reset", "cut"):
            self.answer(response.status, kept, data, sent=len(data) // 2)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self.answer(response.status, kept, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def answer(self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None) -> None:
        with self.store.lock:
            self.store.seen.append((self.command, self.path, status))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data if sent is None else data[:sent])
            self.wfile.flush()


@contextlib.contextmanager
def serve() -> Iterator[Store]:
    """A store, as what AWS's own settings name."""
    server_of = pytest.importorskip("moto.server").ThreadedMotoServer
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    state = Store(moto.get_host_and_port()[1])
    with serving(Handler, store=state) as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        patch.setattr(retries, "PAUSES", [0.05] * 4)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)  # its own pauses are longer
        yield state
        state.over.set()
    moto.stop()
