"""Weights by name, from a server on this machine."""

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest

import gdt
from gdt.common.errors import UserError
from gdt.train import published
from gdt.train.published import PUBLISHED, fetch
from tests.faulty import serving

NAME = "gdt-k400"


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Serves a checkpoint as gdt-k400; `answer` spoils that, and `asked` counts requests."""
    body = checkpoint.read_bytes()
    end = threading.Event()
    state = SimpleNamespace(answer="", asked=0, file=tmp_path / "hub" / "checkpoints" / "gdt_K400.pth")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked += 1
            if state.answer == "silent":
                end.wait()
                return
            self.send_response(404 if state.answer == "404" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body[:-1] + b"x" if state.answer == "wrong" else body
            sent = sent[: len(body) // 2] if state.answer == "cut" else sent
            for at in range(0, len(sent), step := len(sent) // 4 + 1):
                time.sleep(0.1 if state.answer == "slow" else 0)
                self.wfile.write(sent[at : at + step])

    with serving(Handler) as here:
        known = replace(PUBLISHED[NAME], address=f"{here}/GDT/gdt_K400.pth", digest=hashlib.sha1(body).hexdigest())
        monkeypatch.setitem(PUBLISHED, NAME, known)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        yield state
        end.set()


def test_weights_are_downloaded_once_and_loaded_by_name(
    server: SimpleNamespace, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert gdt.load("gdt-k400")._trained.digest() == gdt.load(checkpoint)._trained.digest()
    assert server.asked == 1 and server.file.read_bytes() == checkpoint.read_bytes()
    Path("gdt-k400").write_text("mine")  # a file of that name is the user's
    with pytest.raises(UserError, match="gdt-k400 cannot be read"):
        gdt.load("gdt-k400")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("404", "404"), ("cut", "incomplete"), ("wrong", "was changed"), ("silent", "timed out"), ("gone", "refused")],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(
    server: SimpleNamespace, answer: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer == "gone":
        gone = replace(PUBLISHED[NAME], address="http://127.0.0.1:9/GDT/gdt_K400.pth")
        monkeypatch.setitem(PUBLISHED, NAME, gone)
    server.answer = answer
    if answer == "silent":
        monkeypatch.setattr(published, "_TIMEOUT", 0.1)
    with pytest.raises(UserError, match=reason) as error:
        fetch(NAME)
    assert PUBLISHED[NAME].address in str(error.value) and str(server.file) in str(error.value)
    assert [path.name for path in server.file.parent.iterdir()] == [".lock"]


def test_processes_that_ask_at_once_download_once(server: SimpleNamespace) -> None:
    server.answer = "slow"
    with ThreadPoolExecutor(4) as pool:  # locks are between open files, as of processes
        assert set(pool.map(fetch, [NAME] * 4)) == {server.file}
    assert server.asked == 1


def test_a_file_in_the_cache_is_checked(server: SimpleNamespace) -> None:
    server.file.parent.mkdir(parents=True)
    server.file.write_bytes(b"another file")
    with pytest.raises(UserError, match="delete it"):
        fetch(NAME)
    assert server.asked == 0
