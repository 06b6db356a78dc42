"""Retrieval, few-shot and cross-modal recall over many stored features: seconds and memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import tyro

from benchmarks.timing import Clock, in_turns, machine, peak
from gdt.common.errors import exit_with_message
from gdt.eval.retrieval import few_shot, recall
from gdt.train.crossmodal import hits

Features = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Queries, their classes, the gallery, its classes."""
EVALUATIONS: dict[str, Callable[[Features], object]] = {
    "1-NN": lambda features: recall(*features, (1,)),
    "R@1, R@5, R@20": lambda features: recall(*features, (1, 5, 20)),
    "20 draws of 5 shots": lambda features: few_shot(*features, 5, 20),
    "cross-modal recall among the queries": lambda features: hits(
        {"video": torch.from_numpy(features[2][: len(features[0])]), "audio": torch.from_numpy(features[0])}
    ),
}


def measure(name: str, gallery: int, queries: int, dimensions: int, classes: int) -> dict[str, float]:
    """Seconds of an evaluation, and its memory on top of the features."""
    rng = np.random.default_rng(0)
    stored, wanted = (rng.standard_normal((count, dimensions), np.float32) for count in (gallery, queries))
    labels, wanted_labels = (np.arange(len(part)) % classes for part in (stored, wanted))
    before, clock = peak(), Clock()
    EVALUATIONS[name]((wanted, wanted_labels, stored, labels))
    return {name: clock.lap(), f"{name}: memory on top of the features": peak() - before}


def main(
    gallery: int = 100_000, queries: int = 10_000, dimensions: int = 512, classes: int = 400, rounds: int = 1
) -> None:
    """Measure evaluation with stored features.

    Args:
        gallery: Videos in the gallery.
        queries: Queries.
        dimensions: Numbers in a feature.
        classes: Classes of the videos.
        rounds: Rounds of all measurements.

    """
    print(machine())
    print(f"{queries} queries, {gallery} videos, {dimensions} dimensions", flush=True)
    measures = [partial(measure, name, gallery, queries, dimensions, classes) for name in EVALUATIONS]
    measured = in_turns(rounds, *measures)
    for name in measured:
        measured.show(name, "MiB" if "memory" in name else "s")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.features"))
