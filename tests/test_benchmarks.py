"""The benchmarks at tiny size: each runs, compares what it should, and says what fails."""

import os
import subprocess
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from benchmarks import gpu, loader, preprocess, step, store
from benchmarks.shared import draw
from gdt.common.errors import UserError
from gdt.pipeline import engines
from gdt.pipeline.shards.index import Index
from gdt.train.settings import Precision, Pretrain
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return draw(tmp_path_factory.mktemp("drawn") / "shards", 32)


def test_loading_is_measured_against_the_peer(drawn: Index, capsys: pytest.CaptureFixture[str]) -> None:
    loader.main(shards=drawn.folder, rows=("l",), clips=4, rounds=1)
    *_, taken, rate = capsys.readouterr().out.splitlines()
    assert taken.startswith("loader, CPU time per clip: ") and taken.endswith(" of peer, CPU time per clip")
    assert rate.startswith("loader, speed: ") and rate.endswith(" of peer, speed")


def test_preprocessing_is_measured_against_other_ways(capfd: pytest.CaptureFixture[str]) -> None:
    preprocess.main(count=2, rounds=1, workers=1)
    *_, bare, usual, stage = capfd.readouterr().out.splitlines()
    assert bare.startswith("bare ffmpeg: ") and usual.startswith("usual way: ")
    assert " of bare ffmpeg" in stage and " of usual way" in stage


def test_training_from_a_store_is_measured_beside_the_peer(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("s3fs")
    with patch.dict(os.environ):
        store.main(latencies=(1,), widths=(1000,), window=1)
    _, *lines = capfd.readouterr().out.splitlines()
    (ours,) = (line for line in lines if line.startswith(f"1 ms, 1000 MB/s, {store.OURS}: "))
    fetched = float(ours.split(" MB fetched")[0].split()[-1])
    assert 64 < fetched < 132, "at least the 12 shards of 5.4 MB once, at most twice"
    assert any(line.startswith("ratios: ") for line in lines) == any(f", {store.PEER}: " in line for line in lines)


def test_the_step_equals_the_plain_loop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step.main(clips=8, steps=1, rounds=1)
    out = capsys.readouterr().out
    assert out.count(f" of {step.PLAIN}") == 4  # rows e and l, with and without cached gradients
    plain = step.PlainLoop.step
    monkeypatch.setattr(step.PlainLoop, "step", lambda loop: 1.1 * plain(loop))
    with pytest.raises(UserError, match="the losses of the first step differ"):
        step.main(rows=("e",), clips=8, steps=1, rounds=1)


@pytest.mark.timeout(900)
def test_the_gpu_benchmark_runs_on_a_cpu() -> None:
    """Every row in its own process, and compiled code."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--size", "tiny", "--limit", "600"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, pixels, gradients, *rows = done.stdout.splitlines()
    assert "99.9 % within" in pixels
    assert "float32 compiled off by" in gradients and "bfloat16 is skipped on CPUs" in gradients
    assert [row.split("  ")[0] for row in rows] == [
        *(f"row {row}, decoder {decoder}, groups of 4" for row in "lea" for decoder in ("gpu", "cpu")),
        "row l, decoder cpu, groups of 2", "row l, decoder cpu, groups of 8",
    ]  # fmt: skip
    assert all(f" {unit}" in row for row in rows for unit in ("clips/s", "waiting %", "GiB", "loss"))


def test_wrong_gradients_are_reported(drawn: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu.gradient

    def wrong(index: Index, run: Pretrain, precision: Precision, compiled: bool) -> dict[str, torch.Tensor]:
        return {name: g * (1.1 if compiled else 1) for name, g in right(index, run, precision, False).items()}

    monkeypatch.setattr(gpu, "gradient", wrong)
    with pytest.raises(UserError, match=r"WRONG: float32 compiled off by 0\.1; expected: below 0\.01"):
        gpu.gradients(drawn, "tiny", "cpu")


def test_wrong_pixels_are_reported(drawn: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engines.simplejpeg.decode_jpeg

    def brighter(jpeg: np.ndarray, buffer: np.ndarray, **options: Any) -> None:
        decode(jpeg, buffer=buffer, **options)
        buffer[:] = np.clip(buffer, 0, 245) + np.uint8(10)

    monkeypatch.setattr(engines.simplejpeg, "decode_jpeg", brighter)
    with pytest.raises(UserError, match=r"WRONG: worst leaf \d+\.\d+ grey levels"):
        gpu.pixels(drawn, "tiny", "cpu")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print('first'); print('{\"a\": 1}')", {"a": 1}),
        ("import os; os.kill(os.getpid(), 9)", {"is": "FAILED: ended with status -9"}),
        ("raise RuntimeError('illegal access')", {"is": "FAILED: RuntimeError: illegal access"}),
        ("import time; time.sleep(60)", {"is": "FAILED: stopped after 2 s"}),
    ],
)
def test_a_failed_row_says_why(code: str, found: dict[str, object]) -> None:
    assert gpu.measure([sys.executable, "-c", code], 2 if "sleep" in code else 200) == found
