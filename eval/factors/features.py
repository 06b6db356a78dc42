"""What networks make of trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.eval.factors.trials import Trial
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.train.models.gdt import GDT, autocast

TRUNK, EMBEDDING = "trunk", "embedding"
PLACES = (TRUNK, EMBEDDING)
"""Where features are taken: after the trunk, pooled, or after the head, at length 1."""

Made = dict[str, list[np.ndarray]]
"""By place and model, float32 [n, s, k, d]."""


def features(
    models: Sequence[GDT], index: Index, trials: Sequence[Trial], clip: Clip, device: torch.device
) -> list[Made]:
    """What each of the models, which are in evaluation mode, makes of each of the trials, which are of one network.

    The clips are loaded once for all models. Raises UserError where a shard is damaged.
    """
    if not trials:
        return []
    network = trials[0].network
    found: dict[str, list[list[np.ndarray]]] = {place: [[] for _ in models] for place in PLACES}
    parts = [[model.get_submodule(name) for name in (f"{network}_network", f"mlp_{network[0]}")] for model in models]
    for part in chain.from_iterable(parts):
        part.to(device)
    plans = chain.from_iterable(trial.plans() for trial in trials)
    total = sum(len(trial.leaves) for trial in trials)
    bar = tqdm(total=total, unit="clip", desc=f"clips of {network}", mininterval=1.0, leave=False)
    with Loader(index, plans, clip, device, Loading()) as loader, torch.inference_mode(), autocast(device), bar:
        for batch in loader:
            for number, (trunk, head) in enumerate(parts):
                pooled: Tensor = trunk(batch.inputs[network])
                for place, values in ((TRUNK, pooled), (EMBEDDING, head(pooled))):
                    found[place][number].append(values.float().cpu().numpy())
            bar.update(len(batch.plan))
    ends = np.cumsum([len(trial.leaves) for trial in trials])[:-1]
    split = {place: [np.split(np.concatenate(rows), ends) for rows in of] for place, of in found.items()}
    return [
        {place: [rows[number].reshape(*trial.shape, -1) for rows in of] for place, of in split.items()}
        for number, trial in enumerate(trials)
    ]
