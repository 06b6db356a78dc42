"""The Python interface: what `import gdt` gives is what the commands give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gdt
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.conftest import ROOT


@pytest.mark.slow  # that of the README is run, too
def test_a_script_without_a_main_guard_embeds_and_searches(
    checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    """As people write them; worker processes that ran it once more would be its end."""
    mine = tmp_path / "mine"
    shutil.copytree(synthetic / "val", mine)
    (mine / "broken.mp4").write_bytes(b"nonsense")
    (tmp_path / "preprocess.py").write_text("raise SystemExit('somebody else')")  # what is in their folder is not run
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "script.py"
    script.write_text(
        f"""
import gdt
import numpy as np

model = gdt.load({str(checkpoint)!r})
found = model.embed({str(mine)!r}, clips=2)
print(len(found.id), [path for path, _ in found.left_out])
print(gdt.nearest(found, found.id[0], by="audio", among="video", k=3))
one = model.embed([found.path[0]], clips=2)
np.testing.assert_allclose(one.features["video"][0], found.features["video"][0], atol=1e-5)
print(gdt.nearest(found, one)[0])
"""
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    counted, across, first = done.stdout.splitlines()
    assert counted == f"6 ['{mine / 'broken.mp4'}']"
    assert across.count(".mp4") == 3
    assert ", 1.0" in first or ", 0.999" in first
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "scripts", "preprocess.py"}
    model = gdt.load(checkpoint)
    stored = model.embed(shards, clips=2, of=["video"], kind="features")
    assert list(stored.features) == ["video"] and stored.features["video"].shape[1] == 128 and not stored.left_out


def test_a_loop_of_ones_own_learns_what_the_trainer_learns(shards: Path, tmp_path: Path) -> None:
    """The same batches and the same loss, step by step, and again in a second pass."""
    batches = gdt.batches(shards, preset="l", videos_per_batch=4, epochs=2, size="tiny", device="cpu")
    torch.manual_seed(0)
    network = batches.network()
    assert isinstance(network, GDT)
    o = SIZES["tiny"][1].optimization
    optimizer = torch.optim.AdamW(network.parameters(), o.rate, (o.momentum, 0.999), weight_decay=o.weight_decay)
    losses = []
    for batch in batches:
        loss = batches.loss(network(batch.inputs), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == len(batches) == 2 * (24 // 4)
    settings = replace(
        SIZES["tiny"][1], shards=shards, preset="l", videos_per_batch=4, epochs=2, steps=0, out=tmp_path / "run",
        device="cpu", optimization=replace(o, decay=0.0),
    )  # fmt: skip
    pretrain(settings)
    trained = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(losses, trained, rtol=1e-4)
    first = [batch.plan.leaves.start.tolist() for batch in batches]
    assert first == [batch.plan.leaves.start.tolist() for batch in batches]


def test_embeddings_may_come_by_modality(shards: Path) -> None:
    batches = gdt.batches(shards, preset="e", videos_per_batch=4, size="tiny")
    batch = next(iter(batches))
    network = batches.network().eval()
    parts = {name: network.embed(name, inputs) for name, inputs in batch.inputs.items()}
    assert torch.equal(batches.loss(parts, batch), batches.loss(torch.cat(list(parts.values())), batch))


def test_embedding_leaves_a_network_as_it_was(checkpoint: Path, shards: Path) -> None:
    model = gdt.load(checkpoint)
    model.network.train()
    model.embed(shards, clips=1, of="video")
    assert model.network.training and model.network.video_network.training


def test_what_means_nothing_is_refused(checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    model = gdt.load(checkpoint)
    stored = model.embed(shards, clips=1)
    trunks = model.embed(shards, clips=1, kind="features")
    mute = replace(stored, features=stored.features | {"audio": np.full_like(stored.features["audio"], np.nan)})
    first = stored.id[0]
    (tmp_path / "empty").mkdir()
    for call, message in (
        (lambda: gdt.nearest(stored, "x"), "there is no video 'x'"),
        (lambda: gdt.nearest(trunks, first, by="audio", among="video"), "meet in embeddings only"),
        (lambda: gdt.nearest(trunks, stored), "cannot be compared with features"),
        (lambda: gdt.nearest(stored, first, k=0), "k is 0"),
        (lambda: gdt.nearest(mute, first, by="audio"), "has no audio for the length of a clip"),
        (lambda: gdt.nearest(model.embed(shards, clips=1, of="video"), first, by="audio"), "those of video"),
        (lambda: model.embed(shards, kind="embedding"), "--kind is 'embedding'; it must be embeddings or features"),
        (lambda: model.embed(shards, per="clips"), "--per is 'clips'; it must be video or clip"),
        (lambda: gdt.batches(shards, size="small"), "there is no size 'small'"),
        (lambda: model.embed(tmp_path / "empty"), "there are no videos in .*expected:\\n"),
    ):
        with pytest.raises(gdt.UserError, match=message):
            call()
