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

from pipeline import presets
from train.cost import WIDE, WIDER, arithmetic, memory
from train.settings import SIZES

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


def table(settings: Size) -> str:
    """A row per preset."""
    paper = SIZES["paper"][1]
    of = (paper.network, paper.clip, 40, ("video", "audio"))
    kept = [memory(*of, torch.bfloat16, recomputed) for recomputed in (0, WIDE, WIDER)]
    flops_of = arithmetic(*of)
    rows = []
    for name in settings.presets:
        composition = presets.composition(name, videos_per_batch=settings.videos_per_batch)
        clips = composition.clips_per_video
        leaves = {"video": clips, "audio": prod(factor.k for factor in composition.factors[1:]) - clips}
        bytes_ = sum(kept[0][modality] * n for modality, n in leaves.items()) * settings.videos_per_batch / _GIB
        flops = sum(flops_of[modality] * n for modality, n in leaves.items()) * settings.videos * settings.epochs
        days = flops / (settings.peak * 1e12 * settings.share) / 86_400
        rows.append([name, clips * settings.videos_per_batch, f"{bytes_:.0f}", f"{bytes_ / 8:.0f}",
                     f"{bytes_ / 64:.1f}", f"{flops:.1e}", f"{days:.1f}", f"{days / 8 * 24:.1f}"])  # fmt: skip
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
    each = ", ".join(f"{name} {kept[0][name] / 2**20:.0f} MiB and {f / 1e9:.0f} GFLOPs" for name, f in flops_of.items())
    again = " and ".join(f"{of_leaf['video'] / 2**20:.0f}" for of_leaf in kept[1:])
    return (
        f"per leaf, forward and backward: {each}; video {again} MiB where one or two stages are computed twice\n\n"
        f"{tabulate(rows, heads, disable_numparse=True)}"
    )


if __name__ == "__main__":
    print(table(tyro.cli(Size)))
