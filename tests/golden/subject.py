"""The product, as the golden tests call it: a change of its interfaces changes this file and no recorded value."""

import hashlib
import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import simplejpeg
import torch

from gdt.common.folders import Folder
from gdt.eval.downstream import downstream
from gdt.eval.embed import features
from gdt.eval.results import RESULTS, read
from gdt.eval.settings import Downstream, Embed
from gdt.pipeline.leaves import Clip
from gdt.pipeline.presets import PRESETS
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.shards.rejected import read_rejected
from gdt.pipeline.sources.text import Words
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.synthetic.files import generate
from gdt.preprocess.synthetic.moments import Synthetic
from gdt.train.checkpoint import load_model
from gdt.train.experiment import compose, tree_of
from gdt.train.models.own import Makers
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES, Optimization, Pretrain, RunSettings
from tests.conftest import Forked, preprocess, write_word2vec
from tests.train.runs import of_ranks
from tests.train.test_weights import BANKS, CLIPS, Release, random, saved

MORE = "video:d time_shift:i:1 speed(1,2):i:2 order(2):i:2 modality:i:2:differs rotation:i:2 augmentation:i:1"
"""The factors that no preset has."""
NAMES = [name for name in PRESETS if not name.isdecimal()]


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Hash of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        found.update(f"{name} {values.dtype} {values.shape};".encode() + np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def settings(
    name: str, shards: Path, words: Path, dropout: float = 0.0, lr: float = 1e-6, **changes: Any
) -> Pretrain:  # fmt: skip
    """A short run of small networks over 12 videos, by default as one batch-norm group.

    At higher rates, rounding differences between processors grow within few steps.
    """
    base = SIZES["tiny"]
    composition: dict[str, Any] = {"factors": MORE} if name == "more" else {"preset": name}
    short = replace(
        base, **composition, shards=shards, word2vec=words if name == "three" else None,
        network=replace(base.network, dropout=dropout), batch_size=12, steps=20, group_size=0, device="cpu",
        threads=1, optimization=Optimization("sgd", lr=lr, base_batch_size=0, warmup_epochs=0),
    )  # fmt: skip
    return replace(short, **changes)


def in_float64(name: str, shards: Path, words: Path, **changes: Any) -> RunSettings:
    """A run of fewer steps of smaller networks."""
    base = settings(name, shards, words, lr=1e-3, steps=3, precision="float64")
    widths = {"widths": (4, 8), "audio_widths": (4, 8), "stem": 4, "stem_middle": 4, "audio_stem": 4}
    small = replace(
        base, network=replace(base.network, **widths, hidden=32, embedding=16),
        clip=Clip(frames=4, stride=6, size=16), augmentation=replace(base.augmentation, scale=(20, 28)),
    )  # fmt: skip
    return RunSettings.of(small, **changes)


def train(settings: Pretrain) -> dict[str, Any]:
    """Pretrain; the loss of every step, and the norm of the change of the weights."""
    return trained(pretrain(settings))


def trained(checkpoint: Path, given: Makers = MappingProxyType({})) -> dict[str, Any]:
    """What `train` returns, of a finished run, maybe with one of the given networks."""
    before = dict(load_model(checkpoint, given).untrained().model.named_parameters())
    after = torch.load(checkpoint, weights_only=True)["model"]  # in float64 if it was trained so
    moved = [(after[key].double() - weight.double()).norm().item() ** 2 for key, weight in before.items()]
    rows = [json.loads(line) for line in checkpoint.with_name("metrics.jsonl").read_text().splitlines()]
    return {"losses": [row["loss"] for row in rows], "moved": math.sqrt(math.fsum(moved))}


_RANK = """
import pathlib, pickle
from gdt.train.pretrain import pretrain
for run in pickle.loads(pathlib.Path("runs").read_bytes()):
    pretrain(run)
"""


def train_on_ranks(
    runs: Sequence[Pretrain], folder: Path, world: int,
    given: Makers = MappingProxyType({}),
) -> list[dict[str, Any]]:  # fmt: skip
    """As `train`, on several ranks, with the environment that torchrun gives them; maybe with the given networks."""
    (folder / "runs").write_bytes(pickle.dumps(runs))
    (folder / "ranks.py").write_text(_RANK)
    for rank in [Forked(folder, ["ranks.py"], environment) for environment in of_ranks(world)]:
        _, errors = rank.communicate()
        assert rank.returncode == 0, errors
    return [trained(run.run_folder / "checkpoint.pt", given) for run in runs]


def planned(name: str, shards: Path) -> list[str]:
    """Hashes of columns, leaves and draws of some plans over videos of different lengths."""
    index, found = Index.open(shards), []
    shorter = np.arange(len(index))
    index = replace(index, frame_count=index.frame_count - shorter, mel_count=index.mel_count - 3 * shorter)
    for seed, epoch, batch in ((0, 0, 0), (0, 0, 1), (1, 7, 0)):
        run = settings(name, shards, shards, batch_size=5, seed=seed)
        plan = tree_of(run, compose(run), index).plan(epoch, batch)
        arrays = {"columns": plan.columns, "leaves": plan.leaves.arrays(), "draws": plan.leaves.draws}
        found.append(" ".join(map(digest, arrays.values())))
    return found


def generated(folder: Path, **settings: Any) -> Path:
    """Shards of a generated set."""
    made = Synthetic(train=1, val=0, test=1, seconds=2.0, **settings)
    generate(folder / "videos", made, workers=1)
    preprocess(Preprocess("synthetic", folder / "videos", folder / "shards"))
    return folder / "shards"


def captioned(folder: Path, captions: dict[str, Any]) -> Path:
    """Shards of the folder `videos` with captions, {id: {start, end, text}}."""
    videos, words, shards = (folder / name for name in ("videos", "vectors.txt", "shards"))
    (videos / "captions.json").write_text(json.dumps(captions))
    write_word2vec(words, (text for said in captions.values() for text in said["text"]), 4)
    preprocess(Preprocess("folder", videos, shards, word2vec=words))
    return shards


def stored(shards: Path) -> dict[str, Any]:
    """What shards hold of each video, as read back; words from every half second on."""
    index, found = Index.open(shards), {}
    reader = ShardReader(index)
    for video, name in enumerate(index.id):
        count, rows = int(index.frame_count[video]), int(index.mel_count[video])
        frames = np.stack([simplejpeg.decode_jpeg(jpeg) for jpeg in reader.frames(video, np.arange(count))])
        bank = reader.logmel(video, 0, rows) if rows else np.zeros((0, index.bands), np.float32)
        starts = range(count // 15 if index.text_count[video] else 0)
        labels = [index.label[video], index.split[video], *(values[video] for values in index.columns.values())]
        means = [round(float(mean), 2) for mean in (*frames.mean((0, 1, 2)), bank.mean() if rows else 0)]
        found[name] = {
            "shapes": [*frames.shape, *bank.shape], "labels": labels, "means": means,
            "words": [reader.tokens(video, start / 2).tolist() for start in starts],
            "hash": digest({"frames": frames, "logmel": bank}),
        }  # fmt: skip
    return found | {"rejected": sorted(video.id for video in read_rejected(Folder(shards)))}


def released(path: Path, text: bool) -> dict[str, Any]:
    """Embeddings by weights in the form of the published release."""
    torch.manual_seed(0)
    trained = load_model(saved(random(Release(text)), path, "module."))
    mask = torch.arange(20) < torch.tensor([[3], [20], [1]])
    vectors = torch.randn(3, 20, 300, generator=torch.Generator().manual_seed(3)).half() * mask[..., None]
    inputs = {"video": CLIPS, "audio": BANKS, "text": Words(vectors, mask, np.zeros((3, 20), np.int64))}
    with torch.no_grad():
        embedded = {name: trained.model.embed(name, inputs[name]).numpy() for name in trained.model.modalities}
    numbers = {name: values[:, ::64].flatten().tolist() for name, values in embedded.items()}
    s = trained.inputs.statistics
    statistics = [*s.pixel_mean, *s.pixel_std, s.mel_mean, s.mel_std]
    return {"embeddings": numbers, "statistics": statistics, "hash": digest(embedded)}


def evaluate(
    checkpoint: Path, shards: Path, out: Path, protocols: tuple[str, ...], **options: Any
) -> dict[str, dict[str, list[float]]]:
    """Metrics of protocols as value, interval, chance and answers, by model and protocol."""
    asked = Downstream((checkpoint,), "drawn", shards, protocols, clips=2, jobs=1, out=out, **options)
    downstream(asked)
    found = {}
    for record in read(out / RESULTS):
        metrics = {
            name: [round(x, 6) for x in (m.value, m.low, m.high, m.chance, m.answers)]
            for name, m in record.metrics.items()
        }
        found[f"{record.model}, {record.protocol}, fold {record.fold}"] = metrics
    return found


def embedded(checkpoint: Path, shards: Path) -> dict[str, Any]:
    """Embeddings of the videos of shards."""
    rows = features(Embed(checkpoint, shards=shards, clips=2))
    numbers = {name: values[::12, ::32].flatten().tolist() for name, values in rows.features.items()}
    return {"embeddings": numbers, "hash": digest(rows.features)}


def finetuned(out: Path) -> dict[str, dict[str, list[float]]]:
    """Losses and accuracies of the epochs of an evaluation's finetuning, by fold."""
    found = {}
    for path in sorted(out.rglob("finetune.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        accuracies = [row["top-1"] for row in rows]
        found[path.parent.name.split("-")[1]] = {"losses": [row["loss"] for row in rows], "accuracies": accuracies}
    return found
