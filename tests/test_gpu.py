"""What only a GPU can show: the same batches, and training on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from benchmarks.gpu import MEAN, NEARLY_ALL, levels
from gdt.eval.downstream import downstream
from gdt.eval.extract import extract
from gdt.eval.results import RESULTS, read
from gdt.eval.settings import Downstream
from gdt.pipeline import colour, presets
from gdt.pipeline.colour import Pixels
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.sources.text import Words
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import sampling_tree
from gdt.pipeline.word2vec import WordVectors
from gdt.train import checkpoint
from gdt.train.checkpoint import load_model
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES, Optimization
from tests.composed import composed, inputs_of
from tests.train.runs import losses

pytestmark = [
    pytest.mark.gpu, pytest.mark.timeout(1800), pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]  # fmt: skip

MORE = (
    "video:d time_shift:d:2 speed(1,2):i:2 modality(video,audio,text):i:3:differs rotation:i:4 time_reversal:i:2 "
    "augmentation:i:1"
)


def copied(part: Pixels | Words | torch.Tensor) -> Pixels | torch.Tensor:
    """On the CPU, before the batch's memory is used again."""
    if isinstance(part, Pixels):
        return Pixels(part.crops.cpu().clone(), part.matrix.cpu().clone(), part.offset.cpu().clone())
    return (part.vectors if isinstance(part, Words) else part).float().cpu().clone()


@pytest.mark.parametrize("decoder", ["gpu", "cpu"])
@pytest.mark.parametrize("factors", [presets.preset("a").factors, presets.preset("l").factors, MORE])
def test_the_gpu_loads_the_same_batches_as_the_cpu(
    captioned: Path, word2vec: Path, factors: str, decoder: Literal["gpu", "cpu"]
) -> None:
    clip, index = Clip(frames=6, stride=3, size=40), Index.open(captioned)
    composition = parse(factors, 5, Augmentation(scale=(44, 60)))
    words = WordVectors.of(index, word2vec) if "text" in composition.modalities else None
    tree = sampling_tree(index, composition, clip, "train", 0)
    plans = [tree.plan(0, batch) for batch in range(4)]
    batches = []
    for name, loading in (("cpu", Loading()), ("cuda", Loading(decode_batch_size=4, decoder=decoder))):
        with Loader(index, plans, inputs_of(index, clip), torch.device(name), loading, words) as loader:
            batches.append([{kind: copied(part) for kind, part in batch.inputs.items()} for batch in loader])
    for cpu, gpu in zip(*batches, strict=True):
        assert cpu.keys() == gpu.keys()
        assert all(torch.allclose(cpu[kind], gpu[kind], atol=1e-4) for kind in cpu if kind != "video")
        mean, nearly_all, most = levels(cpu["video"].crops, gpu["video"].crops)
        # how decoders round is all that may differ, and the cores are the same ones
        assert (mean < MEAN and nearly_all <= NEARLY_ALL) if decoder == "gpu" else most == 0, (mean, nearly_all, most)
        assert torch.equal(cpu["video"].matrix, gpu["video"].matrix)


@pytest.mark.parametrize("decoder", ["gpu", "cpu"])
def test_no_batch_is_overwritten_while_the_device_still_reads_it(index: Index, decoder: Literal["gpu", "cpu"]) -> None:
    clip = Clip(frames=4, stride=2, size=32)
    tree = sampling_tree(index, composed("l", 4, Augmentation(scale=(36, 46))), clip, "train", 0)
    got = []
    for busy in (False, True):
        loading = Loading(prefetch=1, decode_batch_size=2, decoder=decoder)
        with Loader(index, tree.plans(0, 8), inputs_of(index, clip), torch.device("cuda"), loading) as loader:
            made = []
            for batch in loader:
                if busy:
                    torch.cuda._sleep(100_000_000)  # cycles: the loader is far ahead when the copy is made
                made.append(batch.inputs["video"].crops.clone())
                if not busy:
                    torch.cuda.synchronize()
            got.append(torch.cat(made).cpu())
    assert levels(*got)[2] <= 1  # the same decoder, of which nobody promises the same bits


def test_losses_are_those_of_the_cpu(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, without dropout, which a GPU draws from another generator.

    Pixels are converted alike, since a difference of 1e-7 grows to 1e-2 in four steps.
    """
    monkeypatch.setattr(colour, "_on_cpu", colour._on_any_device)
    base = SIZES["tiny"]
    for name in ("cpu", "cuda"):
        pretrain(
            replace(
                base, shards=shards, out=tmp_path / name, batch_size=8, steps=4, device=name, precision="float64",
                loading=Loading(decoder="cpu"),
                optimization=Optimization("sgd", lr=1e-3, base_batch_size=0, warmup_epochs=0),
            )
        )  # fmt: skip
    assert losses(tmp_path / "cpu") == pytest.approx(losses(tmp_path / "cuda"), rel=1e-3)


@pytest.mark.parametrize(
    ("size", "changes"),
    [("tiny", {"batch_size": 8, "steps": 30}), ("paper", {"batch_size": 4, "epochs": 0, "steps": 2})],
)
def test_pretraining_on_the_gpu_runs_to_the_end(
    shards: Path, tmp_path: Path, size: str, changes: dict[str, Any]
) -> None:
    settings = replace(SIZES[size], shards=shards, out=tmp_path / "run", preset="l", device="cuda", **changes)
    state = checkpoint.read(pretrain(settings))
    assert state.record.step == changes["steps"]
    assert all(torch.isfinite(value).all() for value in state.weights.values())


def test_finetuning_and_recall_on_a_gpu(shards: Path, tmp_path: Path) -> None:
    """In bfloat16, where numbers are near those of the CPU."""
    path = pretrain(replace(SIZES["tiny"], shards=shards, out=tmp_path / "run", batch_size=4, steps=2))
    settings = Downstream(
        (str(path),), "x", shards, ("cross-modal", "retrieval", "few-shot", "linear", "finetune"), epochs=2,
        clips_per_epoch=2, clips=2, random_weights="exclude", jobs=1, out=tmp_path / "eval",
    )  # fmt: skip
    assert "finetune top-1" in downstream(settings)
    results = read(tmp_path / "eval" / RESULTS)
    assert {result.details["precision"] for result in results} == {"bfloat16"} and len(results) == 5
    trained, index = load_model(path), Index.open(shards)
    one, other = (extract(trained, index, np.arange(4), 2, torch.device(name)) for name in ("cpu", "cuda"))
    assert np.allclose(one.average, other.average, rtol=0.05, atol=0.05)
