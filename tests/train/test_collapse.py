"""Measures of collapse against loops, and a run that is made to collapse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional

from gdt.train.collapse import measures
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.train.drawn import draw


def test_measures_equal_those_of_loops() -> None:
    rng = torch.Generator().manual_seed(0)
    video, audio = (functional.normalize(torch.randn(9, 5, generator=rng), dim=1) for _ in range(2))
    found = measures({"video": video, "audio": audio})
    pairs = [float(((video[a] - video[b]) ** 2).sum()) for a in range(9) for b in range(a)]
    assert found["video uniformity"] == pytest.approx(math.log(sum(math.exp(-2 * d) for d in pairs) / len(pairs)))
    distances = [float(((x - y) ** 2).sum()) for x, y in zip(video, audio, strict=True)]
    assert found["video to audio alignment"] == pytest.approx(sum(distances) / 9)
    values = np.linalg.eigvalsh(video.double().numpy().T @ video.double().numpy()) ** 0.5
    shares = values / values.sum()
    assert found["video effective rank"] == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))


def test_a_run_that_collapses_warns_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, _ = draw(tmp_path, videos=24, splits=("train", "val"))
    tiny = SIZES["tiny"]
    healthy = replace(
        tiny, preset="a", shards=shards, out=tmp_path / "healthy", batch_size=6, steps=8, probe_every=4, device="cpu"
    )
    pretrain(healthy)
    assert "collapsed" not in capsys.readouterr().err
    high = replace(tiny.optimization, optimizer="sgd", lr=10.0)
    pretrain(replace(healthy, out=tmp_path / "run", optimization=high))
    said = capsys.readouterr().err
    assert said.count("have collapsed") == 1 and "the embeddings of video" in said
    rows = [json.loads(line) for line in (tmp_path / "run" / "probe.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and rows[-1]["video effective rank"] < 2 and rows[-1]["video uniformity"] > -0.1
    board = EventAccumulator(str(tmp_path / "run")).Reload()
    assert board.Scalars("probe/video effective rank")[-1].value == pytest.approx(rows[-1]["video effective rank"])
