"""Networks of the user's own: from pretraining to export, what a run promises, and what is refused."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gdt
from gdt.common.errors import UserError
from gdt.eval.export import Export, export
from gdt.train.checkpoint import load_model
from gdt.train.models import foreign
from gdt.train.models.foreign import check, use
from gdt.train.run import CHECKPOINT, to_json
from gdt.train.settings import SIZES
from gdt.train.step import Gradient
from tests.conftest import ROOT, Run
from tests.golden import subject
from tests.train import own_networks
from tests.train.drawn import draw

FILE = ROOT / "tests" / "train" / "own_networks.py"
VIDEO, AUDIO = "video_network", "audio_network"
CASES = {  # library, modality, features, layers taken off
    "Net": ("torch", VIDEO, 16, ("fc",)),
    "Sound": ("torch", AUDIO, 8, ()),
    "videomae": ("transformers", VIDEO, 16, ()),
    "timesformer": ("transformers", VIDEO, 16, ("classifier",)),
    "ast": ("transformers", AUDIO, 16, ("classifier.dense",)),
    "x3d": ("pytorchvideo", VIDEO, 2048, ("blocks.5.proj", "blocks.5.activation")),
    "slow": ("pytorchvideo", VIDEO, 2048, ("blocks.5.proj",)),
    "mvit": ("pytorchvideo", VIDEO, 16, ("head.proj",)),
    "r3d_18": ("torchvision", VIDEO, 512, ("fc",)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_given", {"video": {}, "audio": {}})


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn"), 12, ("train", "test"))[0]


def pretrain(shards: Path, out: Path, **settings: Any) -> gdt.Pretrained:
    given = {"size": "tiny", "preset": "e", "batch_size": 4, "group_size": 2, "steps": 3, "device": "cpu"}
    return gdt.pretrain(shards, out=out, **(given | {"optimization": {"lr_decay": 0.0}} | settings))


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_network_is_trained_resumed_used_and_exported(drawn: Path, tmp_path: Path, name: str) -> None:
    library, option, dim, removed = CASES[name]
    pytest.importorskip(library)
    text = "torchvision.models.video:r3d_18(weights=None)" if library == "torchvision" else f"{FILE}:{name}"
    whole = pretrain(drawn, tmp_path / "whole", **{option: text})
    for steps in (2, 3):
        run = pretrain(drawn, tmp_path / "run", steps=steps, **{option: text})
    resumed = weights(run.checkpoint)
    assert all(torch.equal(value, resumed[key]) for key, value in weights(whole.checkpoint).items())
    modality = option.partition("_")[0]
    base = load_model(run.checkpoint).model.get_submodule(f"{modality}_network.base")
    features = gdt.load(run.checkpoint).embed(drawn, kind="features", clips=2).features[modality]
    assert features.shape == (12, dim) and np.isfinite(features).all()
    if modality == "video":
        found = gdt.evaluate(
            run.checkpoint, drawn, protocols=("finetune",), epochs=1, clips=2, clips_per_epoch=6, folds=(1,),
            random_weights="exclude", out=tmp_path / "eval", video_network=text,
        )  # fmt: skip
        assert any(row["metric"] == "finetune top-1" for row in found.rows)
    export(Export(tmp_path / "x.pt", modality, run.checkpoint))  # type: ignore[arg-type]
    theirs, state = foreign._given[modality][text].make(), torch.load(tmp_path / "x.pt", weights_only=True)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and all(key.startswith(removed) for key in missing)
    assert all(torch.equal(value, base.net.state_dict()[key]) for key, value in state.items())


@pytest.mark.parametrize("compile", ["off", "on"])
def test_dropout_repeats_in_the_second_pass_of_cached_gradients(
    drawn: Path, tmp_path: Path, compile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drifts, kind = list[float](), own_networks.Net if compile == "off" else own_networks.Plain
    monkeypatch.setattr(Gradient, "_require_same", lambda self, drift: drifts.append(float(drift)))
    numbers = {
        cache: pretrain(
            drawn, tmp_path / cache, video_network=kind, compile=compiled, gradient_cache=cache, steps=2,
            precision="float64", preset="a",
        ).loss
        for cache, compiled in (("on", compile), ("off", "off"))
    }  # fmt: skip
    assert numbers["on"] == pytest.approx(numbers["off"], rel=1e-10)
    assert len(drifts) == 2 and max(drifts) < 1e-10
    monkeypatch.undo()
    if compile == "off":
        with pytest.raises(UserError, match="second pass"):
            pretrain(drawn, tmp_path / "apart", video_network=own_networks.Apart)


def test_two_ranks_have_the_numbers_of_one(drawn: Path, tmp_path: Path, server: subprocess.Popen[str]) -> None:
    """Blocks that a rank skips have no gradient there; all ranks start from the weights of the first."""
    run = replace(
        subject.in_float64("e", drawn, drawn, group_size=3, batch_size=6), clip=SIZES["tiny"].clip, steps=4,
        augmentation=SIZES["tiny"].augmentation,
        networks=replace(SIZES["tiny"].networks, video_network=f"{FILE}:Net", audio_network=f"{FILE}:Unseeded"),
    )  # fmt: skip
    for world in (1, 2):
        subject.on_ranks(server, ["pretrain", to_json(replace(run, out=tmp_path / f"{world}"))], tmp_path, world)
    for modality, text in run.networks.given.items():
        use(modality, text)
    alone, together = (subject.trained(tmp_path / f"{world}" / CHECKPOINT) for world in (1, 2))
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-10)
    assert together["moved"] == pytest.approx(alone["moved"], rel=1e-10)


def test_a_checkpoint_imports_nothing_and_wants_the_same_source(command: Run, drawn: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(FILE.read_text() + "\nfrom pathlib import Path\nPath('ran').touch()\n")
    options = ["--size", "tiny", "--preset", "a", "--batch-size", 4, "--steps", 1, "--out", "run", "--shards", drawn]
    own = ["--video-network", "mine.py:Net(width=8)"]
    done = command("pretrain", *options, *own, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "mine.py:Net(width=8): 8 features, without its classifier fc\n" in done.stdout
    assert "--video-network 'mine.py:Net(width=8)'" in done.stdout  # how to evaluate it
    (tmp_path / "ran").unlink()
    embed = ["embed", "--shards", drawn, "--clips", 1, "--ckpt", "run"]
    refused = command(*embed)
    assert refused.returncode == 2 and "mine.py:Net(width=8)" in refused.stderr and "--video-network" in refused.stderr
    assert not (tmp_path / "ran").exists()
    for text in ("mine.py:Net(width=16)", "mine.py:Sound"):
        assert command(*embed, "--video-network", text).returncode == 2
    assert command(*embed, *own).returncode == 0
    source.write_text(source.read_text() + "\n")
    changed = command(*embed, *own, "--overwrite")
    assert changed.returncode == 2 and "has changed" in changed.stderr
    again = command("pretrain", *options, "--device", "cpu")
    assert again.returncode == 2 and "network.video was" in again.stderr


def test_modules_and_callables_of_python_are_networks(drawn: Path, tmp_path: Path) -> None:
    """The weights of a module are the initial ones; it is not changed."""
    module = own_networks.Net(width=8)
    before = module.extra.weight.clone()
    run = pretrain(drawn, tmp_path / "x", video_network=module, audio_network=own_networks.Sound, steps=1)
    assert torch.equal(module.extra.weight, before)
    foreign._given["video"].clear()
    with pytest.raises(UserError, match=r"is own_networks.py:Net\(\.\.\.\)"):
        gdt.load(run.checkpoint)
    for other in (own_networks.Plain(), own_networks.Net(8, dropout=0.1)):  # of the same file
        foreign._given["video"].clear()
        with pytest.raises(UserError, match="another or has changed"):
            gdt.load(run.checkpoint, video_network=other)
    model = gdt.load(run.checkpoint, video_network=partial(own_networks.Net, 8))
    start = gdt.load(run.checkpoint, video_network=module)._trained.untrained().model.video_network.base.net
    asked = {"protocols": ("finetune",), "folds": (1,), "epochs": 1, "clips_per_epoch": 6, "clips": 1}
    gdt.evaluate(run.checkpoint, drawn, out=tmp_path / "eval", video_network=module, **asked)
    assert model.network.video_network.base.dim == 8 and torch.equal(start.extra.weight, before)


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        ("nothing", own_networks.BANK, "cannot read the network"),
        ("mine.py:Net(open('x'))", own_networks.BANK, "cannot read the network"),
        ("nowhere.py:Net", own_networks.BANK, "no file nowhere.py"),
        ("no.such.package:Net", own_networks.BANK, "cannot import no.such.package"),
        (f"{FILE}:Ned", own_networks.BANK, "did you mean 'Net'"),
        (3, own_networks.BANK, "not 3"),
        (nn.Flatten(), own_networks.BANK, "a module with parameters"),
        (nn.LazyLinear(3), own_networks.BANK, "lazy"),
        (own_networks.Sound, own_networks.CLIP, r"fails .*--clip.frames"),
        (nn.Sequential(nn.Linear(99, 4), nn.Flatten(0, 2)), own_networks.BANK, r"returns \[80, 4\] instead of"),
        (own_networks.Counting, own_networks.BANK, "changes passes in every pass"),
        (own_networks.Elsewhere, own_networks.BANK, "elsewhere than from torch"),
    ],
)  # fmt: skip
def test_what_breaks_a_promise_is_refused(network: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check("audio", use("audio", network), shape)
