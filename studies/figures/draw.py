"""`gdt study figures`: chooses videos, measures the features of their clips, and writes pictures and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory
from gdt.common.streams import Stream, generator
from gdt.eval import record
from gdt.eval.deviation import DEVIATION, MORE, NEAREST, RATIO, RELATIVE
from gdt.eval.drawing import save
from gdt.eval.extract import outputs
from gdt.eval.metrics import Metric, median
from gdt.eval.planes import Planes, planes
from gdt.eval.record import RANDOM, Record
from gdt.eval.retrieval import unit
from gdt.eval.subjects import Data, Model, checkpoints, held_out
from gdt.eval.tables import write_tables
from gdt.pipeline.clips import uniform_plans
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import centred
from gdt.studies.figures import pictures
from gdt.studies.figures.settings import Figures
from gdt.studies.figures.spread import Distances, deviations, distances, nearest_share, ratio
from gdt.train.checkpoint import load_trained
from gdt.train.models.gdt import any_device, modalities_of
from gdt.train.provenance import provenance_of

NAME = "figures.json"
_MIN_VIDEOS = 3


@dataclass(frozen=True)
class Chosen:
    """Rows of the index, int64, ascending; all have as many different starts as there are clips."""

    spread: np.ndarray
    """Videos of the histogram [n]."""
    shown: np.ndarray
    """Videos on the maps [m]."""
    of_class: str
    """Class of all videos in `shown`; empty if they are drawn from all videos."""
    too_short: int
    """Skipped videos of the split."""
    apart: float
    """Seconds from the start of a clip to that of the next, median over `spread`."""

    @property
    def videos(self) -> np.ndarray:
        return np.union1d(self.spread, self.shown)

    def describe_shown(self, index: Index) -> str:
        if self.of_class:
            return f"{len(self.shown)} videos of the class '{self.of_class}'"
        labelled = bool((index.label[self.videos] != "").any())
        why = "no class has two of the videos" if labelled else "the videos have no labels"
        return f"{len(self.shown)} videos drawn from all, as {why}"


def choose_videos(index: Index, split: str, clips: Sequence[Clip], settings: Figures) -> Chosen:
    """Random videos of a held-out split that are long enough for the clips of every model.

    Raises UserError where there are too few.
    """
    every = held_out(index, split).queries
    starts = np.min([index.start_counts(clip.frames, clip.stride) for clip in clips], axis=0)
    long_enough = every[starts[every] >= settings.clips]
    if len(long_enough) < _MIN_VIDEOS:
        raise UserError(
            f"only {len(long_enough)} of the {len(every)} videos of the split '{split}' are long enough for "
            f"{settings.clips} clips, and {_MIN_VIDEOS} are needed; lower --clips, or set --split to another"
        )
    order = generator(Stream.FIGURES, settings.seed).permutation(long_enough)
    spread = np.sort(order[: settings.videos])
    of_class = _choose_class(index, order, split, settings)
    shown = np.sort((order[index.label[order] == of_class] if of_class else order)[: settings.shown])
    gap = float(np.median(starts[spread] - 1)) / (settings.clips - 1) / index.fps
    return Chosen(spread, shown, of_class, len(every) - len(long_enough), gap)


def _choose_class(index: Index, videos: np.ndarray, split: str, settings: Figures) -> str:
    """--of-class, or the class with the most of the videos; "" where none has two."""
    counts = Counter(sorted(label for label in map(str, index.label[videos]) if label))
    if not settings.of_class:
        name, most = counts.most_common(1)[0] if counts else ("", 0)
        return name if most > 1 else ""
    if (n := counts[settings.of_class]) < 2:
        available = ", ".join(name for name, count in counts.items() if count > 1) or "none"
        raise UserError(
            f"class '{settings.of_class}' has {n} of the {len(videos)} videos of the split '{split}', fewer than 2; "
            f"set --of-class to one of: {available}"
        )
    return settings.of_class


class Measured(NamedTuple):
    """Numbers of a model's features; see `spread`."""

    deviation: np.ndarray
    distances: Distances
    nearest: Metric
    planes: Planes
    dim: int


def figures(settings: Figures) -> str:
    """Write pictures, table and numbers; return the table.

    Raises UserError where a checkpoint, the shards or their held-out videos are missing or do not fit.
    """
    with explain_out_of_memory("lower --videos"):
        records, on_planes = measure(settings)
    out = settings.out or Path("runs") / f"figures-{records[0].dataset}"
    text = pictures.report(records)
    write_tables(out, text)
    record.write(out / NAME, records)
    save(pictures.deviation(records), out / "deviation.png")
    save(pictures.clips(records, on_planes), out / "clips.png")
    return f"\n{text}\n\ndeviation.png, clips.png, table.txt and {NAME} are in {out}/"


def measure(settings: Figures) -> tuple[list[Record], list[Planes]]:
    """A record of each model, and its clips on 2-D maps."""
    first = load_trained(settings.ckpt[0])
    data = Data.open(settings.ckpt[0], first, settings.dataset, settings.shards, settings.split, settings.label)
    index = data.index
    models = [Model(RANDOM, settings.ckpt[0], first.untrained(), True)] if settings.random else []
    for model in checkpoints(first, settings.ckpt):
        print(f"{model.path}: {model.trained.name}", flush=True)
        _require_video_network(model, settings)
        models.append(model)
    clips = [model.trained.settings.clip for model in models]
    videos = choose_videos(index, data.split, clips, settings)
    details = _describe(settings, index, videos, clips)
    device = any_device()
    provenance = provenance_of(device)
    measured = _measure_models(models, index, videos, settings, device)
    records = []
    for model, each in zip(models, measured, strict=True):
        metrics = {
            DEVIATION: median(each.deviation),
            RATIO: ratio(each.distances),
            NEAREST: each.nearest,
        }
        same_network = model.trained.model.network == models[0].trained.model.network
        if models[0].random and model is not models[0] and same_network:
            metrics[MORE] = ratio(each.distances, measured[0].distances)
        per_video = {
            DEVIATION: tuple(each.deviation.tolist()),
            RELATIVE: tuple(each.distances.relative.tolist()),
        }
        records.append(
            model.record(
                data, settings, videos.spread, protocol="figures", label=settings.label,
                clips=settings.clips, metrics=metrics, details={pictures.NUMBERS: str(each.dim)} | details,
                provenance=provenance, videos=tuple(map(str, index.id[videos.spread])), per_video=per_video,
            )
        )  # fmt: skip
    return records, [each.planes for each in measured]


def _describe(settings: Figures, index: Index, videos: Chosen, clips: Sequence[Clip]) -> dict[str, str]:
    """Notes for the table."""
    lasts = max((clip.frames - 1) * clip.stride + 1 for clip in clips) / index.fps
    overlap = ", so neighbours overlap" if videos.apart < lasts else ""
    skipped = {pictures.SKIPPED: str(videos.too_short)} if videos.too_short else {}
    return {
        pictures.KIND: "trunk features" if settings.kind == "features" else "embeddings",
        pictures.ON_PLANES: videos.describe_shown(index),
        "shown": ", ".join(map(str, index.id[videos.shown])),
        pictures.IN_TIME: f"last {lasts:.2g} s and start {videos.apart:.2g} s apart (median over videos){overlap}",
    } | skipped


def _require_video_network(model: Model, settings: Figures) -> None:
    if "video" not in modalities_of(model.trained.model.state_dict()):
        raise UserError(f"{model.path} was trained without video, so it has no features of it; name another --ckpt")
    if settings.kind == "embeddings" and "video" in model.trained.without_head:
        raise UserError(f"{model.path} has no head, so it has no embeddings; set --kind features")


def _measure_models(
    models: Sequence[Model], index: Index, videos: Chosen, settings: Figures, device: torch.device
) -> list[Measured]:
    """Measure every model; models with the same inputs share one pass over the clips."""
    measured: dict[int, Measured] = {}
    spread, shown = (np.searchsorted(videos.videos, rows) for rows in (videos.spread, videos.shown))
    groups: dict[str, list[int]] = {}
    for k, model in enumerate(models):
        statistics, trained = model.trained.statistics.to_numbers(), model.trained.settings
        groups.setdefault(str((statistics, asdict(trained.clip), trained.augmentation.scale[0])), []).append(k)
    for group in groups.values():
        values = _outputs([models[k] for k in group], index, videos.videos, settings, device)
        for k, value in zip(group, values, strict=True):
            measured[k] = _measure(models[k], value, spread, shown, settings)
    return [measured[k] for k in range(len(models))]


def _outputs(
    models: Sequence[Model], index: Index, videos: np.ndarray, settings: Figures, device: torch.device
) -> list[np.ndarray]:
    """Features of uniform centre-cropped clips of some rows of the index, int64 [n]: float32 [n, clips, d] per model.

    The models take the same inputs.
    """
    trained, clips = models[0].trained, settings.clips
    clip, crop = trained.settings.clip, centred(trained.settings.augmentation.scale[0])
    names = ["video_network", *(["mlp_v"] if settings.kind == "embeddings" else [])]
    networks = [
        torch.nn.Sequential(*(model.trained.model.get_submodule(name) for name in names)).to(device) for model in models
    ]

    def forward(batch: Batch) -> list[Tensor]:
        return [network(batch.inputs["video"]).unflatten(0, (-1, clips)) for network in networks]

    bar = tqdm(total=len(videos), unit="video", desc="features", mininterval=1.0, leave=False)
    plans = uniform_plans(index, videos, clips, clip, crop)
    return outputs(trained.normalise(index), plans, clip, device, forward, bar, clips)


def _measure(model: Model, values: np.ndarray, spread: np.ndarray, shown: np.ndarray, settings: Figures) -> Measured:
    """Measure features [n, s, d]; `spread` and `shown` are the rows of the histogram and of the maps."""
    n, s, d = values.shape
    try:
        features = unit(values.reshape(-1, d)).reshape(n, s, d)
        own, few = features[spread], features[shown]
        on_planes = planes(few.reshape(-1, d), settings.perplexity, settings.seed)
        return Measured(deviations(own), distances(own), nearest_share(few), on_planes, d)
    except UserError as error:
        raise UserError(f"{model.name}, {model.path}: {error}") from error
