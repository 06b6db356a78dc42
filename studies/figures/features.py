"""What video networks make of single clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.eval.embed import Kind
from gdt.pipeline.clips import parts, uniform_plans
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import centred
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import autocast


def groups(models: Sequence[Trained]) -> list[list[int]]:
    """Places of the models that take the same inputs, so that clips are loaded once for all of these."""
    found: dict[str, list[int]] = {}
    for place, trained in enumerate(models):
        statistics, settings = trained.statistics, trained.settings
        inputs = (statistics and statistics.to_numbers(), asdict(settings.clip), settings.augmentation.scale[0])
        found.setdefault(str(inputs), []).append(place)
    return list(found.values())


def of_clips(
    models: Sequence[Trained], index: Index, videos: np.ndarray, clips: int, kind: Kind, device: torch.device
) -> list[np.ndarray]:
    """What each of the models makes of uniform centre-cropped clips of some rows of the index, int64 [n].

    Float32 [n, clips, d] for each. The models have video networks and take the same inputs (`groups`). Raises UserError
    where a shard is damaged.
    """
    first = models[0]
    clip, crop = first.settings.clip, centred(first.settings.augmentation.scale[0])
    plans = uniform_plans(index, videos, clips, clip, crop)
    made: list[list[np.ndarray]] = [[] for _ in models]
    networks = [
        torch.nn.Sequential(trained.model.video_network, *([trained.model.mlp_v] if kind == "embeddings" else []))
        for trained in models
    ]
    for network in networks:
        network.to(device)
    bar = tqdm(total=len(videos), unit="video", desc="features", mininterval=1.0, leave=False)
    with (
        Loader(first.normalised(index), plans, clip, device, Loading()) as loader,
        torch.inference_mode(),
        autocast(device),
        bar,
    ):
        for part, batch in zip(parts(videos, clips), loader, strict=True):
            for network, into in zip(networks, made, strict=True):
                out: Tensor = network(batch.inputs["video"])
                into.append(out.float().unflatten(0, (-1, clips)).cpu().numpy())
            bar.update(len(part))
    return [np.concatenate(values) for values in made]
