"""What a training step of the paper's networks needs, counted without a GPU: memory of activations, and arithmetic.

    python -m benchmarks.size

Tensors on torch's meta device have shapes and no content, so what autograd keeps for the backward pass and what is
multiplied can be counted for any size. Memory of a GPU is that of the activations; weights, optimiser and workspace
come to about 2 GiB more. Time is the arithmetic at a stated share of the GPU's peak: an estimate, not a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import tyro
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pipeline import presets
from train.models.gdt import GDT
from train.settings import SIZES, Pretrain

_GIB = 2**30


@dataclass(frozen=True)
class Size:
    """Memory and arithmetic of pretraining, by preset and GPU."""

    presets: tuple[str, ...] = ("a", "e", "l")
    """Rows of the paper's table 1, or other names of --preset help."""
    videos_per_batch: int = 512
    """K_i, over all GPUs."""
    videos: int = 240_000
    """Videos of the data set (Kinetics-400 has about so many)."""
    epochs: int = 100
    """Passes over them."""
    peak: float = 989.0
    """TFLOP/s in bfloat16 that a GPU's maker states; 989 is an H100 SXM, 312 an A100."""
    share: float = 0.3
    """Share of it that is reached; assumed."""


@dataclass(frozen=True)
class Cost:
    """Of one leaf, forward and backward."""

    bytes: float
    """Kept for the backward pass, in bfloat16."""
    flops: float


def cost(network: nn.Module, leaf: Tensor, leaves: int = 4) -> Cost:
    """Of one of some leaves of a batch: what a larger batch has more."""
    kept: dict[int, int] = {}
    held = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter):
            held.append(storage)  # so that no other takes its number
            kept[id(storage)] = storage.nbytes()
        return tensor

    def total(n: int) -> tuple[int, int]:
        kept.clear()
        batch = leaf.expand(n, *leaf.shape[1:]).clone()
        counter = FlopCounterMode(display=False)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter:
            network(batch).sum().backward()
        return sum(kept.values()), counter.get_total_flops()

    (few, some), (many, more) = total(leaves), total(2 * leaves)
    return Cost((many - few) / leaves, (more - some) / leaves)


def costs(settings: Pretrain) -> dict[str, Cost]:
    """By modality."""
    model = GDT(settings.network).to("meta", torch.bfloat16)
    clip = settings.clip
    leaf = {
        "video": torch.empty(1, 3, clip.frames, clip.size, clip.size, device="meta", dtype=torch.bfloat16),
        "audio": torch.empty(1, 1, 40, clip.mel_frames, device="meta", dtype=torch.bfloat16),
    }
    return {
        name: cost(nn.Sequential(model.get_submodule(f"{name}_network"), model.get_submodule(f"mlp_{name[0]}")), inputs)
        for name, inputs in leaf.items()
    }


def table(settings: Size) -> str:
    """A row per preset."""
    of = costs(SIZES["paper"][1])
    rows = []
    for name in settings.presets:
        composition = presets.composition(name, videos_per_batch=settings.videos_per_batch)
        clips = composition.clips_per_video
        leaves = {"video": clips, "audio": prod(factor.k for factor in composition.factors[1:]) - clips}
        memory = sum(of[modality].bytes * n for modality, n in leaves.items()) * settings.videos_per_batch / _GIB
        flops = sum(of[modality].flops * n for modality, n in leaves.items()) * settings.videos * settings.epochs
        days = flops / (settings.peak * 1e12 * settings.share) / 86_400
        rows.append([name, clips * settings.videos_per_batch, f"{memory:.0f}", f"{memory / 8:.0f}",
                     f"{memory / 64:.1f}", f"{flops:.1e}", f"{days:.1f}", f"{days / 8 * 24:.1f}"])  # fmt: skip
    heads = [
        "preset",
        "clips per step",
        "GiB on 1 GPU",
        "on each of 8",
        "of 64",
        "FLOPs in all",
        "days on 1",
        "hours on 8",
    ]
    each = ", ".join(f"{name} {c.bytes / 2**20:.0f} MiB and {c.flops / 1e9:.0f} GFLOPs" for name, c in of.items())
    return f"per leaf, forward and backward: {each}\n\n{tabulate(rows, heads, disable_numparse=True)}"


if __name__ == "__main__":
    print(table(tyro.cli(Size)))
