"""Memory and hours of pretraining the paper's networks, counted without a GPU.

Tensors on torch's meta device have shapes and no content, so activations and FLOPs can be counted for any size;
`train.memory` then chooses as it does when a run starts. Hours are the FLOPs at a share of the GPU's peak: an
estimate, not a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Literal

import torch
import tyro
from tabulate import tabulate

from gdt.pipeline.presets import composition as composition_of
from gdt.train.cost import ONE_STAGE, TWO_STAGES, LeafMemory, memory, parameters, training_flops
from gdt.train.memory import Fit, fit
from gdt.train.settings import SIZES

_GIB = 2**30
_BANDS = 40
_MODALITIES = ("video", "audio")
_GPUS = {"4090": (24, 165.0), "A100": (80, 312.0), "H100": (80, 989.0), "H200": (141, 989.0)}
"""GiB, and the stated peak in bfloat16 TFLOP/s."""


def main(
    presets: tuple[str, ...] = ("e", "a", "l"), gpus: tuple[int, ...] = (1, 8),
    kinds: tuple[Literal["4090", "A100", "H100", "H200"], ...] = ("4090", "H100", "H200"), batch_size: int = 512,
    videos: int = 240_000, epochs: int = 100, share: float = 0.17,
) -> None:  # fmt: skip
    """Count memory and hours of pretraining.

    Args:
        presets: Rows of the paper's table 1, or other presets.
        gpus: Numbers of GPUs.
        kinds: Kinds of GPU; a tenth of their memory counts as not free.
        batch_size: Videos per batch, over all GPUs.
        videos: Videos of the data set; default about Kinetics-400.
        epochs: Passes over them.
        share: Share of the stated peak that training reaches; predicted for an H100: 0.14 to 0.21.

    """
    paper = replace(SIZES["paper"][1], batch_size=batch_size)
    model = (paper.network, paper.clip, _BANDS, _MODALITIES)
    stages = (0, ONE_STAGE, TWO_STAGES)
    flops = {recomputed: training_flops(*model, recomputed) for recomputed in stages}

    @cache
    def held(recomputed: int, budget: bool) -> dict[str, LeafMemory]:
        return memory(*model, torch.bfloat16, recomputed, budget)

    rows = []
    for name in presets:
        composition = composition_of(name, batch_size=batch_size)
        modalities = composition.modalities
        weights = parameters(paper.network, modalities)

        def own(recomputed: int, budget: bool, modalities: Sequence[str] = modalities) -> dict[str, LeafMemory]:
            return {m: held(recomputed, budget)[m] for m in modalities}

        clips = composition.clips_per_video
        leaves = {"video": clips, "audio": prod(factor.k for factor in composition.factors[1:]) - clips}
        for count in gpus:
            for kind in kinds:
                gib, peak = _GPUS[kind]
                one = fit(paper, composition, count, weights, 0.9 * gib * _GIB, own, compiled=True)
                total = videos * epochs * sum(_flops(one, flops, m) * n for m, n in leaves.items())
                hours = total / (peak * 1e12 * share) / count / 3600
                rows.append([
                    name, clips * batch_size, f"{count} x {kind}",
                    one.bn_group_size or "whole batch", one.micro_batch_size or "all",
                    {0: "", ONE_STAGE: "1 stage", TWO_STAGES: "2 stages"}[one.recomputed] or "cheap" * one.budget,
                    f"{one.needed / _GIB:.0f}", f"{hours:.1f}",
                ])  # fmt: skip
    heads = ["preset", "clips/step", "GPUs", "batch norm over", "leaves/pass", "recomputed", "GiB/GPU", "hours"]
    each = ", ".join(
        f"{m} {held(0, False)[m].kept / 2**20:.0f} MiB and {f / 1e9:.0f} GFLOPs" for m, f in flops[0].items()
    )
    again = "\n".join(
        f"video with {what} recomputed: keeps {one.kept / 2**20:.0f} MiB, holds at most {one.peak / 2**20:.0f} MiB, "
        f"{flops[stages]['video'] / 1e9:.0f} GFLOPs"
        for what, stages in (("cheap operations", 0), ("1 stage", ONE_STAGE), ("2 stages", TWO_STAGES))
        for one in [held(stages, True)["video"]]
    )
    print(f"per leaf, forward and backward: {each}\n{again}\n\n{tabulate(rows, heads, disable_numparse=True)}")


def _flops(one: Fit, flops: Mapping[int, Mapping[str, float]], modality: str) -> float:
    """FLOPs of a leaf, forward and backward; gradient caching adds a forward pass, which is a third more."""
    again = flops[0][modality] / 3 if one.micro_batch_size else 0.0
    return flops[one.recomputed][modality] + again


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.size")
