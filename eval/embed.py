"""`gdt embed`: features of videos, from files, folders or shards."""

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from torch import Tensor

from gdt.common.commandline import gdt_command
from gdt.common.errors import Unusable, UserError
from gdt.common.files import TEMPORARY, require_new_file, require_space
from gdt.eval import parquet
from gdt.eval.features import VERSION, Features, sameness, write
from gdt.eval.settings import Embed, FeatureModality, Kind, Rows
from gdt.pipeline.clips import uniform_starts, usable
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.naming import shard_folder
from gdt.train.checkpoint import load_trained
from gdt.train.inference import over_videos
from gdt.train.models.gdt import any_device
from gdt.train.models.given import makers
from gdt.train.run import latest_checkpoint, verdict_of
from gdt.train.trained import Trained


def embed(settings: Embed) -> str:
    """Write the file; returns a summary of its contents and of the skipped videos.

    Raises UserError if the checkpoint, the videos or the file cannot be used.
    """
    require_new_file(settings.out, settings.overwrite)
    if settings.out.suffix == ".parquet":
        parquet.require_pyarrow(settings.out)
    embedded = features(settings, out=settings.out)
    write(settings.out, embedded)
    sizes = ", ".join(f"{name} [{len(values)}, {values.shape[1]}]" for name, values in embedded.features.items())
    lines = [
        f"{settings.out}: {settings.kind} of {embedded.count}: {sizes}; from {settings.clips} clips per "
        f"video, each of {embedded.metadata['clip']}"
    ]
    for name, values in embedded.features.items():
        lacking = int(np.isnan(values[:, 0]).sum())
        if lacking:
            lines.append(f"'{name}' is NaN for {lacking} of {embedded.count}: missing or shorter than a clip")
    lines += [f"skipped {file.path}: {file.reason}" for file in embedded.skipped]
    warning = sameness(embedded.features)
    if warning:
        lines.append(f"warning: {warning}")
    lines += verdict_of(embedded.metadata["checkpoint"])
    elsewhere = ["--features", settings.out] if settings.out != Embed.out else []
    lines.append(f"next: {gdt_command('nearest', *elsewhere, '--query', embedded.id[0])}")
    return "\n".join(lines)


def features(settings: Embed, trained: Trained | None = None, out: Path | None = None) -> Features:
    """Compute features; `trained` is the checkpoint, if it is already loaded, `out` the file for which there is room.

    Raises UserError if the checkpoint or the videos cannot be used, or there is no room.
    """
    checkpoint = settings.ckpt or str(latest_checkpoint())
    trained = trained or load_trained(checkpoint, makers(settings.own_networks.given))
    modalities = _modalities(settings, trained, checkpoint)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as scratch:
        if settings.source:
            from gdt.preprocess import named

            found = named.find(settings.source)
            if modalities == ["video"] and named.only_sounds(found):
                has = "audio" in trained.model.modalities
                instead = "set --modalities to audio" if has else "use a checkpoint with a network for audio"
                raise UserError(f"no video has pictures: all files are sounds; {instead}")
            count = sum(len(paths) for _, paths in found)
            _require_space(out, settings, trained, modalities, count)
            index, skipped = named.decode_named(found, Path(scratch), settings.workers, trained.inputs.fps or 30)
        else:
            index = Index.open(shard_folder(settings.dataset, settings.shards), settings.cache)
            skipped = ()
            _require_space(out, settings, trained, modalities, len(index))
        embedded = features_of(trained, index, modalities, settings.clips, settings.kind, settings.rows)
    if not embedded.features:
        missing = f"no video has {' or '.join(modalities)}, with sound as long as a clip"
        raise Unusable(f"{missing}; use other videos, or set --modalities", skipped)
    embedded.metadata["checkpoint"] = str(checkpoint)
    return replace(embedded, skipped=skipped)


def _require_space(out: Path | None, settings: Embed, trained: Trained, modalities: Sequence[str], videos: int) -> None:
    """Raise UserError unless there is room for the features of all videos."""
    if out is None:
        return
    model = trained.model
    of_trunk = settings.kind == "features"
    width = sum(model.backbone(name).dim if of_trunk else model.network.embedding for name in modalities)
    rows = videos * (settings.clips if settings.rows == "clip" else 1)
    require_space(out, 4 * rows * width)


def _modalities(settings: Embed, trained: Trained, checkpoint: str) -> list[str]:
    available = [name for name in trained.model.modalities if name in get_args(FeatureModality)]
    for name in settings.modalities:
        if name not in available:
            raise UserError(f"{checkpoint} has no network for {name}; available: {', '.join(available)}")
    modalities = [name for name in MODALITIES if name in (settings.modalities or available)]
    if settings.kind == "embeddings" and not set(modalities).isdisjoint(trained.without_head):
        raise UserError(f"{checkpoint} has only a trunk, and embeddings need a head; set --kind features")
    return modalities


def features_of(
    trained: Trained, index: Index, modalities: Sequence[str], clips: int, kind: Kind, rows: Rows = "video"
) -> Features:
    """Features of all videos of an index, in its order, by the modalities that some have, which do not depend on each
    other; NaN where one is missing, or sound shorter than a clip.
    """
    device = any_device()
    clip = trained.settings.clip
    model = deepcopy(trained.model).to(device).eval()  # it may be training
    per_video = clips if rows == "clip" else 1  # rows

    def forward(batch: Batch) -> list[Tensor]:
        """Means over the clips of a row, [rows, d]."""
        ((name, inputs),) = batch.inputs.items()
        out = model.embed(name, inputs) if kind == "embeddings" else model.trunk(name)(inputs)
        return [out.float().unflatten(0, (-1, clips // per_video)).mean(1)]

    by_modality: dict[str, np.ndarray] = {}
    start: dict[str, np.ndarray] = {}
    for name in modalities:
        videos = np.flatnonzero(usable(index, clip, [name]))
        if not len(videos):
            continue
        (values,) = over_videos(trained, index, videos, clips, device, forward, name)
        if kind == "embeddings":
            with np.errstate(invalid="ignore"):  # a dead network gives zeros
                values = values / np.linalg.norm(values, axis=1, keepdims=True)
        if not np.isfinite(values).all():
            raise UserError(f"the {name} network gives NaN, infinity or nothing but zeros; use other weights")
        present = (videos[:, None] * per_video + np.arange(per_video)).reshape(-1)
        by_modality[name] = np.full((len(index) * per_video, values.shape[1]), np.nan, np.float32)
        by_modality[name][present] = values
        if rows == "clip":
            start[name] = np.full(len(index) * per_video, np.nan)
            start[name][present] = uniform_starts(index, videos, clips, clip, [name]).reshape(-1) / index.fps
    metadata = {"format": VERSION, "kind": kind, "clips": str(clips), "clip": str(clip), "weights": trained.digest()}
    return Features(np.repeat(index.id, per_video), by_modality, metadata, start=start)
