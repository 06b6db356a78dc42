"""The log of a run: its progress bar, metrics.jsonl and the verdict at its end; curves.py has its curves elsewhere."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from tqdm import tqdm

from gdt.common.files import write_text
from gdt.common.serialization import to_json
from gdt.common.wording import plural
from gdt.pipeline.composition import Contrast
from gdt.pipeline.shards.cache import Cache
from gdt.pipeline.transformations.modality import Modality
from gdt.train.curves import Curves
from gdt.train.experiment import Experiment
from gdt.train.flops import peak_flops
from gdt.train.health import RANK, probed_recall, verdict, warning
from gdt.train.run import METRICS, PROBES, SETTINGS_FILE, VERDICT, keep_until, logged
from gdt.train.step import Metrics


class _Bar(tqdm):
    """Goes on when nobody reads it any more: the signal that stops a run may have ended tee."""

    def display(self, *arguments: Any, **named: Any) -> None:
        with suppress(OSError):
            super().display(*arguments, **named)


class Log:
    """Log of one run, on rank 0; a context manager."""

    def __init__(self, experiment: Experiment, first: int, world: int, flops: float) -> None:
        """`first`: first step; `flops`: of a step over all ranks."""
        settings = experiment.settings
        schedule = experiment.schedule
        composition = experiment.composition
        folder = settings.run_folder
        folder.mkdir(parents=True, exist_ok=True)
        self._curves = Curves(settings, first)  # which may refuse, before anything is replaced
        write_text(folder / SETTINGS_FILE, to_json(settings, indent=2) + "\n")
        (folder / VERDICT).unlink(missing_ok=True)
        keep_until(folder / METRICS, first - 1)
        self._file = (folder / METRICS).open("a", buffering=1)
        self._probes = folder / PROBES
        if self._probes.is_file():
            keep_until(self._probes, first or -1)
        self._device = torch.device(settings.device)
        self._rates = list[float]()
        self._probed = ""
        self._shown = ("", "")
        self._embedding_rank = ""
        self._fetched = 0
        form = "step {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        seconds = 0.5 if sys.stderr.isatty() else 30.0
        self._bar = _Bar(total=schedule.steps, initial=first, bar_format=form, mininterval=seconds)
        self._schedule = schedule
        self._modalities_differ = any(
            factor.name == Modality.name and factor.contrast is Contrast.DISTINCTIVE for factor in composition.factors
        )
        self._size = settings.size
        self._clips = composition.batch_size * composition.clips_per_video
        peak = peak_flops(self._device)
        self._seconds_at_peak = flops / world / peak if peak else 0.0
        self._warned = False

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._bar.close()
        self._file.close()
        self._curves.close()

    def add_step(self, step: int, metrics: Metrics, seconds: float, waiting: float, cache: Cache | None = None) -> None:
        """Log a step that took `seconds`, of which `waiting` for its batch; shards may come through a cache."""
        rate = self._clips / seconds
        share = waiting / seconds
        row = {name: value for name, value in metrics._asdict().items() if value is not None}
        row |= {"lr": self._schedule.lr(step), "clips_per_second": rate, "data_wait": share}
        row["memory_gib"] = peak_memory(self._device)
        shown = f"{rate:.0f} clips/s, data wait {100 * share:.0f} %"
        if self._seconds_at_peak:
            row["mfu"] = self._seconds_at_peak / seconds
            shown += f", MFU {100 * row['mfu']:.0f} %"
        if cache:
            speed = (cache.bytes - self._fetched) / seconds / 1e6
            self._fetched = cache.bytes
            row["fetched_mb_per_second"] = speed
            row["cache_hits"] = max(0.0, 1 - cache.fetched / max(cache.used, 1))
            shown += f", {speed:.0f} MB/s fetched, cache hits {100 * row['cache_hits']:.0f} %"
        self._write(self._file, {"step": step} | row)
        self._curves.add(row, step)
        self._rates.append(rate)
        if metrics.rank is not None:
            self._embedding_rank = f", rank {metrics.rank:.1f}"
        loss = f"loss {metrics.loss:.3f} of {metrics.chance:.2f} at chance"
        self._shown = f"{loss}{self._embedding_rank}, top-1 {100 * metrics.top1:.0f} %", shown
        self._show(refresh=False)
        self._bar.update()

    def _show(self, refresh: bool) -> None:
        learning, speed = self._shown
        self._bar.set_postfix_str(f"{learning}{self._probed}, {speed}", refresh)

    def _write(self, file: TextIO, row: Mapping[str, float]) -> None:
        """Write a line of METRICS or PROBES. Raises OSError with its name."""
        try:
            file.write(json.dumps(row) + "\n")
        except OSError as error:
            error.filename = file.name
            raise

    def summary(self) -> str:
        """Median clips/s and peak memory of a finished run, and whether it has learned, which VERDICT keeps."""
        of = "tensors" if self._device.type == "cuda" else "the process"
        metrics = Path(self._file.name)
        learned = verdict(logged(metrics), self._last_probe(), self._clips, self._size)
        write_text(metrics.with_name(VERDICT), learned + "\n")
        return (
            f"{plural(self._bar.n, 'step')}: median {np.median(self._rates):.0f} clips/s, peak memory of {of} "
            f"{peak_memory(self._device):.1f} GiB\n{learned}"
        )

    def _last_probe(self) -> dict[str, float]:
        """The probe after the last step, without recall if the modalities of a video are negatives; empty without."""
        probes = logged(self._probes)
        if not probes or probes[-1]["step"] != self._schedule.steps:
            return {}
        return {name: value for name, value in probes[-1].items() if not (self._modalities_differ and " R@" in name)}

    def add_probe(self, done: int, metrics: dict[str, float]) -> None:
        """Log a probe after `done` steps; the first time that embeddings have collapsed, print a warning."""
        with self._probes.open("a", buffering=1) as file:
            self._write(file, {"step": done} | metrics)
        # at the previous step, or `purge_step` would remove it if the run resumes here
        self._curves.add({f"probe/{name}": value for name, value in metrics.items()}, max(done - 1, 0))
        ranks = {name.removesuffix(f" {RANK}"): value for name, value in metrics.items() if name.endswith(RANK)}
        self._probed = f", held-out rank {min(ranks.values()):.1f}"
        recalled = probed_recall(metrics)
        if recalled:
            k, right, random, _ = recalled
            self._probed = f", held-out R@{k} {right:.0f} % (chance {random:.0f} %)"
        if done:
            self._show(refresh=True)
        said = warning(ranks, int(metrics["videos"]), done)
        if said and not self._warned:
            self._warned = True
            self._bar.write(f"warning: at step {done}, {said}; start again with a lower --lr", sys.stderr)


def peak_memory(device: torch.device) -> float:
    """Peak memory so far, GiB: of a GPU's tensors, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
