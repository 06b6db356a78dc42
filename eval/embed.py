"""Features of videos in a file: of folders and files as they are, or of shards."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gdt.common import serialization
from gdt.common.errors import UserError, first_line
from gdt.common.files import partial_of, publish
from gdt.eval.settings.embed import Embed, Kind, Per
from gdt.pipeline.clips import parts, uniform_plans
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import read_rejected, shard_folder
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import centred
from gdt.preprocess.datasets import folder
from gdt.preprocess.datasets.listing import SUFFIXES, Missing
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import any_device, autocast, modalities_of
from gdt.train.provenance import Provenance

FORMAT = "gdt-features-1"


@dataclass(frozen=True)
class Rows:
    """Features, one row per video or per clip."""

    id: np.ndarray
    """Of the video, str [n]."""
    path: np.ndarray
    """Of its file, str [n]; empty where they come from shards, which do not know it."""
    start: np.ndarray
    """Second at which the clip starts, float32 [n]; of a video 0."""
    features: dict[str, np.ndarray]
    """By modality, float32 [n, d]; rows of NaN where a video does not have it for the length of a clip."""
    made: dict[str, str]
    """How: checkpoint, kind, clips and provenance."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Files that could not be used, each with its reason; they are not stored."""


def embed(settings: Embed) -> str:
    """Write the file; returns what is in it and what was left out, in words.

    Raises UserError where the checkpoint, the videos or the file cannot be used.
    """
    try:
        rows = rows_of(settings)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written, and the same command begins anew", file=sys.stderr)
        sys.exit(130)
    try:
        partial = partial_of(settings.out)
        _WRITERS[settings.out.suffix](partial, rows)
        publish(partial, settings.out)
    except OSError as error:
        raise UserError(f"{settings.out} cannot be written ({error.strerror}); see that there is room") from error
    lacking = {name: int(np.isnan(values[:, 0]).sum()) for name, values in rows.features.items()}
    sizes = ", ".join(f"{name} [{len(values)}, {values.shape[1]}]" for name, values in rows.features.items())
    videos = len(np.unique(rows.id.astype(str)))
    lines = [f"{settings.out} holds {settings.kind} of {videos} videos, a row per {settings.per}: {sizes}"]
    for name, n in lacking.items():
        if n:
            first = rows.id[np.isnan(rows.features[name][:, 0])][0]
            lines.append(f"{n} rows are without {name} for the length of a clip, and hold NaN (first: {first})")
    lines += [f"{len(rows.left_out)} videos could not be used:"] if rows.left_out else []
    lines += [f"  {path}: {reason}" for path, reason in rows.left_out]
    return "\n".join(lines)


def rows_of(settings: Embed, trained: Trained | None = None) -> Rows:
    """Features, by a model that was read already where there is one.

    Raises UserError where the checkpoint or the videos cannot be used.
    """
    trained = trained or load_model(settings.ckpt)
    modalities = _modalities(settings, trained)
    with contextlib.ExitStack() as stack:
        index, paths, left_out = _opened(settings, stack)
        rows = features_of(trained, index, modalities, settings.clips, settings.kind, settings.per)
    rows.made["checkpoint"] = str(settings.ckpt)
    path = np.asarray([paths.get(name, "") for name in rows.id], object)
    return replace(rows, path=path, left_out=tuple(left_out))


def _modalities(settings: Embed, trained: Trained) -> list[str]:
    there = [name for name in modalities_of(trained.model.state_dict()) if name in ("video", "audio")]
    fresh = trained.foreign.fresh if trained.foreign else ()
    for name in settings.of:
        if name not in there:
            raise UserError(f"{settings.ckpt} has no network for {name}; it has those for {' and '.join(there)}")
    if settings.kind == "embeddings" and any(part.startswith("mlp_") for part in fresh):
        raise UserError(
            f"{settings.ckpt} holds a trunk alone, and embeddings need a head; --kind features takes the trunk's"
        )
    return [name for name in MODALITIES if name in (settings.of or there)]


def _opened(settings: Embed, stack: contextlib.ExitStack) -> tuple[Index, dict[str, str], list[tuple[str, str]]]:
    """Shards of the videos, their files by id, and what was left out with its reason."""
    if not settings.source:
        return Index.open(shard_folder(settings.dataset, settings.shards)), {}, []
    scratch = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix=".embed-", dir=settings.out.absolute().parent))
    )
    videos = scratch / "videos"
    videos.mkdir()
    for number, source in enumerate(settings.source):
        if source.is_dir():
            (videos / f"{number}").symlink_to(source.absolute())
        elif not source.is_file():
            raise UserError(f"there is no file or folder {source}; set --source to videos")
        elif source.suffix.lower() not in SUFFIXES:
            raise UserError(f"{source} is not named like a video; names end in {', '.join(sorted(SUFFIXES))}")
        else:
            (videos / f"{number}{source.suffix}").symlink_to(source.absolute())

    def told(path: str) -> str:
        """A path below the links as the user knows it."""
        first, _, rest = os.path.relpath(path, videos).partition(os.sep)
        return str(settings.source[int(Path(first).stem)] / rest)

    single = len(settings.source) == 1 and settings.source[0].is_dir()
    root = settings.source[0] if single else videos
    try:
        _preprocess(root, scratch / "shards", settings.workers)
    except UserError as error:  # in the words of somebody who does not know of the links and of the folder
        rejected = list(read_rejected(scratch / "shards")) if (scratch / "shards").is_dir() else []
        if not rejected:
            raise
        path, reason = rejected[0]["path"], rejected[0]["reason"]
        more = f", and {len(rejected) - 1} more" if len(rejected) > 1 else ""
        raise UserError(f"no video can be used: {path if single else told(path)}: {reason}{more}") from error
    paths = {item.id: str(item.path) for item in folder.listing(root) if not isinstance(item, Missing)}
    left_out = [(row["path"], row["reason"]) for row in read_rejected(scratch / "shards")]
    index = Index.open(scratch / "shards")
    if single:
        return index, paths, left_out
    names = np.asarray([told(paths[name]) for name in index.id], object)
    return replace(index, id=names), dict(zip(names, names, strict=True)), [(told(path), why) for path, why in left_out]


_CHILD = """import sys
sys.path.insert(0, sys.argv.pop(1))
from gdt.common.supervise import die_with
die_with(int(sys.argv.pop(1)))
from gdt.command import console
console()"""
"""What `gdt preprocess` does, wherever a script was started and whatever lies there under the name gdt."""


def _preprocess(source: Path, shards: Path, workers: int) -> None:
    """In a process of its own, as its workers would run the script again that uses this as a library.

    Its progress is passed on. Raises UserError that says what it says.
    """
    root = str(Path(folder.__file__).resolve().parents[2])
    command = ["preprocess", "--dataset", "folder", "--source", str(source), "--destination", str(shards)]
    command += ["--workers", str(workers)] if workers else []
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, root, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as stage:  # fmt: skip
        assert stage.stderr is not None
        try:
            said = _passed_on(io.TextIOWrapper(stage.stderr, errors="replace", newline=""))
        except BaseException:
            stage.terminate()  # or it would go on writing into a folder that is about to be removed
            raise
    if stage.returncode:
        raise UserError(said)


def _passed_on(lines: Iterable[str]) -> str:
    """Show what a stage says while it works; returns its error, which is left to the caller, or its last words."""
    error, last = "", ""
    for line in lines:  # the progress bar begins one whenever it moves
        if error or line.startswith("error: "):
            error += line
            continue
        last = line.strip() or last
        if sys.stderr is not None:
            sys.stderr.write(line)
            sys.stderr.flush()
    return error.removeprefix("error: ").strip() or f"preprocessing ended before it was done ({last})"


def features_of(
    trained: Trained, index: Index, modalities: Sequence[str], clips: int, kind: Kind, per: Per,
    device: torch.device | None = None,
) -> Rows:  # fmt: skip
    """Features of all videos of an index, in its order; of sound, of those that have it for the length of a clip."""
    device = device or any_device()
    with _for_evaluation(trained.model, device):
        return _features_of(trained, index, modalities, clips, kind, per, device)


@contextlib.contextmanager
def _for_evaluation(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Put a model on a device, and leave it where and as it was: it may be one that somebody trains."""
    place, training = next(model.parameters()).device, model.training
    try:
        model.to(device).eval()
        yield
    finally:
        model.to(place).train(training)


def _features_of(
    trained: Trained, index: Index, modalities: Sequence[str], clips: int, kind: Kind, per: Per, device: torch.device
) -> Rows:
    index = trained.normalised(index)
    clip = trained.settings.clip
    heard = index.start_counts(clip.frames, clip.stride, clip.mel_frames) > 0
    groups = [(np.flatnonzero(heard), modalities), (np.flatnonzero(~heard), [m for m in modalities if m != "audio"])]
    if "audio" not in modalities:
        groups = [(np.arange(len(index)), modalities)]
    found: dict[str, np.ndarray] = {}
    starts = np.zeros((len(index), clips), np.float32)
    with tqdm(total=len(index), unit="video", desc="features", mininterval=1.0, leave=False) as bar:
        for videos, present in groups:
            for part, start, values in _extracted(trained, index, videos, present, clips, kind, device):
                starts[part] = start / index.fps
                for name, value in values.items():
                    kept = value if per == "clip" else _mean(value, kind)
                    rows = found.setdefault(name, np.full((len(index), *kept.shape[1:]), np.nan, np.float32))
                    rows[part] = kept
                bar.update(len(part))
            bar.update(len(videos) if not present else 0)
    if not found:
        raise UserError(f"none of the {len(index)} videos has {' or '.join(modalities)} for the length of a clip")
    made = {
        "format": FORMAT, "kind": kind, "per": per, "clips": str(clips),
        "provenance": serialization.to_json(Provenance.of(device)),
    }  # fmt: skip
    if per == "video":
        return Rows(index.id, np.full(len(index), "", object), np.zeros(len(index), np.float32), found, made)
    flat = {name: values.reshape(-1, values.shape[2]) for name, values in found.items()}
    return Rows(np.repeat(index.id, clips), np.full(starts.size, "", object), starts.reshape(-1), flat, made)


def _mean(values: np.ndarray, kind: str) -> np.ndarray:
    """Over clips, [n, clips, d] to [n, d]; of embeddings again at length 1."""
    mean: np.ndarray = values.mean(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True) if kind == "embeddings" else mean


def _extracted(
    trained: Trained, index: Index, videos: np.ndarray, modalities: Sequence[str], clips: int, kind: str,
    device: torch.device,
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:  # fmt: skip
    """Some videos at a time: their rows of the index, the start frames [n, clips], and [n, clips, d] by modality."""
    if not len(videos) or not modalities:
        return
    clip, augmentation = trained.settings.clip, centred(trained.settings.augmentation.scale[0])
    plans = uniform_plans(index, videos, clips, clip, augmentation, modalities=modalities)
    model = trained.model
    with Loader(index, plans, clip, device, Loading()) as loader:
        for part, batch in zip(parts(videos, clips), loader, strict=True):
            values = {}
            for name, inputs in batch.inputs.items():
                with torch.inference_mode(), autocast(device):  # not around the yield, where others' code runs
                    trunk: Tensor = model.get_submodule(f"{name}_network")(inputs)
                    out = trunk if kind == "features" else model.get_submodule(f"mlp_{name[0]}")(trunk)
                values[name] = out.float().unflatten(0, (-1, clips)).cpu().numpy()
            start = batch.plan.leaves.start[: len(part) * clips].reshape(-1, clips)
            yield part, start, values


def _write_h5(path: Path, rows: Rows) -> None:
    with h5py.File(path, "w") as file:
        text = h5py.string_dtype()
        file.create_dataset("id", data=rows.id.astype(object), dtype=text)
        file.create_dataset("path", data=rows.path.astype(object), dtype=text)
        file["start"] = rows.start
        for name, values in rows.features.items():
            file[name] = values
        file.attrs.update(rows.made)


def _write_npz(path: Path, rows: Rows) -> None:
    arrays: dict[str, Any] = {"id": rows.id.astype(str), "path": rows.path.astype(str), "start": rows.start}
    arrays |= rows.features | {"made": np.asarray(json.dumps(rows.made))}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_parquet(path: Path, rows: Rows) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("files of .parquet need pyarrow: 'pip install pyarrow', or set --out to .h5 or .npz") from error
    columns = {"id": rows.id.tolist(), "path": rows.path.tolist(), "start": rows.start}
    columns |= {
        name: pyarrow.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
        for name, values in rows.features.items()
    }
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(rows.made), path)


_WRITERS: dict[str, Callable[[Path, Rows], None]] = {".h5": _write_h5, ".npz": _write_npz, ".parquet": _write_parquet}


def read(path: Path) -> Rows:
    """The features in a file of .h5 or .npz. Raises UserError where it is no such one."""
    if not path.is_file():
        raise UserError(f"there is no file {path} of features; make one with 'make embed'")
    try:
        if path.suffix == ".npz":
            with np.load(path) as file:
                arrays, made = {name: file[name] for name in file.files}, json.loads(str(file["made"]))
        else:
            with h5py.File(path) as file:
                arrays = {name: file[name].asstr()[:] if name in ("id", "path") else file[name][:] for name in file}
                made = {name: str(value) for name, value in file.attrs.items()}
        if made.get("format") != FORMAT:
            raise ValueError(f"its format is {made.get('format')}, not {FORMAT}")
        features = {name: arrays[name] for name in MODALITIES if name in arrays}
        return Rows(arrays["id"].astype(object), arrays["path"].astype(object), arrays["start"], features, made)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} holds no features of this program ({first_line(error)}); make it anew") from error
