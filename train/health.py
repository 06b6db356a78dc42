"""Whether a run learns: its loss beside that at chance, the rank of its embeddings, and recall on held-out videos."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

import torch
from torch import Tensor

from gdt.common.intervals import FEWEST_VIDEOS, wilson
from gdt.common.wording import plural

RANK = "effective rank"
RANK_EVERY = 10
"""Steps between measurements of the rank while training."""
_LEFT_CHANCE = 0.05
"""Share of the way from the loss at chance to its lower bound; a run below it has learned nothing."""
_WINDOW = 0.1
"""Share of the steps, the last ones, that are averaged."""
_PUBLISHED = "use published weights: gdt embed --ckpt gdt-k400"
_HOLD_OUT = f"hold out more (gdt preprocess --test 0.3), train on more videos, or {_PUBLISHED}"
_LEARNED = 0.25
"""Share of that way after which training videos count as learned."""
_ENOUGH_STEPS = 50
"""Fewest steps after which low ranks mean that a run has collapsed: those of random weights are low, too."""
_ENOUGH_CLIPS = 8
"""Fewest embeddings whose rank says so."""
_FEWEST = 5
"""Steps at the start that are averaged, and fewest at the end; a run of fewer than twice as many is too short."""


def effective_rank(values: Tensor) -> float:
    """The effective rank of embeddings [n, d] of length 1, from 1 to min(n, d).

    exp of the entropy of the singular values, without centring (Roy & Vetterli 2007, as in RankMe).
    """
    shares = torch.linalg.svdvals(values.double())
    if not shares.any():
        return 1.0  # a network that has died
    shares = shares / shares.sum()
    return float(torch.special.entr(shares).sum().exp())


def measures(embeddings: Mapping[str, Tensor]) -> dict[str, float]:
    """Measures of embeddings of length 1, [n, d] by modality, whose rows are the same n videos.

    Besides the effective rank: alignment, the mean squared distance of positives, and uniformity, the log mean of
    exp(-2 squared distance) over pairs of videos (Wang & Isola 2020).
    """
    values_by_name = {}
    for modality, values in embeddings.items():
        values_by_name[f"{modality} {RANK}"] = effective_rank(values)
        uniformity = torch.pdist(values.double()).square().mul(-2).exp().mean().log()
        values_by_name[f"{modality} uniformity"] = float(uniformity)
    for first, second in combinations(embeddings, 2):
        distances = (embeddings[first] - embeddings[second]).double().square().sum(1)
        values_by_name[f"{first} to {second} alignment"] = float(distances.mean())
    return values_by_name


def has_collapsed(rank: float, n: int, steps: int) -> bool:
    """Whether the effective rank of n embeddings after some steps says that they have collapsed.

    In runs of the tiny size, it is 1.0 to 1.7 when they have, and 5 or more otherwise.
    """
    return n >= _ENOUGH_CLIPS and steps >= _ENOUGH_STEPS and rank < 2


def warning(ranks: Mapping[str, float], videos: int, steps: int) -> str:
    """What to say if the embeddings of a modality have collapsed, given their effective ranks; empty if none has."""
    low = [f"{name} ({RANK} {value:.1f})" for name, value in ranks.items() if has_collapsed(value, videos, steps)]
    if not low:
        return ""
    return (
        f"the embeddings of {' and '.join(low)} have collapsed: they are nearly the same for all {videos} videos, so "
        "neighbours and accuracies mean nothing"
    )


def verdict(rows: Sequence[Mapping[str, float]], probe: Mapping[str, float], clips: int, size: str = "") -> str:
    """One sentence on whether a run has learned, and what to do if it has not.

    `rows` are the lines of METRICS, `probe` is that of PROBES after the last step, empty without, `clips` the clips
    of a modality in a batch, and `size` that of the run.
    """
    paired = [row for row in rows if row["chance"] > 0]
    if len(paired) < len(rows) / 2:
        return (
            f"the run has hardly learned: {len(rows) - len(paired)} of {len(rows)} batches had no positive pair, since "
            "their clips have no words; take larger batches, or videos with more captions"
        )
    if len(paired) < 2 * _FEWEST:
        return f"the run is too short to tell whether it learns: {plural(len(paired), 'step')}; set more --steps"
    first = paired[:_FEWEST]
    last = paired[-max(_FEWEST, math.ceil(len(paired) * _WINDOW)) :]
    loss = fmean(row["loss"] for row in last)
    chance = fmean(row["chance"] for row in last)
    least = fmean(row["least"] for row in last)
    mean = f"the mean loss of the last {len(last)} steps is {loss:.2f}"
    said = f"{mean}, {chance:.2f} at chance"
    ranks = [row["rank"] for row in rows if "rank" in row][-max(1, len(last) // RANK_EVERY) :]
    rank = fmean(ranks) if ranks else math.inf
    held_out = min((value for name, value in probe.items() if name.endswith(RANK)), default=math.inf)
    collapsed = has_collapsed(rank, clips, len(rows))
    if collapsed or (probe and has_collapsed(held_out, int(probe["videos"]), len(rows))):
        return (
            f"the run has collapsed: the effective rank of the embeddings is {min(rank, held_out):.1f}, so all clips "
            f"look alike, and {said}; start again with --overwrite and a third of the --lr, or {_PUBLISHED}"
        )
    larger = "use --size small, which learns from real clips, " if size == "tiny" else ""
    advice = f"{larger}train longer (--epochs or --steps), with more videos or another --lr, or {_PUBLISHED}"
    if chance - loss < _LEFT_CHANCE * (chance - least):
        return f"the run has not left chance: {said}; {advice}"
    # below chance from the start with weights of --init, and in some compositions
    before = fmean(row["loss"] for row in first)
    if before - loss < _LEFT_CHANCE * (before - least):
        return f"the run has not learned: {mean}, as at its start ({chance:.2f} at chance); {advice}"
    learned = f"{said} and {least:.2f} at best"
    has = "has learned" if chance - loss > _LEARNED * (chance - least) else "has begun to learn"
    recalled = probed_recall(probe)
    if recalled is None:
        return f"the run {has} its training videos: {learned}; {_unknown(probe)}"
    k, right, random, above = recalled
    place = "first" if k == 1 else f"among the first {k}"
    shown = f"{right:.0f} % of {int(probe['videos'])} held-out videos find their own {place}"
    if not above:
        return (
            f"the run {has} its training videos ({learned}) but not what carries over: {shown}, at chance "
            f"{random:.0f} %; train on more videos, or {_PUBLISHED}"
        )
    return f"the run has learned: {said}, and {shown} (chance {random:.0f} %)"


def _unknown(probe: Mapping[str, float]) -> str:
    """Why it is not known whether what a run has learned carries over."""
    if not probe:
        return f"there are no held-out videos to tell whether that carries over; {_HOLD_OUT}"
    if any(" R@" in name for name in probe):
        held_out = int(probe["videos"])
        return f"{held_out} held-out videos are too few to tell whether that carries over; {_HOLD_OUT}"
    return "whether that carries over, labels will tell (gdt evaluate)"


def probed_recall(probe: Mapping[str, float]) -> tuple[int, float, float, bool] | None:
    """k, recall at k in percent over all pairs of modalities, that of chance, and whether it is significantly above.

    k is the largest for which chance is at most 10 %. None without pairs, or with too few videos to tell.
    """
    by_k: dict[int, list[float]] = {}
    for name, value in probe.items():
        _, separator, number = name.partition(" R@")
        if separator:
            by_k.setdefault(int(number), []).append(value / 100)
    n = probe.get("videos", 0)
    if not by_k or n < FEWEST_VIDEOS:
        return None
    k = max((k for k in by_k if k <= n / 10), default=min(by_k))
    right = fmean(by_k[k])
    random = min(1.0, k / n)
    # Wilson's lower bound; the directions share their videos, so they count once
    return k, 100 * right, 100 * random, wilson(right, n)[0] > random
