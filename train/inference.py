"""One pass of networks over clips without gradients, by which they are probed, evaluated and embedded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.cache import Cache
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import BatchPlan
from gdt.pipeline.word2vec import WordVectors
from gdt.train.models.gdt import autocast
from gdt.train.trained import Trained

Compute = Callable[[Batch], Sequence[Tensor]]
"""What is kept of a batch."""


def over_clips(
    index: Index,
    plans: Iterable[BatchPlan],
    inputs: Inputs,
    device: torch.device,
    compute: Compute,
    bar: tqdm[None] | None = None,
    per: int = 1,
    loading: Loading = Loading(),
    words: WordVectors | None = None,
    cache: Cache | None = None,
) -> list[np.ndarray]:
    """The tensors that `compute` returns, each concatenated over the batches of all plans: float32.

    The bar advances by one for every `per` leaves. Raises UserError if a shard is damaged.
    """
    bar = tqdm(disable=True) if bar is None else bar
    eager: AbstractContextManager[None] = nullcontext()
    if "torch._dynamo" in sys.modules:  # a second to import, and without it nothing is compiled
        eager = torch.compiler.set_stance("force_eager")  # compiling again takes longer than a probe while training
    parts: list[list[np.ndarray]] = []
    with (
        Loader(index, plans, inputs, device, loading, words, cache=cache) as loader,
        eager,
        torch.inference_mode(),
        autocast(device),
        bar,
    ):
        for batch in loader:
            parts.append([value.float().cpu().numpy() for value in compute(batch)])
            bar.update(len(batch.plan) // per)
    return [np.concatenate(batches) for batches in zip(*parts, strict=True)]


def over_videos(
    trained: Trained,
    index: Index,
    videos: np.ndarray,
    clips: int,
    device: torch.device,
    compute: Compute,
    modality: str = "video",
    starts: np.ndarray | None = None,
    show: bool = True,
) -> list[np.ndarray]:
    """`over_clips` of `clips` uniform clips per video, centre-cropped, of one modality.

    `starts`: other first frames, int64 [n, clips]; `show`: with a bar.
    """
    at_once = 64 if device.type == "cuda" else 16  # on a CPU, more would only move the bar less often
    plans = uniform_plans(index, videos, clips, trained.inputs, [modality], at_once, starts)
    leave = not sys.stderr.isatty()  # in a file, what follows goes into a line of its own
    desc = f"{modality} features"
    bar = tqdm(total=len(videos), unit="video", desc=desc, mininterval=1.0, leave=leave, disable=not show)
    return over_clips(index, plans, trained.inputs, device, compute, bar, clips)
