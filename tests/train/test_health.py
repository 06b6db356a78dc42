"""Measures of collapse against loops, and a run that is made to collapse."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional

from gdt.train import log
from gdt.train.health import effective_rank, measures, verdict
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
    assert effective_rank(torch.zeros(5, 3)) == 1  # of a network that has died


@pytest.mark.slow
def test_a_run_that_collapses_warns_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, _ = draw(tmp_path, videos=24, splits=("train", "val"))
    tiny = SIZES["tiny"]
    healthy = replace(
        tiny, preset="a", shards=shards, out=tmp_path / "healthy", batch_size=8, steps=100, probe_every=50, device="cpu"
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


def rows(loss: float, rank: float, steps: int = 200, first: float = 2.9) -> list[dict[str, float]]:
    """A run of row e with 16 videos, whose loss falls from `first` to `loss` in its first half."""
    losses = np.interp(np.arange(steps), [0, steps / 2], [first, loss])
    return [
        {"loss": value, "chance": math.log(16), "least": 0.0} | ({} if step % 10 else {"rank": rank})
        for step, value in enumerate(losses)
    ]


def probed(recall: float, videos: int = 200) -> dict[str, float]:
    return {f"{pair} R@{k}": 100 * recall * k / 10 for pair in ("a to b", "b to a") for k in (1, 5, 10)} | {
        "videos": videos
    }


@pytest.mark.parametrize(
    ("loss", "rank", "probe", "expected"),
    [
        (2.77, 1.6, {}, "collapsed: the effective rank of the embeddings is 1.6.*third of the --lr, or use publish"),
        (2.77, 2.5, probed(0.05) | {"a effective rank": 1.7}, "collapsed: the effective rank of the embeddings is 1.7"),
        (2.75, 9.0, probed(0.05, 4) | {"a effective rank": 1.7}, "not left chance"),
        (2.75, 9.0, {}, r"not left chance: the mean loss of the last 20 steps is 2.75, 2.77 at chance; train longer"),
        (2.82, 9.0, probed(0.06), "not left chance"),
        (1.4, 9.0, {}, "training videos: .* loss .* is 1.40, 2.77 at chance and 0.00 at best; there are no held-out"),
        (1.4, 9.0, probed(0.15), r"has learned: .* and 15 % of 200 held-out videos .* the first 10 \(chance 5 %\)"),
        (1.4, 9.0, {"videos": 200, "a effective rank": 9.0}, "training videos: .*; whether that carries over, labels"),
        (1.4, 9.0, probed(5.0, videos=20), r"has learned: .* 50 % of 20 .* find their own first \(chance 5 %\)"),
        (1.4, 9.0, probed(1.0, videos=19), "training videos: .*; 19 held-out videos are too few to tell whether"),
        (1.4, 9.0, probed(0.06), r"its training videos .* not what carries over: 6 % of 200 .*at chance 5 %"),
    ],
)
def test_the_last_line_says_whether_a_run_has_learned(loss: float, rank: float, probe: dict, expected: str) -> None:
    assert re.search(expected, verdict(rows(loss, rank), probe, 16))


def test_a_short_run_has_a_verdict() -> None:
    """Too few steps or clips tell nothing of collapse."""
    assert verdict(rows(1.2, 9.0, 9), {}, 16).startswith("the run is too short to tell whether it learns: 9 steps; ")
    for steps, clips in ((10, 16), (49, 16), (200, 7)):
        assert "not left chance" in verdict(rows(2.8, 1.2, steps), {}, clips)
    assert "has collapsed" in verdict(rows(2.8, 1.2, 50), {}, 8)
    assert "at chance; use --size small" in verdict(rows(2.8, 9.0, 50), {}, 8, "tiny")


@pytest.mark.parametrize("steps", [10, 12, 200])
def test_a_loss_below_chance_from_the_start_is_not_learned(steps: int) -> None:
    said = verdict(rows(1.4, 9.0, steps, first=1.41), {}, 16)
    assert re.match(r"the run has not learned: the mean loss of .* is 1.40, as at its start \(2.77 at chance\)", said)
    assert verdict(rows(0.7, 9.0, steps, first=1.41), {}, 16).startswith("the run has learned its training videos")


def test_batches_without_words_are_named() -> None:
    empty = {"loss": 0.0, "chance": 0.0, "least": 0.0}
    said = verdict([empty, *rows(1.4, 9.0, steps=2), empty, empty], {}, 16)
    assert said.startswith("the run has hardly learned: 3 of 5 batches had no positive pair, since their clips have no")
    assert verdict([empty, *rows(0.5, 9.0, steps=10)], {}, 16).startswith("the run has learned")


def test_a_run_is_judged_by_its_last_probe_and_only_if_modalities_match(tmp_path: Path) -> None:
    shards, _ = draw(tmp_path, videos=48, splits=("train", "val"))
    invariant = "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1"
    first = replace(SIZES["tiny"], factors=invariant, shards=shards, batch_size=4, steps=4, probe_every=2, device="cpu")
    first = replace(first, out=tmp_path / "run")
    judged: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "verdict", lambda rows, probe, *_: judged.append(any("R@" in name for name in probe)) or "")
        pretrain(first)
        pretrain(replace(first, steps=5, probe_every=0))
        distinctive = "video:d time_shift:i:1 modality:d:2 augmentation:i:2"
        pretrain(replace(first, factors=distinctive, out=tmp_path / "distinctive"))
    assert judged == [True, False, False]
