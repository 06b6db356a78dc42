"""Exported weights are read back unchanged, by this program and by torchvision's network."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import gdt
from gdt.common.errors import UserError
from gdt.eval import card
from gdt.eval.export import export
from gdt.eval.settings import Downstream, Export
from gdt.eval.subjects import subjects
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train import checkpoint, tensors
from gdt.train.checkpoint import RunState, load_model
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Architecture
from gdt.train.record import Record
from gdt.train.run import CHECKPOINT
from gdt.train.settings import SIZES, Pretrain, RunSettings
from gdt.train.trained import Trained
from gdt.train.weights import KINETICS
from tests.conftest import Run
from tests.tamper import edit_record
from tests.train.test_weights import CLIPS, Video
from tests.train.test_weights import random as drawn

TINY = RunSettings.of(SIZES["tiny"], seed=3)
MICRO = Architecture(
    stem=2, stem_middle=2, widths=(2,), depth=1, audio_stem=2, audio_widths=(2,), text_width=2, hidden=2, embedding=2
)
STATISTICS = Statistics((90.0, 100.0, 110.0), (50.0, 60.0, 1 / 3), -3.0, 2.5)


def checkpoint_of(folder: Path, settings: Pretrain, modalities: tuple[str, ...] = ("video", "audio")) -> Path:
    """A checkpoint with random parameters and batch norm statistics."""
    torch.manual_seed(0)
    model = drawn(GDT(settings.network, modalities))
    path = folder / CHECKPOINT
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record = Record(settings, STATISTICS, fingerprint="data", step=7)
    checkpoint.write(path, RunState(record, model.state_dict(), optimizer.state_dict()))
    return path


def same(one: Trained, other: Trained) -> bool:
    """Whether two models are equal, bit for bit."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    equal = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    described = (one.record, one.model.network) == (other.record, other.model.network)
    return equal and described and not other.model.training


@pytest.mark.parametrize("modalities", [("video",), ("video", "audio", "text")])
def test_safetensors_equal_the_checkpoint(tmp_path: Path, modalities: tuple[str, ...]) -> None:
    path, out = checkpoint_of(tmp_path, TINY, modalities), tmp_path / "x.safetensors"
    text = export(Export(out, ckpt=path))
    assert same(load_model(path), load_model(out)) and same(load_model(path).untrained(), load_model(out).untrained())
    # by safetensors' own reader
    expected = load_model(path).model.state_dict()
    found = safetensors.torch.load_file(out)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    with safetensors.safe_open(out, "pt") as file:
        texts = file.metadata()
    record = json.loads(texts["record"])
    own = record["settings"]
    assert (record["step"], own["network"]["widths"], own["clip"]["size"]) == (7, [16, 32, 64, 128], 32)
    assert own["seed"] == 3 and record["statistics"]["pixel_std"] == [*STATISTICS.pixel_std]
    assert f"holds {', '.join(dict(load_model(path).model.named_children()))}\n" in text
    assert "of 8 stored frames (30 per second), stride 4, 32x32 pixels of frames whose shorter side is 36; pix" in text
    assert ("log-mel mean -3, std 2.5" in text) == ("audio" in modalities)


def test_wrong_safetensors_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    export(Export(out, ckpt=checkpoint_of(tmp_path, replace(TINY, network=MICRO))))
    whole, texts = out.read_bytes(), tensors.load_checked(out)
    table = texts.pop("model")
    rewrite, save = partial(tensors.write, out, table), safetensors.torch.save_file
    cut = "cannot be read as a checkpoint: it is damaged"
    for damage, message in (
        *((partial(out.write_bytes, whole[:n]), cut) for n in (5, 9, 3000, -1)),
        (partial(rewrite, texts | {"format": "gdt-model-9"}), "cannot be read as a checkpoint: it is a gdt-model-9"),
        (partial(rewrite, edit_record(texts, step="many")), "holds no settings of this version .step is 'many'"),
        (partial(rewrite, edit_record(texts, statistics=None)), "holds no settings of this version .statistics is"),
        (partial(rewrite, texts | {"record": "{}"}), "holds no settings of this version .missing: settings"),
        (partial(save, {"weight": torch.zeros(3)}, out), "cannot be read as a checkpoint"),
    ):
        damage()
        with pytest.raises(UserError, match=f"x.safetensors {message}"):
            load_model(out)


@pytest.mark.slow
def test_torchvision_files_load_into_torchvisions_network_and_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = RunSettings.of(Pretrain(clip=Clip(16, 2, 128), augmentation=Augmentation(scale=(146, 182))))
    paper = Trained(drawn(GDT(Architecture())), Record(settings, STATISTICS, step=7))
    by_name = {"paper": paper}
    monkeypatch.setattr("gdt.train.checkpoint.load_model", lambda path, _: by_name[path.name])
    out, again, hub = (tmp_path / name for name in ("r2plus1d_18.pth", "x.safetensors", "hub.safetensors"))
    text = export(Export(out, "video", ckpt=Path("paper")))
    assert "mean (0.352941, 0.392157, 0.431373), std (0.196078, 0.235294, 0.00130719)" in text
    state = torch.load(out, weights_only=True)
    network = Video().eval()
    missing, unknown = network.load_state_dict(state, strict=False)
    assert (missing, unknown) == (["fc.weight", "fc.bias"], [])
    with torch.no_grad():
        clip = CLIPS[:1, :, :2]
        video = paper.model.video_network(clip)
        assert torch.allclose(network(clip), video, rtol=1e-5, atol=1e-5 * video.abs().max())
    by_name["back"] = back = load_model(out)
    assert str(back.origin) == "weights exported as r2plus1d_18; random mlp_v"
    assert back.inputs.statistics == STATISTICS != KINETICS
    assert back.settings == paper.settings != Pretrain()
    # metadata of foreign weights is kept
    export(Export(again, ckpt=Path("back")))
    assert same(load_model(again), back) and str(load_model(again).origin) == str(back.origin)
    # torchvision's names without our metadata
    safetensors.torch.save_file(state, hub)
    assert load_model(hub).inputs.statistics == KINETICS and load_model(hub).settings == RunSettings.of(Pretrain())
    # what was taken is printed
    list(subjects(Downstream((out,), "x", random_weights="exclude"), back, {}))
    assert "r2plus1d_18; random mlp_v; clips of 16 frames, stride 2, 128x128" in capsys.readouterr().out


def test_files_and_networks_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    path, out = checkpoint_of(tmp_path, replace(TINY, network=MICRO), ("video",)), tmp_path / "x"
    out.write_text("mine")
    for given, message in (
        ({"out": tmp_path / "nowhere" / "x"}, "the folder .*nowhere does not exist; create it, or set --out"),
        ({"out": tmp_path}, "already exists; name another"),
        ({"out": out}, "x already exists; name another, or pass --overwrite"),
        ({"out": tmp_path / "y", "network": "audio"}, "trained without audio"),
        ({}, "set --out to a file, or --to to a folder"),
        ({"to": tmp_path, "network": "video"}, "--network video is for a file"),
    ):
        with pytest.raises(UserError, match=message):
            export(Export(ckpt=path, **given))
    assert out.read_text() == "mine"
    export(Export(out, ckpt=path, overwrite=True))
    assert same(load_model(out), load_model(path))


def test_a_hub_gets_the_model_and_its_card(command: Run, checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    evaluated = ("evaluate", "--ckpt", checkpoint, "--dataset", "mine", "--shards", shards, "--clips", 1)
    exported = ("export", "--ckpt", checkpoint, "--to", "hub/mine")
    assert command(*exported).returncode == 0
    assert "Not evaluated yet" in (tmp_path / "hub" / "mine" / "README.md").read_text()
    assert command(*evaluated[:-1], 2).returncode == command(*evaluated).returncode == 0  # the last ones are shown
    refused = command(*exported)
    assert refused.returncode == 2 and "model.safetensors already exists" in refused.stderr
    done = command(*exported, "--overwrite")
    assert done.returncode == 0 and "fill in the licence in hub/mine/README.md" in done.stdout, done.stderr
    folder = tmp_path / "hub" / "mine"
    trained, back = load_model(checkpoint), load_model(folder)
    assert trained.digest() == back.digest() and gdt.load(folder).settings.dataset == "synthetic"
    started = replace(trained, record=replace(trained.record, settings=replace(trained.settings, init=str(checkpoint))))
    (tmp_path / "started").mkdir()
    card.write(tmp_path / "started", started, "")
    assert load_model(tmp_path / "started").settings.init == checkpoint.name
    config = json.loads((folder / "config.json").read_text())
    assert config["statistics"]["pixel_mean"] == [*back.inputs.statistics.pixel_mean]
    assert config["network"]["widths"] == [16, 32, 64, 128]
    text = (folder / "README.md").read_text()
    table = (tmp_path / "runs" / "eval-mine" / "table.txt").read_text().strip()
    assert text.startswith("---\nlibrary_name: gdt\nlicense: ") and table in text
    assert "gdt evaluate --ckpt=mine --dataset=mine --query-split=test --clips=1 --protocols cross-modal\n" in text
    assert "--clips=1 --protocols retrieval few-shot knn\n" in text
    written = "".join(path.read_bytes().decode(errors="replace") for path in folder.iterdir())
    assert not [path for path in (tmp_path, shards, checkpoint) if str(path.parent) in written]
    assert "- data: synthetic, split train, shards " in text
    assert "- training: 3 steps of 4 videos, seed 0" in text and "row e: " in text
