"""Networks of the user's own: from pretraining to export, what a run promises, and what is refused."""

import pickle
import shlex
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
from gdt.eval.export import export
from gdt.eval.settings import Export
from gdt.train.checkpoint import load_model
from gdt.train.models.inspection import check_network
from gdt.train.models.network import OwnNetworks
from gdt.train.models.own import makers
from gdt.train.settings import SIZES
from tests.conftest import ROOT, Run, few
from tests.golden import subject
from tests.train import own_networks
from tests.train.drawn import draw

CLIP = SIZES["tiny"].clip
FILE = ROOT / "tests" / "train" / "own_networks.py"
VIDEO, AUDIO = "video_network", "audio_network"
CASES = {  # library, modality, features, layers taken off
    "Net": ("torch", VIDEO, 16, ("fc",)),
    "Sound": ("torch", AUDIO, 8, ()),
    "videomae": ("transformers", VIDEO, 16, ()),
    "ast": ("transformers", AUDIO, 16, ("classifier.dense",)),
    "x3d": ("pytorchvideo", VIDEO, 2048, ("blocks.5.proj", "blocks.5.activation")),
    "mvit": ("pytorchvideo", VIDEO, 16, ("head.proj",)),
    "r3d_18": ("torchvision", VIDEO, 512, ("fc",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn"), 12, ("train", "test"))[0]


def pretrain(shards: Path, out: Path, **settings: Any) -> gdt.Pretrained:
    given = {"size": "tiny", "preset": "e", "batch_size": 4, "group_size": 2, "steps": 3, "device": "cpu"}
    return gdt.pretrain(shards, out=out, **(given | {"optimization": {"lr_decay": 0.0}} | settings))


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return found


@pytest.mark.parametrize("name", few(CASES))
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
    given = makers({modality: [text]})
    base = load_model(run.checkpoint, given).model.get_submodule(f"{modality}_network.base")
    features = gdt.load(run.checkpoint, **{option: text}).embed(drawn, kind="features", clips=2).features[modality]
    assert features.shape == (12, dim) and np.isfinite(features).all()
    if modality == "video":
        found = gdt.evaluate(
            run.checkpoint, drawn, protocols=("finetune",), epochs=1, clips=2, clips_per_epoch=6, folds=(1,),
            random_weights="exclude", out=tmp_path / "eval", video_network=text,
        )  # fmt: skip
        assert any(row["metric"] == "finetune top-1" for row in found.rows)
    theirs_own = OwnNetworks(**{option: (text,)})
    export(Export(tmp_path / "x.pt", modality, run.checkpoint, own_networks=theirs_own))  # type: ignore[arg-type]
    theirs, state = given[modality][0].make(), torch.load(tmp_path / "x.pt", weights_only=True)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and all(key.startswith(removed) for key in missing)
    assert all(torch.equal(value, base.net.state_dict()[key]) for key, value in state.items())


@pytest.mark.parametrize("compile", few(["off", "on"]))
def test_dropout_repeats_in_the_second_pass_of_cached_gradients(drawn: Path, tmp_path: Path, compile: str) -> None:
    kind = own_networks.Net if compile == "off" else own_networks.Plain
    numbers = {
        cache: pretrain(
            drawn, tmp_path / cache, video_network=kind, compile=compiled, gradient_cache=cache, steps=2,
            precision="float64", preset="a",
        ).loss
        for cache, compiled in (("on", compile), ("off", "off"))
    }  # fmt: skip
    assert numbers["on"] == pytest.approx(numbers["off"], rel=1e-10)


def test_two_ranks_have_the_numbers_of_one(drawn: Path, tmp_path: Path) -> None:
    """Blocks that a rank skips have no gradient there; all ranks start from the weights of the first."""
    run = replace(
        subject.in_float64("e", drawn, drawn, group_size=3, batch_size=6), clip=SIZES["tiny"].clip, steps=4,
        augmentation=SIZES["tiny"].augmentation,
        own_networks=OwnNetworks((f"{FILE}:Net",), (f"{FILE}:Unseeded",)),
    )  # fmt: skip
    given = makers(run.own_networks.given)
    (alone,), (together,) = (
        subject.train_on_ranks([replace(run, out=tmp_path / f"{world}")], tmp_path, world, given) for world in (1, 2)
    )
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-10)
    assert together["moved"] == pytest.approx(alone["moved"], rel=1e-10)


def test_a_checkpoint_imports_nothing_and_names_its_network(command: Run, drawn: Path, tmp_path: Path) -> None:
    """What its code computes is up to its author; its weights fit, and a run goes on with the same name alone."""
    source = tmp_path / "mine.py"
    text = FILE.read_text() + "\nfrom pathlib import Path\nPath('ran').touch()\n"
    source.write_text(text)
    options = ["--size", "tiny", "--preset", "a", "--batch-size", 4, "--out", "run", "--shards", drawn, "--lr-decay", 0]
    own = ["--video-network", "mine.py:Net(width=8)"]
    done = command("pretrain", *options, *own, "--steps", 1, "--device", "cpu", check=True)
    assert "mine.py:Net(width=8): 8 features, without its classifier fc\n" in done.stdout
    assert "--video-network 'mine.py:Net(width=8)'" in done.stdout  # how to evaluate it
    (tmp_path / "ran").unlink()
    embed = ["embed", "--shards", drawn, "--clips", 1, "--ckpt", "run", "--overwrite"]
    refused = command(*embed)
    assert refused.returncode == 2 and "mine.py:Net(width=8)" in refused.stderr and "--video-network" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and not (tmp_path / "ran").exists()
    for others, reason in (
        (["mine.py:Net(width=16)"], "video_network.base.net.patches.weight is [8"),
        (["mine.py:Sound"], "mine.py:Sound has no layer fc"),
        (["mine.py:Net(width=16)", "mine.py:Sound"], "not among mine.py:Net(width=16), mine.py:Sound"),
    ):
        refused = command(*embed, "--video-network", *others)
        assert refused.returncode == 2 and reason in refused.stderr
    source.write_text(text.replace(".mean(1)", ".amax(1)"))
    spelled = ["--video-network", f"{tmp_path}/mine.py:Net(width=8, dropout=0.3)"]
    assert command(*embed, *spelled).returncode == 0
    for network in ([], spelled):
        again = command("pretrain", *options, *network, "--steps", 2, "--device", "cpu")
        assert again.returncode == 2 and "network.video was" in again.stderr
    assert command("pretrain", *options, *own, "--steps", 2, "--device", "cpu").returncode == 0
    unused = command(*embed, *own, "--audio-network", "mine.py:Sound")
    assert unused.returncode == 0 and "--audio-network has no effect on run, which was not trained" in unused.stderr


@pytest.mark.slow
def test_models_with_different_networks_fit_one_table_and_a_card_that_works(
    command: Run, drawn: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FILE.read_text())
    options = ["--size", "tiny", "--preset", "e", "--batch-size", 4, "--steps", 1, "--device", "cpu", "--shards", drawn]
    networks = {"a": "mine.py:Net(width=8)", "b": "mine.py:Plain"}
    for name, text in networks.items():
        assert command("pretrain", *options, "--out", f"runs/{name}", "--video-network", text).returncode == 0
    given = ["--video-network", *reversed(networks.values())]
    ask = ["--protocols", "retrieval", "--clips", 1, "--folds", 1, "--out", "runs/eval"]
    done = command("evaluate", "--ckpt", "runs/a", "runs/b", "--shards", drawn, *ask, *given, check=True)
    assert all(any(line.startswith(name) for line in done.stdout.splitlines()) for name in ("a ", "b "))
    report = command("report", *given)
    assert report.returncode == 0 and "not imported" not in (tmp_path / "runs" / "report.html").read_text()
    assert command("embed", "--ckpt", "runs/a", "--shards", drawn, "--clips", 1, *given).returncode == 0
    assert command("export", "--ckpt", "runs/a", "--to", "hub", *given).returncode == 0
    card = (tmp_path / "hub" / "README.md").read_text()
    assert 'gdt.load("hub", video_network="mine.py:Net(width=8)")' in card
    (line,) = [line for line in card.splitlines() if line.startswith("gdt evaluate")]
    assert command(*shlex.split(line)[1:], "--shards", drawn).returncode == 0


def test_modules_and_callables_of_python_are_networks(drawn: Path, tmp_path: Path) -> None:
    """The weights of a module are the initial ones; it is not changed."""
    module = own_networks.Net(width=8)
    before = module.extra.weight.clone()
    run = pretrain(drawn, tmp_path / "x", video_network=module, audio_network=own_networks.Sound, steps=1)
    assert torch.equal(module.extra.weight, before)
    sound = {AUDIO: own_networks.Sound}
    with pytest.raises(UserError, match="the video network of .* is Net, which is not imported by itself"):
        gdt.load(run.checkpoint, **sound)
    with pytest.raises(UserError, match="Plain has no layer fc"):
        gdt.load(run.checkpoint, video_network=own_networks.Plain(), **sound)
    model = gdt.load(run.checkpoint, video_network=partial(own_networks.Net, 8), **sound)
    start = gdt.load(run.checkpoint, video_network=module, **sound)._trained.untrained()
    asked = {"protocols": ("finetune",), "folds": (1,), "epochs": 1, "clips_per_epoch": 6, "clips": 1}
    gdt.evaluate(run.checkpoint, drawn, out=tmp_path / "eval", video_network=[module], **sound, **asked)
    assert model.network.video_network.base.dim == 8
    assert torch.equal(start.model.video_network.base.net.extra.weight, before)
    (finetuned,) = (tmp_path / "eval").rglob("x-*/finetune-*/finetuned.pt")
    with pytest.raises(UserError, match="Plain has no layer fc"):
        gdt.load(finetuned, video_network=own_networks.Plain())
    assert gdt.load(finetuned, video_network=module).network.modalities == ("video",)


@pytest.mark.parametrize(
    ("network", "modality", "message"),
    [
        ("nothing", "audio", "cannot read the network"),
        ("mine.py:Net(open('x'))", "audio", "cannot read the network"),
        ("mine.py:Net(8)", "audio", "arguments with their names"),
        ("nowhere.py:Net", "audio", "no file nowhere.py"),
        ("no.such.package:Net", "audio", "cannot import no.such.package"),
        (f"{FILE}:Ned", "audio", "did you mean 'Net'"),
        (3, "audio", "not 3"),
        (nn.Flatten(), "audio", "a module with parameters"),
        (nn.LazyLinear(3), "audio", "lazy"),
        (nn.Sequential(nn.Linear(99, 4), nn.Flatten(0, 2)), "audio", r"returns \[80, 4\] instead of"),
        (own_networks.Counting, "audio", "changes passes in every pass"),
        (own_networks.Elsewhere, "audio", "elsewhere than from torch"),
        (own_networks.Skipping, "audio", "does not run its batch norm 1 in every pass"),
    ],
)  # fmt: skip
def test_what_breaks_a_promise_is_refused(network: Any, modality: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_network(modality, makers({modality: [network]})[modality][0], CLIP)


def test_any_folder_may_hold_the_file_of_a_network_and_of_one_name_there_may_be_several(tmp_path: Path) -> None:
    text = "from torch.nn import Linear\nclass Net(Linear):\n    def __init__(self):\n        super().__init__(2, %d)\n"
    nets = []
    for width, folder in enumerate(("my (old)", "a:b", "x.py"), 3):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text % width)
        (maker,) = makers({"video": [f"{tmp_path / folder}/mine.py:Net"]})["video"]
        assert maker.name == "mine.py:Net"
        nets.append(maker.make())
    assert [net.out_features for net in map(pickle.loads, map(pickle.dumps, nets))] == [3, 4, 5]


def test_errors_of_a_network_are_pythons_own_with_what_to_set(command: Run, drawn: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as error:
        check_network("video", makers({"video": [own_networks.Sound]})["video"][0], CLIP)
    assert "set --clip.frames" in error.value.__notes__[0]
    (tmp_path / "mine.py").write_text("import torch\n\nnet = torch.nn.Linear(3, 4) + 1\n")
    done = command("pretrain", "--shards", drawn, "--size", "tiny", "--video-network", "mine.py:net", "--out", "run")
    assert done.returncode == 1 and 'mine.py", line 3' in done.stderr and "TypeError" in done.stderr
