"""Servers on this machine: any, and a local S3 (moto's) that counts requests and can fail in the ways of networks."""

import contextlib
import logging
import os
import random
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gdt.common import retries

REFUSALS = {"unavailable": (503, "SlowDown"), "forbidden": (403, "AccessDenied")}
FAULTS = ("unavailable", "reset", "cut", "wrong bytes", "slow")


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that logs nothing."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


class Store:
    """A store as a WSGI application: what it saw, and what it is to do."""

    def __init__(self, server: Any) -> None:
        """Takes the place of the application of a server."""
        self.app, server.app = server.app, self
        self.address = f"http://127.0.0.1:{server.port}"
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
        urllib.request.urlopen(f"{self.address}/moto-api/reset", b"")
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

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer a request."""
        from werkzeug import Response
        from werkzeug.wsgi import ClosingIterator

        method, path = environ["REQUEST_METHOD"], environ["REQUEST_URI"]
        fault = self.take(f"{method} {path}")
        if fault == "no answer":
            self.over.wait()
            raise ConnectionError
        if fault in REFUSALS:
            status, code = REFUSALS[fault]
            error = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
            response = Response(error, status, content_type="application/xml")
        else:
            response = Response.from_app(self.app, environ)
        with self.lock:
            self.seen.append((method, path, response.status_code))
        data = b"" if method == "HEAD" else response.get_data()
        if fault == "wrong bytes" and data:
            at = random.randrange(len(data))  # the same twice would be a damaged object
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if fault == "slow":
            time.sleep(1.0)
        start_response(response.status, response.headers.to_wsgi_list())
        if fault == "reset":
            connection = environ["werkzeug.socket"]
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return ClosingIterator([data[: len(data) // 2]], lambda: os.close(connection.detach()))
        return [data[: len(data) // 2] if fault == "cut" else data]


@contextlib.contextmanager
def serve() -> Iterator[Store]:
    """A store, as what AWS's own settings name."""
    moto = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto.start()
    store = Store(moto._server)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": store.address, "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        patch.setattr(retries, "PAUSES", [0.05] * 4)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)  # its own pauses are longer
        yield store
    store.over.set()
    moto.stop()
