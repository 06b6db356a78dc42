"""Cross-modal recall against plain counting, and the probe of a run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from gdt.common.errors import UserError
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import EVALUATION
from gdt.train import checkpoint
from gdt.train.experiment import resolve
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.recall import Embedded, Probe, embed_videos, hits, places
from gdt.train.record import Record
from gdt.train.settings import SIZES, Pretrain, RunSettings
from gdt.train.trained import Trained
from tests.pipeline.test_loader import CPU
from tests.train.drawn import draw
from tests.train.runs import losses

TINY = RunSettings.of(SIZES["tiny"])


def settings(shards: Path, out: Path, **changes: object) -> Pretrain:
    return replace(TINY, shards=shards, out=out, batch_size=4, steps=4, preset="e", **changes)


def test_places_and_hits_equal_plain_counting() -> None:
    rng = torch.Generator().manual_seed(0)
    query, gallery = (functional.normalize(torch.randn(70, 4, generator=rng).double(), dim=1) for _ in range(2))
    expected = [sum(float(q @ g) > float(q @ gallery[k]) for g in gallery) for k, q in enumerate(query)]
    assert places(query, gallery).tolist() == places(query, gallery, at_once=32).tolist() == expected
    found = hits({"video": query, "audio": gallery}, (1, 20))
    assert found["video", "audio", 20].tolist() == [place < 20 for place in expected] and len(found) == 4


def test_embeddings_are_means_over_clips(index: Index) -> None:
    torch.manual_seed(0)
    model, videos = GDT(TINY.network), np.array([4, 11, 30])
    trained = Trained(model, Record(TINY, index.statistics))
    found = embed_videos(trained, index, videos, 3, CPU, ("audio", "video"))
    assert list(found.embeddings) == ["video", "audio"] and found.videos.tolist() == videos.tolist()
    augmentation = replace(EVALUATION, scale=(36, 36))
    for row, video in enumerate(videos):
        plan = uniform_clips(index, np.array([video]), 3, TINY.clip, augmentation, modalities=("video", "audio"))
        with Loader(index, [plan], trained.inputs, CPU) as loader, torch.inference_mode():
            (batch,) = loader
            for name, inputs in batch.inputs.items():
                expected = functional.normalize(model.embed(name, inputs).mean(0), dim=0)
                assert torch.allclose(found.embeddings[name][row], expected, atol=1e-5)


def test_a_probe_does_not_change_the_run(shards: Path, tmp_path: Path) -> None:
    pretrain(settings(shards, tmp_path / "plain"))
    path = pretrain(settings(shards, tmp_path / "probed", probe_every=3))
    assert losses(tmp_path / "plain") == losses(tmp_path / "probed")
    probes = [json.loads(line) for line in (tmp_path / "probed" / "probe.jsonl").read_text().splitlines()]
    assert [row["step"] for row in probes] == [0, 3, 4]
    assert probes[0]["videos"] == 6 and 0 <= probes[0]["video to audio R@1"] <= probes[0]["video to audio R@5"] <= 100
    # evaluating the checkpoint gives the numbers of the last probe
    state = torch.load(path, weights_only=True)
    model = GDT(TINY.network)
    model.load_state_dict(state["model"])
    run = settings(shards, tmp_path / "probed", probe_every=3)
    index = Index.open(shards)
    again = Probe(resolve(run, index, CPU), index, CPU)(model)
    assert {"step": 4} | again == pytest.approx(probes[-1], rel=1e-5)


def test_a_probe_that_fails_costs_no_steps(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("a damaged clip")

    monkeypatch.setattr(Probe, "__call__", fail)
    run = settings(shards, tmp_path / "run", probe_every=4)
    monkeypatch.setattr("gdt.train.trainer.Trainer.probe_due", lambda trainer: trainer.step == 4)
    with pytest.raises(UserError, match="a damaged clip"):
        pretrain(run)
    assert checkpoint.read(tmp_path / "run" / "checkpoint.pt").record.step == 4


def test_a_probe_without_words_in_its_clips_measures_nothing(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(shards)
    one = Embedded(np.arange(1), {name: torch.ones(1, 8) for name in ("video", "text")})
    monkeypatch.setattr("gdt.train.recall.embed_videos", lambda *_: one)
    assert Probe(resolve(settings(shards, tmp_path), index, CPU), index, CPU)(GDT(TINY.network)) == {}


def test_an_impossible_probe_is_refused_before_training(tmp_path: Path) -> None:
    shards, _ = draw(tmp_path, videos=4)
    with pytest.raises(UserError, match="needs 2 videos with video and audio in the split 'val' of "):
        pretrain(settings(shards, tmp_path / "run", probe_every=2))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
