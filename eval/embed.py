"""`gdt embed`: features of videos, from files, folders or shards."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from torch import Tensor

from gdt.common.commandline import gdt_command
from gdt.common.errors import LeftOut, Unusable, UserError
from gdt.common.files import require_new_file, require_space, scratch
from gdt.common.folders import Folder
from gdt.common.wording import plural
from gdt.eval import parquet
from gdt.eval.features import VERSION, Features, content_of, read, sameness, write
from gdt.eval.parts import Parts, joined, parts_beside, require_same
from gdt.eval.settings import Embed, FeatureModality, Nearest
from gdt.pipeline.clips import moment_starts, usable
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.shards.naming import shard_folder
from gdt.pipeline.shards.reader import ShardReader
from gdt.train.checkpoint import load_trained
from gdt.train.inference import over_videos
from gdt.train.models.gdt import any_device
from gdt.train.models.own import makers
from gdt.train.run import latest_checkpoint, verdict_of
from gdt.train.trained import Trained

_SILENCE = 5.0
"""Log-mel value above that of silence: that of white noise of -90 dB of full scale, or of a low tone of -73 dB."""
_ROW_BYTES = 3 * 4096
"""Of a video, in its part and twice in its file while that is written: at most 512 numbers of each modality."""


def embed(settings: Embed) -> str:
    """`write_features`; returns a summary of the file's contents and of the skipped videos."""
    out = settings.out
    embedded, known = write_features(settings)
    sizes = ", ".join(f"{name} [{len(values)}, {values.shape[1]}]" for name, values in embedded.features.items())
    of = f"a clip each {settings.every:g} s" if settings.every else f"{settings.clips} clips per video, each"
    lines = [f"{out}: {settings.kind} of {embedded.count}: {sizes}; from {of} of {embedded.metadata['clip']}"]
    if known:
        new = len(embedded.contents.items() - known.contents.items())
        lines.append(f"{plural(new, 'video')} new or changed; the others had their rows")
    silent = ", silent" if settings.every else ""
    for name, values in embedded.features.items():
        lacking = int(np.isnan(values[:, 0]).sum())
        if lacking:
            lines.append(f"'{name}' is NaN for {lacking} of {embedded.count}: missing{silent}, or shorter than a clip")
    lines += [f"skipped {file.path}: {file.reason}" for file in embedded.skipped]
    warning = sameness(embedded.features)
    if warning:
        lines.append(f"warning: {warning}")
    lines += verdict_of(embedded.metadata["checkpoint"])
    by, values = next(iter(embedded.features.items()))
    queries = [*dict.fromkeys(embedded.id[~np.isnan(values[:, 0])].tolist())]
    if len(queries) > 1:
        options = ["--features", out] * (out != Embed.out) + ["--by", by] * (by != Nearest.by)
        lines.append(f"next: {gdt_command('nearest', *options, '--query', queries[0])}")
    return "\n".join(lines)


def write_features(settings: Embed, trained: Trained | None = None) -> tuple[Features, Features | None]:
    """Write the file, in which rows of unchanged videos stay; returns its contents, and those before.

    `trained` is the checkpoint, if it is already loaded. Raises UserError if the checkpoint, the videos or the file
    cannot be used.
    """
    out = settings.out
    require_new_file(out, overwrite=True)
    if out.suffix == ".parquet":
        parquet.require_pyarrow(out)
    embedder = Embedder(settings, trained)
    known = None
    with parts_beside(out, embedder.decisive, settings.overwrite) as parts:
        if out.exists() and not settings.overwrite:  # read here, since another run may just have written it
            known = read(out, "set --overwrite or another --out")
            require_same(known.metadata, embedder.decisive, out)
        embedded = _embedded(embedder, parts, known)
        write(out, embedded)
    return embedded, known


def features(settings: Embed, trained: Trained | None = None, part: tuple[float, float] | None = None) -> Features:
    """Compute features without a file; `trained` is the checkpoint, if it is already loaded.

    `part`: from which second to which of the source, a file; by default all.

    Raises UserError if the checkpoint or the videos cannot be used.
    """
    with scratch() as folder:
        return _embedded(Embedder(settings, trained, part), Parts(folder))


class Embedder:
    """A model that gives the rows that settings ask for."""

    def __init__(
        self, settings: Embed, trained: Trained | None = None, part: tuple[float, float] | None = None
    ) -> None:
        """Raises UserError if the checkpoint cannot be used; `trained` is that, if it is already loaded."""
        checkpoint = settings.ckpt or str(latest_checkpoint())
        trained = trained or load_trained(checkpoint, makers(settings.own_networks.given))
        available = [name for name in trained.model.modalities if name in get_args(FeatureModality)]
        for name in settings.modalities:
            if name not in available:
                raise UserError(f"{checkpoint} has no network for {name}; available: {', '.join(available)}")
        self.modalities = [name for name in MODALITIES if name in (settings.modalities or available)]
        if settings.kind == "embeddings" and not set(self.modalities).isdisjoint(trained.without_head):
            raise UserError(f"{checkpoint} has only a trunk, and embeddings need a head; set --kind features")
        self.settings = settings
        self.part = part
        self.device = any_device()
        model = deepcopy(trained.model).to(self.device).eval()  # it may be training
        self.trained = replace(trained, model=model)
        self.decisive = {
            "format": VERSION,
            "kind": settings.kind,
            "clips": str(settings.clips),
            "every": str(settings.every),
            "clip": str(trained.settings.clip),
            "seconds": f"{self._seconds():.3f}",
            "modalities": " ".join(self.modalities),
            "weights": trained.digest(),
        }
        """What decides its rows."""
        file = Path(checkpoint).expanduser().absolute()
        shards = "" if settings.source else str(shard_folder(settings.dataset, settings.shards).absolute())
        self.metadata = self.decisive | {"checkpoint": str(file if file.exists() else checkpoint), "shards": shards}

    def _seconds(self) -> float:
        """How long a clip of all modalities is."""
        clip = self.trained.settings.clip
        pictures = ((clip.frames - 1) * clip.stride + 1) / (self.trained.inputs.fps or 30)
        lengths = {"video": pictures, "audio": (clip.mel_frames + 1) / MEL_RATE}
        return max(lengths[name] for name in self.modalities)

    def rows(self, index: Index, videos: np.ndarray, show: bool = True) -> Features:
        """Features of videos of an index, in this order, by the modalities that some have, which do not depend on each
        other; NaN where one is missing, or sound shorter than a clip.

        Raises UserError if a shard is damaged, or a network gives no numbers.
        """
        model, clip = self.trained.model, self.trained.settings.clip
        embeddings = self.settings.kind == "embeddings"
        clips, moments, seconds = self.settings.clips, None, None
        if self.settings.every:
            videos, moments = moment_starts(index, videos, clip, self.modalities, self.settings.every)
            clips, seconds = 1, moments / index.fps

        def forward(batch: Batch) -> list[Tensor]:
            """Means over the clips of a row, [rows, d]."""
            ((name, inputs),) = batch.inputs.items()
            out = model.embed(name, inputs) if embeddings else model.trunk(name)(inputs)
            return [out.float().unflatten(0, (-1, clips)).mean(1)]

        found = Features(index.id[videos], {}, dict(self.metadata), start=seconds)
        for name in self.modalities:
            there = usable(index, clip, [name])[videos]
            if moments is not None and name == "audio":
                there[there] = _is_heard(index, videos[there], moments[there], clip.mel_frames)
            there = np.flatnonzero(there)
            if not len(there):
                continue
            at = None if moments is None else moments[there, None]
            (values,) = over_videos(self.trained, index, videos[there], clips, self.device, forward, name, at, show)
            if embeddings:
                with np.errstate(invalid="ignore"):  # a dead network gives zeros
                    values = values / np.linalg.norm(values, axis=1, keepdims=True)
            if not np.isfinite(values).all():
                raise UserError(f"the {name} network gives NaN, infinity or nothing but zeros; use other weights")
            found.features[name] = np.full((len(videos), values.shape[1]), np.nan, np.float32)
            found.features[name][there] = values
        return found


def _is_heard(index: Index, videos: np.ndarray, starts: np.ndarray, rows: int) -> np.ndarray:
    """Whether each clip of so many log-mel rows has sound above silence: bool [n]."""
    reader = ShardReader(index)
    begins = index.mel_position(starts)
    counts = np.minimum(rows, index.mel_count[videos] - begins)
    clips = zip(videos.tolist(), begins.tolist(), counts.tolist(), strict=True)
    return np.array([reader.logmel(*clip).max() > _SILENCE for clip in clips], bool)


def _embedded(embedder: Embedder, parts: Parts, known: Features | None = None) -> Features:
    """All rows: those that are `known`, of videos that have not changed, and those of the others, which go into parts.

    Raises UserError if the videos cannot be used.
    """
    before = known.contents if known else {}
    embed_new = _embed_files if embedder.settings.source else _embed_shards
    contents, names, left_out = embed_new(embedder, parts, before)
    unchanged = [name for name, content in before.items() if content == contents.get(name)]
    kept = [joined(unchanged, [known], known.metadata)] if known else []
    embedded = joined([*contents], [*kept, *parts.read(names)], embedder.metadata)
    skipped = (*left_out, *embedded.skipped)
    if not len(embedded.id):
        raise Unusable(f"no video can be used; the first, {skipped[0].path}: {skipped[0].reason}", skipped)
    if not embedded.features:
        missing = f"no video has {' or '.join(embedder.modalities)}, with sound as long as a clip"
        raise Unusable(f"{missing}; use other videos, or set --modalities", skipped)
    content = np.array([contents[name] for name in embedded.id.tolist()], object)
    return replace(embedded, skipped=skipped, content=content)


Embedded = tuple[dict[str, str], list[str], list[LeftOut]]
"""The contents of all videos in order, before any was read, the parts with the rows of new ones, and those skipped."""


def _embed_files(embedder: Embedder, parts: Parts, before: Mapping[str, str]) -> Embedded:
    from gdt.preprocess import named
    from gdt.preprocess.plan import Plan
    from gdt.preprocess.videos import SOUNDS

    settings = embedder.settings
    found = named.find(settings.source)
    if embedder.modalities == ["video"] and all(file.path.suffix.lower() in SOUNDS for file in found.values()):
        has = "audio" in embedder.trained.model.modalities
        instead = (
            "set --modalities, or --by of a query, to audio" if has else "use a checkpoint with a network for audio"
        )
        raise UserError(f"no video has pictures: all files are sounds; {instead}")
    _require_present(settings, {*before}.union(*Plan.read(Folder(parts.folder)).shards.values()), found)
    states = {address: file.folder.state(file.path) for address, file in found.items()}
    contents = {
        # rows of what cannot be looked at now stay
        address: before.get(address, "") if state.size < 0 else content_of(state)
        for address, state in states.items()
    }
    new = {address: file for address, file in found.items() if before.get(address) != contents[address]}
    if not new:
        return contents, [], []
    part = dict.fromkeys(new, embedder.part) if embedder.part else {}
    job = named.plan_groups(new, parts.folder, embedder.trained.inputs.fps or 30, part)
    frames = min(named.SCRATCH_BYTES, 3 * sum(max(video.size, 0) for video in job.listed.videos.values()))
    require_space(parts.folder / settings.out.name, _ROW_BYTES * len(found) + frames)
    tasks = {number: job.task(number) for number in job.shards}
    pending = [number for number, task in tasks.items() if not parts.has(task.name, task.content)]
    with closing(named.decode_groups(job, pending, settings)) as groups:
        for index, skipped in groups:
            rows = embedder.rows(index, np.arange(len(index)), show=False)
            # without content, as of a file that could not be read now, the next run makes it again
            content = index.headers[0].attributes["content"]
            parts.keep(index.shard_names[0], content, replace(rows, skipped=tuple(skipped)))
    return contents, [task.name for task in tasks.values()], job.listed.left_out


def _embed_shards(embedder: Embedder, parts: Parts, before: Mapping[str, str]) -> Embedded:
    settings = embedder.settings
    index = Index.open(shard_folder(settings.dataset, settings.shards), settings.cache)
    _require_present(settings, before, index.id)
    digests = [hashlib.sha256(header.line).hexdigest() for header in index.headers]
    contents = {name: digests[shard] for name, shard in zip(index.id.tolist(), index.shard.tolist(), strict=True)}
    new = np.array([before.get(name) != content for name, content in contents.items()], bool)
    require_space(parts.folder / settings.out.name, _ROW_BYTES * len(index))
    names = []
    for shard in np.unique(index.shard[new]).tolist():
        videos = np.flatnonzero(new & (index.shard == shard))
        content = hashlib.sha256(index.headers[shard].line + "\n".join(index.id[videos]).encode()).hexdigest()
        names.append(index.shard_names[shard])
        if not parts.has(names[-1], content):
            parts.keep(names[-1], content, embedder.rows(index, videos))
    return contents, names, []


def _require_present(settings: Embed, known: Collection[str], found: Iterable[str]) -> None:
    """Raise UserError if videos that have rows have gone, as after a wrong source, or with an unmounted disk."""
    gone = sorted(set(known).difference(found))
    if gone and not (settings.drop_missing or settings.overwrite):
        lacking, instead = "these shards lack", "restore them"
        if settings.source:
            lacking, instead = "--source lacks", "restore them or name all sources in one command"
        raise UserError(
            f"{settings.out} has rows of {plural(len(gone), 'video')} that {lacking} (first: {gone[0]}); {instead}, or "
            "set --drop-missing to leave them out, --out to another file, or --overwrite to begin anew"
        )
