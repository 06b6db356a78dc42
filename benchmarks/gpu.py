"""A GPU in ten minutes: whether it computes the right numbers, how fast, and in how much memory.

Each row runs in a process of its own with a time limit; one that fails says why, and the next one runs. Shards are
drawn, so neither videos nor ffmpeg are needed. `--device cpu --size tiny` runs all of it without a GPU: DALI's
operators then run on the processor, and numbers other than differences mean nothing.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.shared import DeviceName, draw, machine, prepare, run_settings
from gdt.common.errors import UserError, exit_with_message
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.train.experiment import resolve
from gdt.train.models.network import Architecture
from gdt.train.pretrain import pretrain
from gdt.train.run import METRICS
from gdt.train.settings import Precision, RunSettings

ROWS, DECODERS = ("l", "e", "a"), ("gpu", "cpu")
MEAN, NEARLY_ALL = 1.5, 8
"""Grey levels by which decoders may differ, the mean over a leaf and 99.9 % of its values: libjpeg-turbo's own two
inverse transforms differ by 0.9 to 1.1 and by at most 4; with chroma repeated, not interpolated, it is 12 to 49."""
EXACT, ROUNDED = 0.01, 0.3
"""Relative differences of a gradient from float32, compiled and in bfloat16; a wrong kernel gives 0.4 to infinity."""
CLIPS, CHECKED = {"paper": 256, "tiny": 32}, {"paper": 32, "tiny": 8}
"""Video clips per step, and of the batches that are compared (float32 needs 1 GiB per clip of the paper's size)."""
STEPS = {"paper": (3, 8), "tiny": (1, 1)}
"""Steps of warm-up, in which code is compiled, and measured steps."""
SMALL = Architecture(
    stem=4, stem_middle=4, widths=(4,), depth=1, audio_stem=4, audio_widths=(4,), hidden=16, embedding=8, dropout=0.0
)
"""The networks of size tiny: smaller than those of `gdt pretrain`, since compiling for a processor is slow."""


def settings_of(size: str, row: str, clips: int, device: DeviceName, group: int = 0) -> RunSettings:
    run = run_settings(size, row, clips, device, group)
    return replace(run, network=SMALL) if size == "tiny" else run


def levels(one: Tensor, other: Tensor) -> tuple[float, int, int]:
    """Difference of the worst leaf of byte crops [n, ...]: mean, 99.9 % quantile, maximum."""
    off = (one.short() - other.short()).abs().flatten(1)
    few = max(1, off.shape[1] // 1000)
    return float(off.float().mean(1).max()), int(off.topk(few, 1).values[:, -1].max()), int(off.max())


def pixels(index: Index, size: str, device: DeviceName) -> dict[str, Any]:
    """Compare the batches that DALI loads on the GPU with those of the processor."""
    run = settings_of(size, "l", CHECKED[size], device)
    experiment = resolve(run, index, torch.device("cpu"))
    plans = [experiment.tree.plan(0, 0)]
    loaded: list[Tensor] = []
    for where, decoder in (("cpu", "cpu"), (device, "gpu")):
        loading = Loading(decoder=decoder)  # type: ignore[arg-type]
        with Loader(index, plans, experiment.inputs, torch.device(where), loading) as loader:
            loaded.append(next(iter(loader)).inputs["video"].crops.cpu())
    mean, nearly_all, _ = levels(*loaded)
    found = f"worst leaf {mean:.2f} grey levels on average, 99.9 % within {nearly_all}"
    if not (mean < MEAN and nearly_all <= NEARLY_ALL):
        raise UserError(f"WRONG: {found}; expected: below {MEAN}, within {NEARLY_ALL}")
    return {"is": found}


def gradients(index: Index, size: str, device: DeviceName) -> dict[str, Any]:
    """Compare the gradients of row l, compiled and in bfloat16, with those of float32 without TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    run = settings_of(size, "l", CHECKED[size], device)
    ways: list[tuple[Precision, bool]] = [("float32", True)]
    if device == "cuda":
        ways += [("bfloat16", False), ("bfloat16", True)]
    expected = gradient(index, run, "float32", False)
    off = {}
    for precision, compiled in ways:
        found = gradient(index, run, precision, compiled)
        name = f"{precision}{' compiled' * compiled}"
        off[name] = max(float((found[one] - g).norm() / g.norm()) for one, g in expected.items())
    report = ", ".join(f"{name} off by {value:.2g}" for name, value in off.items())
    if not all(value < (ROUNDED if "bfloat16" in name else EXACT) for name, value in off.items()):
        raise UserError(f"WRONG: {report}; expected: below {EXACT}, in bfloat16 below {ROUNDED}")
    return {"is": report + ("; bfloat16 is skipped on CPUs" if device == "cpu" else "")}


def gradient(index: Index, run: RunSettings, precision: Precision, compiled: bool) -> dict[str, Tensor]:
    """The gradient of the first step for the weights of convolutions; those of batch norm nearly cancel.

    The bias of batch norm keeps most inputs of ReLUs away from 0, where rounding switches gradients on and off.
    """
    learner, batch = prepare(index, replace(run, precision=precision, compile="on" if compiled else "off"))
    for module in learner.model.modules():
        if isinstance(module, _BatchNorm):
            nn.init.constant_(module.bias, 2.0)
    learner.step(0, batch)
    named = learner.model.named_parameters()
    return {name: one.grad.float() for name, one in named if one.grad is not None and one.ndim > 2}


def training(index: Index, size: str, device: DeviceName, row: str, decoder: str, group: int) -> dict[str, Any]:
    """Clips/s, waiting, MFU and memory of pretraining with a row."""
    clips, (warm, steps) = CLIPS[size], STEPS[size]
    loading = Loading(decoder=decoder if device == "cuda" else "cpu")  # type: ignore[arg-type]
    run = settings_of(size, row, clips, device, group)
    with tempfile.TemporaryDirectory() as out:
        pretrain(replace(run, shards=index.folder, out=Path(out), steps=warm + steps, loading=loading))
        rows = [json.loads(line) for line in (Path(out) / METRICS).read_text().splitlines()][warm:]
    seconds = np.array([clips / row["clips_per_second"] for row in rows])
    waiting = sum(seconds * [row["data_wait"] for row in rows])
    found = {"clips/s": clips * steps / seconds.sum(), "waiting %": 100 * waiting / seconds.sum()}
    if "mfu" in rows[0]:
        found["MFU %"] = 100 * steps / sum(1 / row["mfu"] for row in rows)
    return found | {"GiB": rows[-1]["memory_gib"], "loss": rows[-1]["loss"]}


def measure_here(index: Index, size: str, device: DeviceName, row: Sequence[str]) -> dict[str, Any]:
    """The values of a row of `rows_of`, in this process. Raises UserError where numbers are wrong."""
    if len(row) == 1:
        return {"pixels": pixels, "gradients": gradients}[row[0]](index, size, device)
    return training(index, size, device, row[0], row[1], int(row[2]))


def rows_of(size: str) -> list[list[str]]:
    """Arguments of every row, most important first."""
    low, middle, high = (str(CLIPS[size] // part) for part in (16, 8, 4))
    rows = [["pixels"], ["gradients"], *([row, decoder, middle] for row in ROWS for decoder in DECODERS)]
    return rows + [["l", "cpu", group] for group in (low, high)]


def measure(command: Sequence[str], limit: float) -> dict[str, Any]:
    """Run a row in a process of its own; returns what it printed, or why there is nothing."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"is": f"FAILED: stopped after {limit:.0f} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it started
        child.wait()
    if child.returncode == 0 and out.strip():
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found
    reason = errors.strip().splitlines()[-1:] or [f"ended with status {child.returncode}"]
    return {"is": f"FAILED: {reason[0][:300]}"}


def show(row: Sequence[str], found: dict[str, Any]) -> None:
    name = row[0] if len(row) == 1 else f"row {row[0]}, decoder {row[1]}, groups of {row[2]}"
    values = [one if isinstance(one, str) else f"{one:8.3g} {what}" for what, one in found.items()]
    print(f"{name:32} {'  '.join(values)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Measure a GPU in ten minutes.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(CLIPS), default="paper", help="paper, or tiny to see that it runs")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a row")
    parser.add_argument("--row", nargs="+", help="measure one row here: pixels, gradients, or l gpu 32")
    parser.add_argument("--shards", type=Path, help="folder of drawn shards, with --row")
    given = parser.parse_args()
    if given.row:
        if given.device == "cpu":
            torch.set_num_threads(1)
        found = measure_here(Index.open(given.shards), given.size, given.device, given.row)
        print(json.dumps(found))
        return
    if given.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU; see nvidia-smi, or set --device cpu --size tiny to see that it runs")
    name = torch.cuda.get_device_name() if given.device == "cuda" else machine()
    print(f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}, size {given.size}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        draw(shards, CLIPS[given.size])
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"  # of this run alone: a stopped row may leave parts
        common = [sys.executable, "-m", "benchmarks.gpu", "--device", given.device, "--size", given.size]
        for row in rows_of(given.size):
            show(row, measure([*common, "--shards", str(shards), "--row", *row], given.limit))


if __name__ == "__main__":
    exit_with_message(main)
