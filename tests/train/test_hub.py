"""Models in a hub, from a server on this machine that answers as the hub does."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gdt
from gdt.common.errors import UserError
from gdt.eval.export import export
from gdt.eval.settings import Export
from gdt.train.checkpoint import load_model
from gdt.train.published import located
from tests.conftest import Run
from tests.faulty import serving
from tests.train.test_weights import Evil

pytest.importorskip("huggingface_hub", reason="needs the extra hub")
from huggingface_hub import constants

COMMIT = "0123456789" * 4
NAME = "hf://owner/mine"
Hub = SimpleNamespace


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serves an export as owner/mine; `asked` are addresses of requests, which `refusal`, if any, answers."""
    state = SimpleNamespace(address="", folder=tmp_path / "mine", asked=[], refusal=None)
    export(Export(to=state.folder, ckpt=checkpoint))

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            state.asked.append(self.path)
            prefix = "/owner/mine/resolve/"
            known = self.path.startswith(tuple(f"{prefix}{revision}/" for revision in ("main", "v1", COMMIT)))
            refusal = state.refusal if known else (404, "RepoNotFound")
            if refusal is not None:
                status, code = refusal
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = (state.folder / Path(self.path).name).read_bytes()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{len(content)}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

    with serving(Handler) as state.address:
        monkeypatch.setenv("HF_ENDPOINT", state.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield state


@pytest.mark.parametrize("name", ["hf://owner/mine", "hf://owner/mine@v1"])
def test_an_exported_folder_is_loaded_from_a_hub(hub: Hub, checkpoint: Path, name: str) -> None:
    assert located(name) is None
    model = gdt.load(name)
    assert model._trained.digest() == load_model(checkpoint).digest()
    assert name in repr(model)
    assert located(name) == next(Path(constants.HF_HUB_CACHE).rglob("model.safetensors"))
    assert {Path(address).name for address in hub.asked} == {"model.safetensors"}  # and no other file
    asked = len(hub.asked)
    gdt.load(name)
    assert len(hub.asked) == asked + 1  # whether it has changed


def test_code_in_a_file_of_a_hub_is_not_run(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    state = torch.load(checkpoint, weights_only=True)
    torch.save(state | {"more": Evil(os.system, f"touch {ran}")}, hub.folder / "model.safetensors")
    with contextlib.suppress(UserError):
        gdt.load(NAME)
    assert hub.asked and not ran.exists()


def test_a_command_takes_a_model_of_a_hub(
    hub: Hub, command: Run, shards: Path, synthetic: Path, tmp_path: Path
) -> None:
    environment = {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(tmp_path / "cache")}
    command("embed", "--ckpt", NAME, "--shards", shards, "--clips", 1, **environment, check=True)
    features = gdt.read_features(tmp_path / "features.h5")
    assert features.metadata["checkpoint"] == "hf://owner/mine"
    evaluation = ("evaluate", "--ckpt", NAME, "--shards", shards, "--clips", 1, "--protocols", "retrieval")
    done = command(*evaluation, "--out", "results", **environment)
    assert done.returncode == 0 and "mine" in done.stdout and "damaged" not in done.stderr, done.stderr
    assert "\nmine " in (tmp_path / "results" / "table.txt").read_text()
    query = next((synthetic / "test").rglob("*.mp4"))
    command("nearest", "--features", "features.h5", "--query", query, **environment, check=True)


def test_export_prints_the_command_that_uploads(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    lines = [line.strip() for line in export(Export(to=folder, ckpt=checkpoint)).splitlines()]
    (upload,) = (line for line in lines if line.startswith("hf "))
    assert shlex.split(upload) == ["hf", "upload", "OWNER/my model", str(folder)]


@pytest.mark.parametrize(
    ("name", "refusal", "message"),
    [
        ("hf://owner/other", None, r"cannot download model.safetensors of owner/other from .* \(Repository"),
        ("hf://owner/mine", (403, "GatedRepo"), "GatedRepoError: .*; .* run 'hf auth login' for a gated"),
        ("hf://owner", None, "hf://owner is not a model in a hub; write hf://owner/name"),
    ],
)
def test_what_a_hub_refuses_is_one_sentence(hub: Hub, name: str, refusal: tuple[int, str] | None, message: str) -> None:
    hub.refusal = refusal
    with pytest.raises(UserError, match=message) as error:
        gdt.load(name)
    assert "\n" not in str(error.value)


def test_without_a_network_the_cache_is_used_or_one_sentence_says_so(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="of owner/mine from http://127.0.0.1:9 .*; check the name"):
        gdt.load(NAME)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    gdt.load(NAME)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert gdt.load(NAME)._trained.digest() == load_model(checkpoint).digest()


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf://owner/mine needs huggingface_hub; run pip install 'gdt-video\[hub\]'"):
        gdt.load(NAME)
    assert located(NAME) is None
