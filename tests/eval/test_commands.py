"""Commands of evaluation on tiny data, as a user runs them."""

import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gdt.common.errors import INTERRUPTED, UserError
from gdt.eval.extract import PooledFeatures, cached_features, extract, read
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES, RunSettings
from tests.conftest import Run
from tests.pipeline.test_loader import CPU
from tests.train.runs import start_gdt, wait_until


def test_features_are_computed_once(
    index: Index, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, path = load_model(checkpoint), tmp_path / "m" / "features.npz"

    def compute(group: np.ndarray) -> PooledFeatures:
        return extract(trained, index, group, 2, CPU)

    first = cached_features(path, np.array([0, 30]), compute)
    whole = compute(np.array([0, 7, 30]))
    more = cached_features(path, np.array([7, 0]), compute)  # the missing video is added
    assert more.videos.tolist() == [0, 7, 30] and more.average.shape == more.maximum.shape == (3, 128)
    for one, other in ((more.average, whole.average), (more.maximum, whole.maximum)):  # whatever the batch
        assert np.allclose(one, other, atol=1e-5)
    assert np.array_equal(more.average[[0, 2]], first.average)
    again = cached_features(path, np.array([30, 7]), Mock(side_effect=AssertionError))
    assert np.array_equal(again.maximum, more.maximum)
    path.write_bytes(path.read_bytes()[:-100])  # so all are computed again
    monkeypatch.setattr("gdt.eval.extract._GROUP", 2)
    with pytest.raises(KeyboardInterrupt):  # the groups before are kept
        cached_features(path, np.array([3, 7, 30]), Mock(side_effect=[compute(np.array([3, 7])), KeyboardInterrupt]))
    kept = read(path)
    assert kept is not None and kept.videos.tolist() == [3, 7]


def test_a_failed_run_of_an_ablation_names_its_log(command: Run, shards: Path, tmp_path: Path) -> None:
    small = ("--rows", "e", "--seeds", 0, "--out", "o")
    (tmp_path / "o" / "e-0").mkdir(parents=True)
    (tmp_path / "o" / "e-0" / "checkpoint.pt").write_text("no checkpoint")
    done = command("ablation", "--shards", shards, *small)
    assert done.returncode == 2
    assert "e-0/checkpoint.pt cannot be read as a checkpoint" in done.stderr and "log.txt" in done.stderr


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("ablation", signal.SIGINT),
        pytest.param("ablation", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("evaluate", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_parent_alone_stops_its_runs(
    command: Run, kind: str, number: int, shards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As kill does; Ctrl-C reaches the runs as well. Meanwhile, a second command in the folder is refused."""
    more = {
        "ablation": ("--rows", "e", "--seeds", 0, "--steps", 10_000, "--batch-size", 8),
        "evaluate": ("--ckpt", checkpoint, "--protocols", "finetune", "--epochs", 10_000),
    }[kind]
    arguments = (kind, "--shards", shards, "--jobs", 2, "--out", tmp_path / "out", *more)
    process = start_gdt([*map(str, arguments)], tmp_path)
    logs = partial(tmp_path.glob, "out/**/*.jsonl")
    wait_until(lambda: any(log.stat().st_size for log in logs()) or process.poll() is not None)
    second = command(*arguments)
    assert second.returncode == 2 and f"another run is writing to {tmp_path / 'out'}; " in second.stderr
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number and (number == signal.SIGTERM or errors.endswith(f"{INTERRUPTED}\n"))
    assert "waiting for the other runs" not in errors
    if kind == "ablation" and number == signal.SIGINT:
        assert "stopped after step" in (tmp_path / "out" / "e-0" / "log.txt").read_text()


def test_wrong_checkpoints_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    path, state = tmp_path / "x.pt", torch.load(checkpoint, weights_only=True)
    other = GDT(replace(RunSettings.of(SIZES["tiny"]).network, embedding=64)).state_dict()
    for content, expected in (
        (Path("/"), "it holds no weights of a known form"),  # an object that weights_only must not build
        ({"state": torch.zeros(3)}, "it holds no weights of a known form"),
        (state | {"model": other}, "holds another model: "),
    ):
        torch.save(content, path)
        with pytest.raises(UserError, match=expected), warnings.catch_warnings(action="error"):
            load_model(path)


def test_options_are_known_without_torch() -> None:
    """Else each mistake would cost the seconds of its import."""
    code = (
        "import sys\nfrom pkgutil import resolve_name\nfrom gdt.cli import COMMANDS\n"
        "for one in COMMANDS.values():\n    resolve_name(one.settings)\n"
        "assert 'sklearn' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
