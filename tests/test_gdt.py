"""The Python API does what the commands do."""

import copy
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gdt
import gdt.api
import gdt.preprocess.stage
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.train.own_networks import Net
from tests.train.runs import losses


def test_batches_give_the_losses_of_the_trainer(shards: Path, tmp_path: Path) -> None:
    """The same batches and loss at every step, and in a second pass."""
    batches = gdt.batches(shards, preset="l", batch_size=4, epochs=2, size="tiny", device="cpu")
    torch.manual_seed(0)
    network = batches.network()
    assert isinstance(network, GDT)
    o = SIZES["tiny"].optimization
    optimizer = torch.optim.AdamW(network.parameters(), o.lr, (o.momentum, 0.999), weight_decay=o.weight_decay)
    found = []
    for batch in batches:
        loss = batches.loss(network(batch.inputs), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert len(found) == len(batches) == 2 * (24 // 4)
    settings = replace(
        SIZES["tiny"], shards=shards, preset="l", batch_size=4, epochs=2, steps=0, out=tmp_path / "run",
        device="cpu", optimization=replace(o, lr_decay=0.0),
    )  # fmt: skip
    assert load_model(pretrain(settings)).record.steps == len(batches)
    np.testing.assert_allclose(found, losses(tmp_path / "run"), rtol=1e-4)
    with pytest.raises(gdt.UserError, match="15 embeddings, and column 'video' has the shape \\[32\\]"):
        batches.loss(torch.ones(15, 1), batch)
    with pytest.raises(gdt.UserError, match="there are no embeddings of audio, which the batch has"):
        batches.loss({"video": torch.ones(8, 1)}, batch)
    first = [batch.plan.leaves.start.tolist() for batch in batches]
    assert first == [batch.plan.leaves.start.tolist() for batch in batches]


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> gdt.Model:
    return gdt.load(str(checkpoint))


def test_features_are_also_written_to_a_file_as_by_the_command(model: gdt.Model, shards: Path, tmp_path: Path) -> None:
    model.network.train()
    made = model.embed(shards, clips=1, out=tmp_path / "features.h5")
    assert model.network.training and model.network.video_network.training
    assert gdt.nearest(tmp_path / "features.h5", made.id[0]) == gdt.nearest(made, made.id[0])
    with pytest.raises(gdt.UserError, match="--overwrite"):
        model.embed(shards, clips=2, out=tmp_path / "features.h5")


def test_a_forked_process_waits_for_no_threads_of_its_parent() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(torch.get_num_threads).get(60) == 1


@pytest.fixture(scope="module")
def refused(model: gdt.Model, shards: Path) -> dict[str, Any]:
    """Arguments that the calls below are refused with."""
    stored = model.embed(shards, clips=1)
    mute = replace(stored, features=stored.features | {"audio": np.full_like(stored.features["audio"], np.nan)})
    trunks = replace(stored, metadata=stored.metadata | {"kind": "features"})
    other = replace(stored, metadata=stored.metadata | {"weights": "others", "checkpoint": "other.pt"})
    changed = replace(stored, metadata=stored.metadata | {"weights": "others"})
    names = {"changed": changed, "stored": stored, "other": other, "trunks": trunks, "mute": mute}
    return names | {"first": stored.id[0], "model": model, "shards": shards}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: gdt.nearest(r["trunks"], r["first"], by="audio", among="video"), "be compared across modalities"),
        (lambda r: gdt.nearest(r["trunks"], r["stored"]), "embeddings of .* and features of .* cannot be compared"),
        (lambda r: gdt.nearest(r["stored"], r["other"]), "of other.pt and embeddings of .* cannot be compared"),
        (lambda r: gdt.nearest(r["stored"], r["changed"]), "the weights of .* have changed since one of the two"),
        (lambda r: gdt.nearest(r["mute"], r["first"], by="audio"), "audio of the query is missing, silent or shorter"),
        (lambda r: gdt.nearest(r["stored"], r["first"], k=-1), "^k is -1; it must be 1 or more"),
        (lambda r: gdt.pretrain(r["shards"], factors="a:d", factors_from="no.py"), "cannot read the factors in no.py"),
        (lambda r: r["model"].embed([]), "^videos is empty; give one or more"),
        (lambda r: gdt.make_shards("videos", "shards", dry_run=True), "use 'gdt preprocess --dry-run'"),
        (lambda r: gdt.pretrain(r["shards"], "huge"), "unknown size 'huge'; available: paper, small, tiny"),
        (lambda r: gdt.pretrain(r["shards"], step=3), "unknown setting 'step'; did you mean 'steps'?"),
        (lambda r: gdt.pretrain(r["shards"], clip={"sze": 3}), "settings of Pretrain: unknown: clip.sze"),
        (lambda r: gdt.pretrain(r["shards"], steps="3"), "settings of Pretrain: steps is '3' instead of int"),
        (lambda r: gdt.pretrain(r["shards"], optimization={"lr": math.nan}), "^--lr is nan and --mom"),
        (
            lambda r: gdt.pretrain(r["shards"], clip={"frames": 10**25}),
            "^--clip.frames is 1000.*from 1 to 2,147,483,647",
        ),
        (lambda r: gdt.pretrain(r["shards"], preset="g", factors="video:d"), "^--preset and --factors both set the"),
        (lambda r: gdt.evaluate([], r["shards"]), "^checkpoints is empty"),
        (lambda r: gdt.evaluate(r["model"]), "^checkpoints are paths or names of weights, not Model"),
        (lambda r: gdt.evaluate("a.pt", ckpt=("b.pt",)), "^ckpt is the first argument, checkpoints"),
        (lambda r: gdt.pretrain(r["shards"], batch_size=np.int64(1)), "^--batch-size is 1, the K of"),
        (lambda r: gdt.evaluate("no/checkpoint.pt", r["shards"]), "no/checkpoint.pt.* or give the path of yours"),
        pytest.param(
            lambda r: gdt.batches(r["shards"], device="cuda"),
            "^1 process on this machine, but torch finds 0 GPUs",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_invalid_arguments_are_refused(
    refused: dict[str, Any], call: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(gdt.UserError, match=message):
        call(refused)


def test_home_is_expanded_in_paths(
    synthetic: Path, shards: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, target in (("videos", synthetic / "val" / "spin"), ("shards", shards), ("e.pt", checkpoint)):
        (tmp_path / name).symlink_to(target)
    assert gdt.make_shards("~/videos", "~/mine", workers=1).shards == tmp_path / "mine"
    model = gdt.load("~/e.pt")
    assert len(model.embed("~/shards", clips=1).id) == len(gdt.Index.open("~/shards"))
    with pytest.raises(gdt.UserError, match=f"no features file {tmp_path}/x.npz"):
        gdt.read_features("~/x.npz")
    assert len(gdt.batches("~/shards", "e", batch_size=4, size="tiny")) == 6
    run = gdt.pretrain("~/shards", "tiny", preset="e", batch_size=4, steps=1, out="~/runs/e")
    assert run.checkpoint.parent == tmp_path / "runs" / "e" and not (tmp_path / "~").exists()


def test_batches_for_a_model_have_its_clips_and_normalisation(model: gdt.Model, shards: Path, tmp_path: Path) -> None:
    statistics = model._trained.inputs.statistics
    other = replace(statistics, mel_mean=statistics.mel_mean + 1)
    record = replace(model._trained.record, statistics=other)
    shifted, shorter = copy.copy(model), copy.copy(model)
    shifted._trained = replace(model._trained, record=record)
    clip = replace(model.settings.clip, frames=4)
    shorter._trained = replace(model._trained, record=replace(record, settings=replace(model.settings, clip=clip)))
    given = {"preset": "e", "batch_size": 4, "device": "cpu"}
    plain = next(iter(gdt.batches(shards, size="tiny", **given))).tensors()
    same, moved, short = (
        next(iter(gdt.batches(shards, model=one, **given))).tensors() for one in (model, shifted, shorter)
    )
    assert all(torch.equal(plain[name], same[name]) for name in plain) and short["video"].shape[2] == 4
    assert gdt.batches(shards, "e", batch_size=4, device="cpu", model=model).network().network == model.network.network
    with pytest.raises(gdt.UserError, match="size has no effect beside a model"):
        gdt.batches(shards, model=model, size="tiny")
    own = gdt.pretrain(
        shards, "tiny", preset="a", batch_size=4, steps=1, out=tmp_path, video_network=partial(Net, 8), device="cpu"
    )
    loaded = gdt.load(own.checkpoint, video_network=partial(Net, 8))
    assert isinstance(gdt.batches(shards, "a", batch_size=4, model=loaded).network().video_network.base.net, Net)
    difference = (plain["audio"] - moved["audio"])[plain["audio"] != 0]  # masked parts are 0 in both
    assert difference.allclose(torch.tensor(1 / other.mel_std).float(), atol=1e-3)


def test_batches_are_tensors_for_any_network(shards: Path) -> None:
    batches = gdt.batches(shards, preset="e", batch_size=4, size="tiny", device="cpu")
    batch, network = next(iter(batches)), batches.network().eval()
    tensors = batch.tensors()
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        "video": [4, 3, 8, 32, 32], "audio": [4, 1, 40, 99],
    }  # fmt: skip
    assert repr(batch).startswith("<gdt.Batch: video [4, 3, 8, 32, 32], audio [4, 1, 40, 99]; factors video, ")
    assert torch.equal(network(tensors), network(batch.inputs))
    parts = {name: network.embed(name, inputs) for name, inputs in batch.inputs.items()}
    assert torch.equal(batches.loss(parts, batch), batches.loss(network(tensors), batch))
    kept = [other.tensors() for other in batches]
    assert all(torch.equal(other.tensors()[name], kept[k][name]) for k, other in enumerate(batches) for name in tensors)
    with pytest.raises(gdt.UserError, match="embeddings must have length 1; pass torch.nn.functional.normalize"):
        batches.loss(2 * network(tensors), batch)
