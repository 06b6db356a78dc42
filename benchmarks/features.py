"""Retrieval, few-shot and recall across modalities over many stored features: seconds, and the most memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import tyro

from benchmarks.timing import Clock, in_turns, machine, peak
from gdt.common.errors import exit_with_message
from gdt.eval.retrieval import few_shot, recall
from gdt.train.crossmodal import hits


@dataclass(frozen=True)
class Benchmark:
    """Measure evaluations whose features are there."""

    gallery: int = 100_000
    """Videos that are searched."""
    queries: int = 10_000
    """Videos that are asked with."""
    dimensions: int = 512
    """Of a feature."""
    classes: int = 400
    """Among which both are spread evenly."""
    rounds: int = 1
    """Of all measurements."""


Features = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Queries, their classes, the gallery, its classes."""
EVALUATIONS: dict[str, Callable[[Features], object]] = {
    "1-NN": lambda features: recall(*features, (1,)),
    "R@1, R@5, R@20": lambda features: recall(*features, (1, 5, 20)),
    "20 draws of 5 shots": lambda features: few_shot(*features, 5, 20),
    "recall across modalities, among the queries": lambda features: hits(
        {"video": torch.from_numpy(features[2][: len(features[0])]), "audio": torch.from_numpy(features[0])}
    ),
}


def measure(settings: Benchmark, name: str) -> dict[str, float]:
    """Seconds, and the memory that it takes beside the features."""
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((settings.gallery, settings.dimensions), np.float32)
    query = rng.standard_normal((settings.queries, settings.dimensions), np.float32)
    known, asked = (np.arange(len(part)) % settings.classes for part in (gallery, query))
    before, clock = peak(), Clock()
    EVALUATIONS[name]((query, asked, gallery, known))
    return {name: clock.lap(), f"{name}: memory beside the features": peak() - before}


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.features")
    print(machine())
    print(f"{settings.queries} queries, {settings.gallery} videos, {settings.dimensions} dimensions", flush=True)
    figures = in_turns(settings.rounds, *(partial(measure, settings, name) for name in EVALUATIONS))
    for name in figures:
        figures.show(name, "MiB" if "memory" in name else "s")


if __name__ == "__main__":
    exit_with_message(main)
