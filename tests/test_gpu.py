"""What only a GPU can show: the same batches, and training on them. Skipped where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from eval.downstream import downstream
from eval.features import extract
from eval.results import from_json
from eval.settings.downstream import Downstream
from pipeline import presets
from pipeline.colour import Pixels
from pipeline.leaves import Clip
from pipeline.loader import Loader
from pipeline.notation import parse
from pipeline.shards.index import Index
from pipeline.sources.loading import Loading
from pipeline.sources.text import Words
from pipeline.transformations.augmentation import Augmentation
from pipeline.tree import sampling_tree
from pipeline.word2vec import WordVectors
from train.checkpoint import load_model
from train.models.gdt import GDT
from train.pretrain import pretrain, synchronised
from train.run import leave_without_teardown
from train.settings import SIZES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


MORE = (
    "video:d time_shift:d:2 speed(1,2):i:2 modality(video,audio,text):i:3:differs rotation:i:4 time_reversal:i:2 "
    "augmentation:i:1"
)


def plain(part: Pixels | Words | torch.Tensor) -> torch.Tensor:
    if isinstance(part, Pixels):
        return part.floats().cpu()
    return part.vectors.float().cpu() if isinstance(part, Words) else part.cpu().clone()


@pytest.mark.parametrize("factors", [presets.preset("a").factors, presets.preset("l").factors, MORE])
def test_the_gpu_loads_the_same_batches_as_the_cpu(captioned: Path, word2vec: Path, factors: str) -> None:
    clip, index = Clip(frames=6, stride=3, size=40), Index.open(captioned)
    composition = parse(factors, 5, Augmentation(scale=(44, 60)))
    words = WordVectors.of(index, word2vec) if "text" in composition.modalities else None
    tree = sampling_tree(index, composition, clip, "train", 0)
    plans = [tree.plan(0, batch) for batch in range(4)]
    batches = {}
    for name in ("cpu", "cuda"):
        with Loader(index, plans, clip, torch.device(name), Loading(clips_at_once=4), words) as loader:
            batches[name] = [{kind: plain(part) for kind, part in batch.inputs.items()} for batch in loader]
    for cpu, gpu in zip(batches["cpu"], batches["cuda"], strict=True):
        std = torch.from_numpy(index.statistics.pixel_std).view(1, 3, 1, 1, 1)
        levels = ((cpu["video"] - gpu["video"]) * std).abs().mean((1, 2, 3, 4))
        assert levels.max() < 2  # nvJPEG and libjpeg differ by a level here and there, in no leaf by more
        assert cpu.keys() == gpu.keys()
        assert all(torch.allclose(cpu[kind], gpu[kind], atol=1e-4) for kind in cpu if kind != "video")


def test_pretraining_on_the_gpu_runs_to_the_end(shards: Path, tmp_path: Path) -> None:
    settings = replace(
        SIZES["tiny"][1], shards=shards, out=tmp_path / "run", preset="l", videos_per_batch=8, steps=30, device="cuda"
    )
    state = torch.load(pretrain(settings), weights_only=True)
    assert state["step"] == 30
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def _normalised(rank: int, world: int, folder: str) -> None:
    """Outputs, gradients and running statistics of a rank's share of a batch; gloo, so that one GPU is enough."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = synchronised(GDT(replace(SIZES["tiny"][1].network, dropout=0.0)), device, world).to(device)
    batch = torch.randn(8, 3, 8, 32, 32, generator=torch.Generator().manual_seed(1))
    share = batch.chunk(world)[rank].to(device)
    out = model.mlp_v(model.video_network(share))
    (out.sum(1) * torch.arange(1.0, 9.0).chunk(world)[rank].to(device)).sum().backward()
    gradient = model.video_network.base.stem[0].weight.grad
    dist.all_reduce(gradient)
    state = {"out": out.detach().cpu(), "gradient": gradient.cpu()}
    state |= {name: value.cpu() for name, value in model.state_dict().items() if "running" in name}
    torch.save(state, f"{folder}/{world}-{rank}.pt")
    dist.barrier()
    leave_without_teardown()


def test_batch_norm_of_two_ranks_is_that_of_the_joined_batch(tmp_path: Path) -> None:
    for world in (1, 2):
        (tmp_path / str(world)).mkdir()
        mp.spawn(_normalised, (world, str(tmp_path / str(world))), nprocs=world)
    one = torch.load(tmp_path / "1" / "1-0.pt", weights_only=True)
    parts = [torch.load(tmp_path / "2" / f"2-{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.allclose(torch.cat([part["out"] for part in parts]), one["out"], atol=1e-4)
    for part in parts:
        assert all(torch.allclose(part[name], one[name], rtol=1e-3, atol=1e-4) for name in one if name != "out")


def test_finetuning_and_recall_on_a_gpu(shards: Path, tmp_path: Path) -> None:
    """On a GPU in bfloat16, where numbers are near those of the CPU."""
    path = pretrain(replace(SIZES["tiny"][1], shards=shards, out=tmp_path / "run", videos_per_batch=4, steps=2))
    settings = Downstream(
        (path,), "x", shards, ("cross-modal", "retrieval", "few-shot", "linear", "finetune"), size="tiny", epochs=2,
        clips_per_epoch=2, clips=2, random="no", side_by_side=1, out=tmp_path / "eval",
    )  # fmt: skip
    assert "finetune top-1" in downstream(settings)
    results = from_json((tmp_path / "eval" / "results.json").read_text())
    assert {result.how["precision"] for result in results} == {"bfloat16"} and len(results) == 5
    trained, index = load_model(path), Index.open(shards)
    one, other = (extract(trained, index, np.arange(4), 2, torch.device(name)) for name in ("cpu", "cuda"))
    assert np.allclose(one.average, other.average, rtol=0.05, atol=0.05)


def test_a_step_at_the_papers_size_fits_and_is_finite(shards: Path, tmp_path: Path) -> None:
    settings = replace(
        SIZES["paper"][1],
        shards=shards,
        out=tmp_path / "run",
        preset="l",
        videos_per_batch=4,
        epochs=0,
        steps=2,
        device="cuda",
    )
    assert torch.load(pretrain(settings), weights_only=True)["step"] == 2
