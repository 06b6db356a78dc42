"""Foreign weights, saved as their programs save them, against independent implementations of the networks."""

import argparse
import collections
import contextlib
import math
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gdt.common.errors import UserError
from gdt.eval.downstream import downstream
from gdt.eval.embed import features
from gdt.eval.results import RESULTS, read
from gdt.eval.settings import Downstream, Embed
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.sources.text import Words
from gdt.train.checkpoint import load_model
from gdt.train.experiment import resolve
from gdt.train.learner import start_from
from gdt.train.models.gdt import GDT
from gdt.train.models.network import Architecture
from gdt.train.models.text import TextNetwork
from gdt.train.pretrain import pretrain
from gdt.train.record import Origin, Record, header
from gdt.train.settings import SIZES, Optimization, Pretrain, RunSettings
from gdt.train.trained import Trained
from gdt.train.weights import KINETICS, NETWORK, RELEASE
from tests.tamper import edit_record


def convolution(inputs: int, middle: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False), nn.BatchNorm3d(middle),
        nn.ReLU(), nn.Conv3d(middle, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
    )  # fmt: skip


class Residual(nn.Module):
    """y = relu(x' + f(x)), in three dimensions as in R(2+1)D, or in two."""

    def __init__(self, inputs: int, outputs: int, stride: int, flat: bool) -> None:
        super().__init__()
        if flat:
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            norm, one = nn.BatchNorm2d, nn.Conv2d
        else:
            middle = inputs * outputs * 27 // (inputs * 9 + 3 * outputs)
            self.conv1 = nn.Sequential(convolution(inputs, middle, outputs, stride), nn.BatchNorm3d(outputs), nn.ReLU())
            self.conv2 = nn.Sequential(convolution(outputs, middle, outputs), nn.BatchNorm3d(outputs))
            norm, one = nn.BatchNorm3d, nn.Conv3d
        self.flat = flat
        if stride > 1:
            self.downsample = nn.Sequential(one(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        if self.flat:
            return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + shortcut).relu()
        return (self.conv2(self.conv1(x)) + shortcut).relu()


class Video(nn.Module):
    """r2plus1d_18 with its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False), nn.BatchNorm3d(45), nn.ReLU(),
            nn.Conv3d(45, 64, (3, 1, 1), 1, (1, 0, 0), bias=False), nn.BatchNorm3d(64), nn.ReLU(),
        )  # fmt: skip
        for k, (inputs, outputs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
            first = Residual(inputs, outputs, 1 if k == 1 else 2, False)
            self.add_module(f"layer{k}", nn.Sequential(first, Residual(outputs, outputs, 1, False)))
        self.fc = nn.Linear(512, 400)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x))))).mean((2, 3, 4))


class Sound(nn.Module):
    """resnet9 over one channel, with an unused classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        for k, (inputs, outputs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
            self.add_module(f"layer{k}", nn.Sequential(Residual(inputs, outputs, 1 if k == 1 else 2, True)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


class Projection(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.block_forward = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(inputs, 512, bias=False), nn.Unflatten(1, (512, 1)),
            nn.BatchNorm1d(512), nn.Flatten(), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 256),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.block_forward(x), dim=1)


class Base(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embd, self.fc1 = nn.Embedding(50, 300), nn.Linear(300, 2048)


class Release(nn.Module):
    """The published model: parameter names and computation."""

    def __init__(self, text: bool = False) -> None:
        super().__init__()
        video = Video()
        del video.fc
        self.video_network, self.mlp_v = Base(video), Projection(512)
        if text:
            self.text_network, self.mlp_t = Text(), Projection(2048)
        else:
            self.audio_network, self.mlp_a = Base(Sound()), Projection(512)


def random(network: nn.Module) -> nn.Module:
    """The network in evaluation mode; statistics and weights of its batch norms are random, so that each matters."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            for tensor, low in ((module.running_mean, -0.3), (module.running_var, 0.5), (module.weight.data, 0.5)):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
    return network.eval()


def saved(network: nn.Module, path: Path, prefix: str = "", legacy: bool = False) -> Path:
    """Save as the release's script does: with objects of its command line, optimizer, scheduler and meters."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [10, 20])
    state = {
        "model": collections.OrderedDict((prefix + name, value) for name, value in network.state_dict().items()),
        "optimizer": optimizer.state_dict(), "optimizer_object": optimizer, "lr_scheduler": scheduler, "epoch": 99,
        "args": argparse.Namespace(hypothesis=1, path=Path("/data")),
        "meters": collections.defaultdict(list, loss=[1.0]),
        "best": np.float64(3.5),
    }  # fmt: skip
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.fixture(scope="module")
def release() -> Release:
    """The published model with random weights, which no test changes."""
    return random(Release())


CLIPS = torch.randn(2, 3, 6, 32, 32, generator=torch.Generator().manual_seed(1))
BANKS = torch.randn(2, 1, 40, 99, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("prefix", "legacy"), [("", False), ("module.", False), ("module.", True)])
def test_published_weights_reproduce_the_outputs(release: Release, tmp_path: Path, prefix: str, legacy: bool) -> None:
    trained = load_model(saved(release, tmp_path / "gdt_K400.pth", prefix, legacy))
    assert str(trained.origin) == "published GDT weights; dropped audio_network.base.fc"
    with torch.no_grad():
        video, sound = release.video_network.base(CLIPS), release.audio_network.base(BANKS)
        assert torch.allclose(trained.model.video_network(CLIPS), video, rtol=1e-6, atol=1e-6 * video.abs().max())
        assert torch.allclose(trained.model.audio_network(BANKS), sound, rtol=1e-6, atol=1e-6 * sound.abs().max())
        assert torch.allclose(trained.model.embed("video", CLIPS), release.mlp_v(video), atol=1e-6)
        assert torch.allclose(trained.model.embed("audio", BANKS), release.mlp_a(sound), atol=1e-6)
    assert trained.inputs.statistics is RELEASE and not trained.model.training
    assert np.allclose((np.array([0.0, 255.0]) - RELEASE.pixel_mean[0]) / RELEASE.pixel_std[0], [-2, 0.55 / 0.225])
    names = sum(1 for name in release.state_dict() if ".fc." not in name)
    assert len(trained.model.state_dict()) == names == 312 - 2  # as many as in the release's files, without fc


def test_published_text_and_finetuned_models_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = random(Release(text=True))
    trained = load_model(saved(release, tmp_path / "gdt_HT100M.pth"))
    assert trained.origin.dropped == ("text_network.word_embd",) and trained.origin.fresh == ()
    with torch.no_grad():
        video = release.video_network.base(CLIPS)
        assert torch.allclose(trained.model.video_network(CLIPS), video, rtol=1e-6, atol=1e-6 * video.abs().max())
    assert torch.equal(trained.model.text_network.fc1.weight, release.text_network.fc1.weight)
    # padding counts there as words of zeros, and here not at all
    mask = torch.arange(20) < torch.tensor([[3], [20], [0]])
    vectors = torch.randn(3, 20, 300, generator=torch.Generator().manual_seed(3)).half() * mask[..., None]
    words = Words(vectors, mask, np.zeros((3, 20), np.int64))
    with torch.no_grad():
        every = release.text_network.fc1(vectors.float()).relu()
        features = every.amax(1)
        assert torch.allclose(trained.model.text_network(words), features, rtol=1e-6, atol=1e-6)
        assert torch.allclose(trained.model.embed("text", words), release.mlp_t(features), atol=1e-6)
        ours = TextNetwork(300, 2048)
        ours.load_state_dict(trained.model.text_network.state_dict())
        assert torch.allclose(ours(words), (every * mask[..., None]).amax(1), rtol=1e-6, atol=1e-6)
    message = capsys.readouterr().err
    assert message.count("30 frames at 15 fps (the script uses 16), pixels from 0 to 1, 20 words") == 1
    clip, statistics = trained.settings.clip, trained.inputs.statistics
    assert (clip.frames, clip.stride, clip.size, clip.words) == (30, 2, 112, 20) and "HowTo100M" in message
    assert statistics.pixel_mean == (0, 0, 0) and statistics.pixel_std == (255, 255, 255)
    trained.write(tmp_path / "x.safetensors")
    assert load_model(tmp_path / "x.safetensors").model.text_network.padding
    tuned = nn.Module()
    tuned.base, tuned.classifier = release.video_network.base, nn.Linear(512, 101)
    trained = load_model(saved(tuned, tmp_path / "tuned.pth", "module."))
    assert (trained.origin.dropped, trained.origin.fresh) == (("classifier",), ("mlp_v",))
    with torch.no_grad():
        assert torch.allclose(trained.model.video_network(CLIPS), video, rtol=1e-6, atol=1e-6 * video.abs().max())


@pytest.mark.parametrize(
    ("key", "prefix", "inner"),
    [
        ("", "_orig_mod.", ""), ("", "module._orig_mod.", ""), ("state_dict", "model._orig_mod.module.", ""),
        ("model_state_dict", "", "_orig_mod."),
    ],
)  # fmt: skip
def test_names_of_wrappers_are_taken_off(release: Release, tmp_path: Path, key: str, prefix: str, inner: str) -> None:
    """As DDP, torch.compile and Lightning save them; `inner`: compiled networks in the model."""
    plain = release.state_dict()
    names = {name: prefix + name.replace("_network.", f"_network.{inner}") for name in plain}
    named = {names[name]: value for name, value in plain.items()}
    torch.save({key: named, "epoch": 3, "hyper_parameters": {"lr": 0.1}} if key else named, tmp_path / "x.pth")
    loaded = load_model(tmp_path / "x.pth").model.state_dict()
    assert len(loaded) == 310 and all(torch.equal(value, plain[name]) for name, value in loaded.items())


def test_torchvisions_weights_load_without_the_classifier(tmp_path: Path) -> None:
    network = random(Video())
    torch.save({f"_orig_mod.{k}": v for k, v in network.state_dict().items()}, tmp_path / "r2plus1d_18-91a641e6.pth")
    trained = load_model(tmp_path / "r2plus1d_18-91a641e6.pth")
    assert str(trained.origin) == "torchvision's r2plus1d_18; dropped fc; random mlp_v"
    torch.rand(1)
    assert load_model(tmp_path / "r2plus1d_18-91a641e6.pth").digest() == trained.digest()
    with torch.no_grad():
        video = network(CLIPS)
        assert torch.allclose(trained.model.video_network(CLIPS), video, rtol=1e-6, atol=1e-6 * video.abs().max())
    assert trained.inputs.statistics is KINETICS
    other = load_model(tmp_path / "r2plus1d_18-91a641e6.pth").untrained()
    assert other.model.state_dict().keys() == trained.model.state_dict().keys() and other.inputs.statistics is KINETICS


class Evil:
    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec])
def test_code_in_files_is_not_run(release: Release, tmp_path: Path, function: Any) -> None:
    ran = tmp_path / "ran"
    code = f"touch {ran}" if function is os.system else f"open('{ran}', 'w')"
    state = {"model": release.state_dict(), "args": Evil(function, code)}
    torch.save(state, tmp_path / "evil.pth")
    with contextlib.suppress(UserError):
        load_model(tmp_path / "evil.pth")
    assert not ran.exists()


def test_differing_parameters_are_listed(tmp_path: Path) -> None:
    weights = random(Video()).state_dict()
    torch.save({name: value for name, value in weights.items() if "layer3" not in name}, tmp_path / "part.pth")
    with pytest.raises(UserError, match="part.pth holds another model: layer3\\S+ is missing there"):
        load_model(tmp_path / "part.pth")
    weights["stem.0.weight"] = torch.zeros(83, 3, 1, 7, 7)
    torch.save(weights, tmp_path / "other.pth")
    with pytest.raises(UserError, match="stem.0.weight is .83, 3, 1, 7, 7. there"):
        load_model(tmp_path / "other.pth")
    deep = {"video_network.base.layer3.2.conv1.0.0.weight": torch.zeros(1)}
    torch.save(Release().state_dict() | deep, tmp_path / "r2plus1d_34.pth")
    with pytest.raises(
        UserError, match=r"34.pth holds another model: video_network.base.layer3.2.conv1\S+ is .1. there and missing"
    ):
        load_model(tmp_path / "r2plus1d_34.pth")
    torch.save({"model": {"conv1.weight": torch.zeros(3)}}, tmp_path / "resnet.pth")
    with pytest.raises(UserError, match="resnet.pth cannot be read .* known form; its first parameter is 'conv1.w"):
        load_model(tmp_path / "resnet.pth")


def test_trunks_without_the_heads_of_the_release_load(release: Release, tmp_path: Path, shards: Path) -> None:
    weights = release.state_dict()
    trunks = {name: value for name, value in weights.items() if not name.startswith("mlp_")}
    sound = {name: value for name, value in weights.items() if name.startswith(("audio_network.", "mlp_a."))}
    for name, state, random in (("trunks", trunks, ("mlp_v", "mlp_a")), ("sound", sound, ())):
        torch.save({"model": state}, tmp_path / name)
        trained = load_model(tmp_path / name)
        assert (trained.origin.dropped, trained.origin.fresh) == (("audio_network.base.fc",), random)
        taken = trained.model.state_dict()
        assert all(torch.equal(state[key], taken[key]) for key in taken.keys() & state.keys())
        with torch.no_grad():
            assert trained.model.audio_network(BANKS).shape == (2, 512)
    # random heads are not evaluated
    with pytest.raises(UserError, match="trunks has only a trunk, and embeddings need a head; set --kind features"):
        features(Embed(tmp_path / "trunks", shards=shards, out=tmp_path / "x.h5"))
    settings = Downstream((tmp_path / "trunks",), "x", shards, ("cross-modal",), clips=1, random_weights="exclude")
    with pytest.raises(UserError, match=r"cross-modal .* has none for these videos .it has no head for video audio;"):
        downstream(replace(settings, out=tmp_path / "out"))


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    network = Architecture(stem=2, stem_middle=2, widths=(2,), depth=1)
    base = random(GDT(network, ["video"])).video_network.base.state_dict()
    record = Record(RunSettings.of(Pretrain(network=network)), RELEASE, origin=Origin("mine", (), ("mlp_v",)))
    texts = {**header(NETWORK, record), "network": "video"}
    path, weight, variance = tmp_path / "x.pt", "stem.0.weight", "stem.1.running_var"

    def load(changed: dict[str, object], texts: dict[str, Any] = texts) -> Trained:
        named = {f"base.{name}": value for name, value in {**base, **changed}.items()}
        torch.save({"model": named, **texts}, path)
        return load_model(path)

    assert load({weight: base[weight].half(), variance: base[variance] * 0}).origin.fresh == ("mlp_v",)
    for value in (base[weight] / 0, base[weight].double() * 1e300):
        with pytest.raises(UserError, match=f"^{path}: {weight} contains NaN or infinity; use another file$"):
            load({weight: value})
    for change in ({"mel_mean": math.nan}, {"mel_std": 0.0}):
        with pytest.raises(UserError, match=r"x.pt holds no settings of this version \(.* is no normalisation\)"):
            load({}, edit_record(texts, statistics=asdict(RELEASE) | change))


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "e"
    return pretrain(replace(SIZES["tiny"], shards=shards, out=out, preset="e", batch_size=4, steps=2))


def test_evaluation_uses_the_statistics_of_training(
    run: Path, index: Index, shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = load_model(run)
    assert trained.inputs.statistics == index.statistics
    real = Index.open
    elsewhere = replace(index.statistics, pixel_mean=(130.0, 140.0, 150.0), pixel_std=(9.0, 9.0, 9.0))
    monkeypatch.setattr("gdt.eval.subjects.Index.open", lambda *given: replace(real(*given), statistics=elsewhere))
    settings = Downstream(
        (run,), "x", shards, ("retrieval", "few-shot", "cross-modal"), clips=2, random_weights="exclude"
    )
    downstream(replace(settings, out=tmp_path / "one"))
    monkeypatch.undo()
    downstream(replace(settings, out=tmp_path / "other"))
    one, other = (read(tmp_path / name / RESULTS) for name in ("one", "other"))
    assert [result.metrics for result in one] == [result.metrics for result in other] and len(one) == 3


def test_init_starts_from_the_given_weights(
    run: Path, shards: Path, index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(run, weights_only=True)
    theirs = Statistics((10.0, 20.0, 30.0), (40.0, 50.0, 60.0), 7.0, 8.0)
    state = edit_record(state, statistics=asdict(theirs))
    torch.save(state, tmp_path / "start.pt")
    settings = replace(
        SIZES["tiny"], shards=shards, out=tmp_path / "run", preset="a", batch_size=4, steps=1,
        init=str(tmp_path / "start.pt"), optimization=Optimization("sgd", lr=1e-12, base_batch_size=0, warmup_epochs=0),
    )  # fmt: skip
    began, now = load_model(run), load_model(pretrain(settings))
    assert "start.pt: loaded video_network, mlp_v" in " ".join(capsys.readouterr().out.split())
    for (name, one), (_, other) in zip(
        began.model.video_network.named_parameters(), now.model.video_network.named_parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-8), name
    assert now.inputs.statistics == theirs != index.statistics and now.record.fingerprint == fingerprint(index)
    for name, pixels, sound in (("video", theirs, index.statistics), ("audio", index.statistics, theirs)):
        start = Trained(GDT(now.model.network, [name]), replace(now.record, statistics=theirs))
        found = resolve(replace(settings, preset="e"), index, torch.device("cpu"), start=start).inputs.statistics
        assert found == replace(pixels, mel_mean=sound.mel_mean, mel_std=sound.mel_std)  # of what it has
    moved = replace(settings, init=str(shutil.copy(tmp_path / "start.pt", tmp_path / "moved.pt")))
    pretrain(moved)  # resumes, and finds that it is done
    with pytest.raises(UserError, match="the weights of --init"):
        pretrain(replace(settings, init=None))
    torch.save(edit_record(state, statistics=asdict(replace(theirs, mel_mean=11.0))), tmp_path / "start.pt")
    with pytest.raises(UserError, match="holds a run with different settings .the weights of --init"):
        pretrain(settings)
    with pytest.raises(UserError, match=r"start.pt \(video_network\) holds another model: "):
        pretrain(replace(settings, out=tmp_path / "other", network=replace(settings.network, depth=2)))


def test_random_parts_of_foreign_weights_are_not_copied() -> None:
    tiny = RunSettings.of(SIZES["tiny"])
    model, start = GDT(tiny.network), random(GDT(tiny.network, ["video"]))
    head = {name: value.clone() for name, value in model.mlp_v.state_dict().items()}
    origin = Origin("torchvision's", (), ("mlp_v",))
    said = start_from(model, Trained(start, Record(tiny, KINETICS, origin=origin)), Path("r2plus1d_18.pth"))
    assert said == "starting from r2plus1d_18.pth: loaded video_network; random mlp_v, audio_network, mlp_a"
    assert all(torch.equal(value, head[name]) for name, value in model.mlp_v.state_dict().items())
    weights = model.video_network.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in start.video_network.state_dict().items())
