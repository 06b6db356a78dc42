"""Networks of the user's own in an ablation, all rows of which must have the same ones.

As in a checkpoint, a network is recognised by what it computes, not by its name or text.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from gdt.train.models.foreign import Outputs, build, outputs_of, same_outputs
from gdt.train.models.given import makers
from gdt.train.models.inspection import check_network
from gdt.train.settings import Pretrain

Untrained = Mapping[str, Outputs | None]
"""What networks compute before training, by modality; None for the paper's."""


def untrained(settings: Pretrain, modalities: Sequence[str]) -> Untrained:
    """The networks of a run, made anew from their files; their random weights are the same in every call."""
    networks: dict[str, Outputs | None] = dict.fromkeys(modalities)
    for modality, (maker,) in makers(settings.own_networks.given).items():
        make = partial(build, maker, check_network(modality, maker, settings.clip))
        with torch.random.fork_rng(()):
            torch.manual_seed(0)
            networks[modality] = outputs_of(make(), modality, settings.clip).tolist()
    return networks


def changed(before: Untrained, now: Untrained) -> list[str]:
    """The modalities of both whose networks compute something else."""
    return sorted(name for name in before.keys() & now.keys() if not _same(before[name], now[name]))


def _same(before: Outputs | None, now: Outputs | None) -> bool:
    if before is None or now is None:
        return before is now
    return same_outputs(torch.tensor(now), before)
