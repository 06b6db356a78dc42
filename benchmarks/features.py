"""Retrieval, few-shot and recall across modalities over many stored features: seconds, and the most memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import tyro

from benchmarks.common import machine, print_apart
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


def measure(settings: Benchmark, name: str) -> str:
    """One line of the table, measured in this process."""
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((settings.gallery, settings.dimensions), np.float32)
    query = rng.standard_normal((settings.queries, settings.dimensions), np.float32)
    known, asked = (np.arange(len(part)) % settings.classes for part in (gallery, query))
    pairs = {"video": torch.from_numpy(gallery[: settings.queries]), "audio": torch.from_numpy(query)}
    what: dict[str, Callable[[], object]] = {
        "1-NN": lambda: recall(query, asked, gallery, known, (1,)),
        "R@1, R@5, R@20": lambda: recall(query, asked, gallery, known, (1, 5, 20)),
        "20 draws of 5 shots": lambda: few_shot(query, asked, gallery, known, 5, 20),
        "recall across modalities, among the queries": lambda: hits(pairs),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    what[name]()
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{name}: {taken:.1f} s; {(peak - before) / 1024:.0f} MiB beside the {before / 1024:.0f} MiB of features"


def main() -> None:
    settings = tyro.cli(Benchmark, prog="python -m benchmarks.features")
    print(machine())
    print(f"{settings.queries} queries, {settings.gallery} videos, {settings.dimensions} dimensions", flush=True)
    for name in ("1-NN", "R@1, R@5, R@20", "20 draws of 5 shots", "recall across modalities, among the queries"):
        print_apart(partial(measure, settings, name))


if __name__ == "__main__":
    exit_with_message(main)
