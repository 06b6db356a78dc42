"""Features of videos, from files, folders or shards, written to a file.

torch and DALI are imported inside the functions: the command line reads the settings below.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from tqdm import tqdm

from gdt.common.commandline import expand_home, gdt_command, pip_command
from gdt.common.errors import UserError, first_line, plural, require_positive, with_list
from gdt.common.files import DAMAGE, require_new_file, require_readable, writing
from gdt.common.lock import is_locked, locked, locked_file
from gdt.eval.of_run import NO_RUN, OfRun
from gdt.pipeline.clips import split_videos, uniform_plans, usable
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, OtherSchema, text_array, texts
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import read_rejected, shard_folder
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import centred
from gdt.train.provenance import provenance_of

if TYPE_CHECKING:
    import torch

    from gdt.train.checkpoint import Trained

Modality = Literal["video", "audio"]
Kind = Literal["embeddings", "features"]
Per = Literal["video", "clip"]
FORMAT = "gdt-features-1"
_NAMED = 3
"""Maximum number of videos named in a note."""
_SCRATCH = ".embed-"


@dataclass(frozen=True)
class Embed(OfRun):
    """Write embeddings or trunk features of your videos, or of a data set, to a file."""

    ckpt: Path | None = None
    """Checkpoint of a pretrained model, or external weights; default: that of a run."""
    source: tuple[Path, ...] = ()
    """Video files and folders."""
    dataset: str = ""
    """Preprocessed data set, instead of --source."""
    shards: Path | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    out: Path = Path("features.h5")
    """File: .h5, .npz or .parquet (needs pyarrow)."""
    modalities: tuple[Modality, ...] = ()
    """Modalities; default: all of the model."""
    kind: Kind = "embeddings"
    """embeddings (head; comparable across modalities) or features (trunk)."""
    per: Per = "video"
    """One row per video (the mean over clips), or per clip."""
    clips: int = 10
    """Uniformly spaced clips per video."""
    workers: int = 0
    """Decoding processes; 0: one per core."""
    overwrite: bool = False
    """Replace an existing file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.source) == bool(self.dataset or self.shards):
            raise UserError(
                "set --source to files or folders of videos, or --dataset to a preprocessed data set, but not both"
            )
        for name, given, known in (
            ("kind", (self.kind,), get_args(Kind)), ("per", (self.per,), get_args(Per)),
            ("modalities", self.modalities, get_args(Modality)),
        ):  # fmt: skip
            if unknown := [value for value in given if value not in known]:
                raise UserError(f"--{name} is '{unknown[0]}'; it must be {' or '.join(known)}")
        require_positive(self, "", "clips", most=1000)
        if self.out.suffix not in _WRITERS:
            raise UserError(f"--out is {self.out}; its name must end in {', '.join(_WRITERS)}")
        if self.out.suffix == ".parquet" and find_spec("pyarrow") is None:
            raise UserError(
                f"--out is {self.out}, and .parquet needs pyarrow; run '{pip_command('pyarrow')}', or set --out to "
                ".h5 or .npz"
            )
        require_new_file(self.out, self.overwrite)


@dataclass(frozen=True)
class Features:
    """Features, one row per video or per clip."""

    id: np.ndarray
    """Id of the video, str [n]."""
    path: np.ndarray
    """Path of its file, str [n]; empty for features of shards."""
    start: np.ndarray
    """Start of the clip in seconds, float32 [n]; 0 for rows per video."""
    features: dict[str, np.ndarray]
    """By modality, float32 [n, d]; NaN for videos where it is missing or shorter than a clip (see
    `pipeline.clips.usable`)."""
    metadata: dict[str, str]
    """Checkpoint, digest of its weights, kind, number and size of clips, provenance."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Skipped files with reasons; not stored."""


def embed(settings: Embed) -> str:
    """Write the file; returns a summary of its contents and of the skipped videos.

    Raises UserError if the checkpoint, the videos or the file cannot be used.
    """
    with locked_file(settings.out):
        require_new_file(settings.out, settings.overwrite)  # another run may just have written it
        return _write(settings)


def _write(settings: Embed) -> str:
    try:
        rows = features(settings)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    try:
        _WRITERS[settings.out.suffix](settings.out, rows)
    except OSError as error:
        raise UserError(f"{settings.out} cannot be written ({error.strerror}); check the free disk space") from error
    sizes = ", ".join(f"{name} [{len(values)}, {values.shape[1]}]" for name, values in rows.features.items())
    videos = len(np.unique(rows.id.astype(str)))
    lines = [
        f"{settings.out}: {settings.kind} of {plural(videos, 'video')}, one row per {settings.per}: {sizes}",
        f"from {settings.clips} clips per video, each of {rows.metadata['clip']}",
        *describe_missing(rows),
    ]
    lines += [f"{len(rows.skipped)} skipped:"] if rows.skipped else []
    lines += [f"  {path}: {reason}" for path, reason in rows.skipped]
    return "\n".join(lines + _next_steps(settings.out, rows))


def describe_missing(rows: Features) -> list[str]:
    """A line per modality whose features are NaN for some videos."""
    lines = []
    for name, values in rows.features.items():
        if lacking := list(dict.fromkeys(rows.id[np.isnan(values[:, 0])])):
            first = ", ".join(lacking[:_NAMED]) + (", …" if len(lacking) > _NAMED else "")
            videos = plural(len(lacking), "video")
            lines.append(f"'{name}' is NaN for {videos} whose {name} is missing or shorter than a clip: {first}")
    return lines


def _next_steps(path: Path, rows: Features) -> list[str]:
    if path.suffix == ".parquet":
        return []
    name, query = next(iter(rows.features)), str(rows.id[0])
    asked = [f"--query={query}"] if query.startswith("-") else ["--query", query]
    by = [] if "video" in rows.features else ["--by", name]
    return [
        "next: find similar videos",
        f"  {gdt_command('nearest', '--features', path, *asked, *by)}",
        "or use the features in Python",
        "  import gdt",
        f"  features = gdt.read_features({str(path)!r})",
        f"  print(features.id[0], features.features[{name!r}][0])",
    ]


def features(settings: Embed, trained: Trained | None = None) -> Features:
    """Compute features; `trained` is the checkpoint, if it is already loaded.

    Raises UserError if the checkpoint or the videos cannot be used.
    """
    from gdt.train.checkpoint import load_trained

    if settings.ckpt is None:
        settings = replace(settings, ckpt=settings.checkpoint(settings.dataset, settings.shards), **NO_RUN)
    trained = trained or load_trained(cast(Path, settings.ckpt))
    modalities = _modalities(settings, trained)
    with contextlib.ExitStack() as stack:
        index, paths, skipped = _open_videos(settings, stack)
        rows = features_of(trained, index, modalities, settings.clips, settings.kind, settings.per)
    rows.metadata["checkpoint"] = str(settings.ckpt)
    path = np.asarray([paths.get(name, "") for name in rows.id], object)
    return replace(rows, path=path, skipped=tuple(skipped))


def _modalities(settings: Embed, trained: Trained) -> list[str]:
    available = [name for name in trained.model.modalities if name in get_args(Modality)]
    for name in settings.modalities:
        if name not in available:
            raise UserError(f"{settings.ckpt} has no network for {name}; available: {', '.join(available)}")
    modalities = [name for name in MODALITIES if name in (settings.modalities or available)]
    if settings.kind == "embeddings" and not set(modalities).isdisjoint(trained.without_head):
        raise UserError(f"{settings.ckpt} has only a trunk, and embeddings need a head; set --kind features")
    return modalities


def _open_videos(settings: Embed, stack: contextlib.ExitStack) -> tuple[Index, dict[str, str], list[tuple[str, str]]]:
    """An index of the videos, their files by id, and the skipped files with reasons."""
    if not settings.source:
        return Index.open(shard_folder(settings.dataset, settings.shards)), {}, []
    from gdt.preprocess.cluster import one_per_core
    from gdt.preprocess.datasets import folder
    from gdt.preprocess.datasets.listing import SUFFIXES, Missing
    from gdt.preprocess.stage import Preprocess, run

    parent = settings.out.absolute().parent
    for left in parent.glob(f"{_SCRATCH}*"):  # by killed runs
        if not is_locked(left):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=parent)))
    stack.enter_context(locked(scratch))
    links, shards = scratch / "videos", scratch / "shards"
    links.mkdir()
    for number, source in enumerate(settings.source):
        if not source.is_dir() and not source.is_file():
            raise UserError(f"no file or folder {source}; set --source to files or folders of videos")
        if source.is_file() and source.suffix.lower() not in SUFFIXES:
            raise UserError(with_list(f"{source} does not have the suffix of a video file; known:", sorted(SUFFIXES)))
        link = links / f"{number:08d}"  # a folder even for a file: folders are listed after files
        if source.is_file():
            link.mkdir()
            link /= f"video{source.suffix}"
        link.symlink_to(source.absolute())
    single = len(settings.source) == 1 and settings.source[0].is_dir()
    root = settings.source[0] if single else links

    def user_path(path: str) -> str:
        """The path below --source of a path below the links."""
        if single:
            return path
        first, _, rest = os.path.relpath(path, links).partition(os.sep)
        source = settings.source[int(first)]
        return str(source / rest if source.is_dir() else source)

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # its summary names the temporary folder
            index = run(Preprocess("folder", root, shards, workers=settings.workers or one_per_core())).index
    except UserError as error:
        rejected = list(read_rejected(shards)) if shards.is_dir() else []
        if not rejected:
            raise
        path, reason = user_path(rejected[0]["path"]), rejected[0]["reason"]
        if len(rejected) == 1:
            raise UserError(f"{path} cannot be used: {reason}") from error
        raise UserError(f"none of the {len(rejected)} videos can be used; the first, {path}: {reason}") from error
    paths = {item.id: user_path(str(item.path)) for item in folder.listing(root) if not isinstance(item, Missing)}
    skipped = [(user_path(row["path"]) if row["path"] else row["id"], row["reason"]) for row in read_rejected(shards)]
    if single:
        return index, paths, skipped
    names = np.asarray([paths[name] for name in index.id], object)
    return replace(index, id=names), dict(zip(names, names, strict=True)), skipped


def features_of(
    trained: Trained, index: Index, modalities: Sequence[str], clips: int, kind: Kind, per: Per,
    device: torch.device | None = None,
) -> Features:  # fmt: skip
    """Features of all videos of an index, in its order; NaN where the audio is shorter than a clip."""
    import torch

    from gdt.pipeline.loader import Loader
    from gdt.train.models.gdt import any_device, autocast

    device, weights = device or any_device(), trained.digest()
    index, model, clip = trained.normalise(index), trained.model, trained.settings.clip
    crop = centred(trained.settings.augmentation.scale[0])
    audible = np.ones(len(index), bool)
    if "audio" in modalities:
        audible = usable(index, clip, audio=True)
    without_audio = [name for name in modalities if name != "audio"]
    groups = [(np.flatnonzero(audible), modalities), (np.flatnonzero(~audible), without_audio)]
    found: dict[str, np.ndarray] = {}
    starts = np.zeros((len(index), clips), np.float32)
    with (
        _for_evaluation(model, device), torch.inference_mode(), autocast(device),
        tqdm(total=len(index), unit="video", desc="features", mininterval=1.0, leave=False) as bar,
    ):  # fmt: skip
        for videos, present in groups:
            if not len(videos) or not present:
                bar.update(len(videos))
                continue
            plans = uniform_plans(index, videos, clips, clip, crop, modalities=present)
            with Loader(index, plans, clip, device, Loading()) as loader:
                for part, batch in zip(split_videos(videos, clips), loader, strict=True):
                    starts[part] = batch.plan.leaves.start[: len(part) * clips].reshape(-1, clips) / index.fps
                    for name, inputs in batch.inputs.items():
                        out = model.get_submodule(f"{name}_network")(inputs)
                        out = out if kind == "features" else model.get_submodule(f"mlp_{name[0]}")(out)
                        values = out.float().unflatten(0, (-1, clips)).cpu().numpy()
                        if not np.isfinite(values).all():
                            raise UserError(f"the {name} network gives NaN or infinity; use other weights")
                        kept = values if per == "clip" else _mean(values, kind)
                        found.setdefault(name, np.full((len(index), *kept.shape[1:]), np.nan, np.float32))[part] = kept
                    bar.update(len(part))
    if not found:
        raise UserError(
            f"the {' and '.join(modalities)} of every video is missing or shorter than a clip; use longer videos, or "
            "set --modalities"
        )
    metadata = {
        "format": FORMAT, "kind": kind, "per": per, "clips": str(clips), "clip": str(clip),
        "weights": weights, "provenance": json.dumps(provenance_of(device)),
    }  # fmt: skip
    if per == "video":
        return Features(index.id, np.full(len(index), "", object), np.zeros(len(index), np.float32), found, metadata)
    flat = {name: values.reshape(-1, values.shape[2]) for name, values in found.items()}
    return Features(np.repeat(index.id, clips), np.full(starts.size, "", object), starts.reshape(-1), flat, metadata)


@contextlib.contextmanager
def _for_evaluation(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Move a model to a device in evaluation mode, and restore it afterwards, as it may be training."""
    original, training = next(model.parameters()).device, model.training
    try:
        model.to(device).eval()
        yield
    finally:
        model.to(original).train(training)


def _mean(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Mean over clips, [n, clips, d] to [n, d]; embeddings are normalised again."""
    mean: np.ndarray = values.mean(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True) if kind == "embeddings" else mean


def _write_h5(path: Path, rows: Features) -> None:
    columns = {"id": text_array(rows.id.tolist()), "path": text_array(rows.path.tolist()), "start": rows.start}
    container.write(path, columns | rows.features, rows.metadata)


def _write_npz(path: Path, rows: Features) -> None:
    arrays: dict[str, Any] = {"id": rows.id.astype(str), "path": rows.path.astype(str), "start": rows.start}
    arrays |= rows.features | {"made": np.asarray(json.dumps(rows.metadata))}
    with writing(path) as file:
        np.savez(file, **arrays)


def _write_parquet(path: Path, rows: Features) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {"id": rows.id.tolist(), "path": rows.path.tolist(), "start": rows.start}
    for name, values in rows.features.items():
        columns[name] = pyarrow.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
    table = pyarrow.table(columns).replace_schema_metadata(rows.metadata)
    with writing(path) as file:
        parquet.write_table(table, file, write_page_checksum=True)


_WRITERS: dict[str, Callable[[Path, Features], None]] = {
    ".h5": _write_h5,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}
_STARTS = {".h5": (b"gdt ", b"\x89HDF"), ".npz": (b"PK\x03\x04",)}
"""First bytes of files by suffix; .h5 files of this version and of others."""


def read(path: str | Path) -> Features:
    """Read features from .h5 or .npz; ~ is expanded. Raises UserError for any other or a damaged file."""
    path = Path(expand_home(Path(path)))
    suffix = ".npz" if path.suffix == ".npz" else ".h5"
    if not path.is_file():
        raise UserError(f"no features file {path}; write one with 'gdt embed'")
    try:
        with path.open("rb") as file:
            is_features = file.read(4) in _STARTS[suffix]
        if not is_features:
            raise UserError(f"{path} is not a features file (.h5 or .npz); write one with 'gdt embed'")
        return _features(*(_read_npz if suffix == ".npz" else _read_h5)(path))
    except (Damaged, OSError, *DAMAGE) as error:
        if isinstance(error, OSError):
            require_readable(path, error)
        what = "of another version" if isinstance(error, OtherSchema) else "damaged, or not a features file"
        raise UserError(f"{path} is {what} ({first_line(error)}); write one with 'gdt embed'") from error


def _read_h5(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    arrays, metadata = container.read(path)
    return {name: texts(values) if values.dtype.kind == "S" else values for name, values in arrays.items()}, metadata


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    with zipfile.ZipFile(path) as members:  # which have checksums
        _require_size(path, sum(member.file_size for member in members.infolist()))
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
        return arrays, json.loads(str(arrays.pop("made")))


def _require_size(path: Path, size: int) -> None:
    """Raise ValueError if the arrays are larger than their file: they could fill the memory."""
    if size > path.stat().st_size:
        raise ValueError(f"it claims {size:,} bytes of arrays, more than its own size")


def _features(arrays: dict[str, np.ndarray], metadata: Any) -> Features:
    """Features from the content of a file. Raises ValueError if something is missing or does not fit."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is not a table of text")
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its format is {metadata.get('format')}, not {FORMAT}")
    values = {name: arrays[name] for name in MODALITIES if name in arrays}
    columns = {"id": (1, "UO"), "path": (1, "UO"), "start": (1, "f"), **dict.fromkeys(values, (2, "f"))}
    missing = [*(columns.keys() - arrays.keys()), *({"kind", "per", "clips", "checkpoint"} - metadata.keys())]
    if missing or not values:
        raise ValueError(f"it has no {', '.join(sorted(missing)) or 'features'}")
    for name, (axes, kinds) in columns.items():
        found = arrays[name]
        if found.ndim != axes or found.dtype.kind not in kinds or len(found) != len(arrays["id"]):
            raise ValueError(f"{name} has shape {list(found.shape)} and type {found.dtype}")
    if not metadata["clips"].isdecimal():
        raise ValueError(f"its number of clips is {metadata['clips']!r}")
    return Features(arrays["id"].astype(object), arrays["path"].astype(object), arrays["start"], values, metadata)
