"""What the benchmarks share: measurements printed as they are taken, drawn shards, and settings of a run."""

import io
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from gdt.common.folders import Folder
from gdt.pipeline.groups import take_rank
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import BANDS, INDEX
from gdt.pipeline.shards.statistics import mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.pipeline.sources.loading import Loading
from gdt.train.experiment import compose, resolve
from gdt.train.learner import Learner
from gdt.train.provenance import device_name
from gdt.train.settings import SIZES, Optimization, RunSettings

DeviceName = Literal["cpu", "cuda"]
PER_SHARD = 16
_FRAMES, _SIDE, _WIDTH = 48, 160, 214
_QUALITY = 77
"""JPEGs of this size have about 7 kB, as those of Kinetics."""
_SUMS = {"pixels": np.array([[2, 256, 40_960]] * 3), "mels": mel_sums(np.array([-4.0, 4.0]))}
"""Mean 128 and standard deviation 64 of pixels, 0 and 4 of log-mel values."""


class Measurements(dict[str, list[float]]):
    """A value per round, by name."""

    def add(self, name: str, value: float, unit: str) -> None:
        """Record and print a value."""
        self.setdefault(name, []).append(value)
        print(f"  {name}: {value:.3g} {unit}", flush=True)

    def show(self, name: str, unit: str, *others: str) -> None:
        """Print `name: value unit (low–high), ratio (low–high) of other`: medians, ratios taken within a round."""
        parts = [_spread(self[name], f" {unit}")]
        for other in others:
            ratios = [a / b for a, b in zip(self[name], self[other], strict=True)]
            parts.append(f"{_spread(ratios)} of {other}")
        print(f"{name}: {', '.join(parts)}", flush=True)


def _spread(values: Sequence[float], unit: str = "") -> str:
    return f"{statistics.median(values):.3g}{unit} ({min(values):.3g}–{max(values):.3g})"


def machine() -> str:
    """CPU model, and number of cores of this process."""
    return f"{device_name(torch.device('cpu'))}, {len(os.sched_getaffinity(0))} cores"


def run_settings(size: str, row: str, clips: int, device: DeviceName, group: int = 0) -> RunSettings:
    """Settings of pretraining a row of table 1 with this many video clips per step, without dropout.

    `group`: videos of a group, one leaf each; 0 for all leaves of a modality in one pass.
    """
    base = SIZES[size]
    run = replace(
        base, preset=row, epochs=0, steps=1000, group_size=group,
        network=replace(base.network, dropout=0.0), precision="bfloat16" if device == "cuda" else "float32",
        compile="on" if device == "cuda" else "off",
        optimization=Optimization("sgd", lr=0.01, base_batch_size=0, warmup_epochs=0), device=device,
    )  # fmt: skip
    return RunSettings.of(run, batch_size=clips // compose(run).clips_per_video)


def prepare(index: Index, run: RunSettings) -> tuple[Learner, Batch]:
    """A learner and the first batch of its run, on the device."""
    device = torch.device(run.device)
    experiment = resolve(run, index, device)
    plan = take_rank(experiment.tree.plan(0, 0), 0, 1, run.group_size)
    with Loader(index, [plan], experiment.inputs, device, Loading(decoder="cpu")) as loader:
        batch = next(iter(loader))
    return Learner(experiment, device), batch


def draw(folder: Path, videos: int) -> Index:
    """Write shards of `videos` different videos at 30 fps, without ffmpeg; frames have about the size of real ones."""
    folder.mkdir(parents=True)
    parts = [range(first, min(first + PER_SHARD, videos)) for first in range(0, videos, PER_SHARD)]
    paths = [folder / f"shard-{number:06d}.h5" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        _draw_shard(path, part)
    settings = json.dumps({"fps": 30, "bands": BANDS})
    names = [path.name for path in paths]
    tables = gather_tables(Folder(folder), names)
    write_index(folder / INDEX, tables, settings, {"split": ["train"] * len(tables.ids)})
    return Index.open(folder)


def _draw_shard(path: Path, videos: range) -> None:
    scratch = path.with_suffix(".scratch")
    scratch.mkdir()
    records = []
    for video in videos:
        rng = np.random.default_rng(video)
        jpegs = list(map(_encode, _draw_frames(rng)))
        bank = rng.normal(0, 4, (_FRAMES * 100 // 30 + 1, BANDS)).astype(np.float32)
        files = scratch / f"{video}.jpeg", scratch / f"{video}.rows"
        files[0].write_bytes(b"".join(jpegs))
        bank.tofile(files[1])
        columns = {"id": f"v{video:06}", "height": _SIDE, "width": _WIDTH}
        records.append(VideoRecord(columns, files[0], np.array(list(map(len, jpegs))), files[1]))
    write_shard(path, records, _SUMS, scratch)


def _draw_frames(rng: np.random.Generator) -> list[np.ndarray]:
    """A camera pan over noise at several scales: uint8 [height, width, 3] each."""
    whole = (_WIDTH + 2 * _FRAMES, _SIDE + _FRAMES)
    landscape = np.full((whole[1], whole[0], 3), 128, np.float32)
    for cells in (3, 9, 27, 81):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells * 2, 3), np.uint8))
        landscape += (np.asarray(coarse.resize(whole, Image.Resampling.BICUBIC), np.float32) - 128) * cells**-0.5
    shown = landscape.clip(0, 255).astype(np.uint8)
    return [shown[t : t + _SIDE, 2 * t : 2 * t + _WIDTH] for t in range(_FRAMES)]


def _encode(frame: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=_QUALITY, subsampling="4:2:0")
    return file.getvalue()
