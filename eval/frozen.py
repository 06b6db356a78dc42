"""One checkpoint's frozen features, evaluated by retrieval and few-shot classification: JSON and a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eval.features import extract
from eval.results import RANDOM, Result, to_json
from eval.retrieval import chance, few_shot, recall
from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.leaves import Clip
from pipeline.shards.index import Index, fingerprint
from pipeline.shards.layout import shard_folder
from train.checkpoint import Trained, load_model, untrained
from train.provenance import Provenance

KS = (1, 5, 20)
SHOTS = (1, 5, 20)


@dataclass(frozen=True)
class Frozen:
    """Evaluate frozen features of a checkpoint by retrieval and few-shot classification."""

    ckpt: Path
    """Checkpoint of a pretrained model."""
    dataset: str = ""
    """Preprocessed data set with labels and a train and a test split; default the one it was pretrained on."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    fold: int = 0
    """Official fold whose splits count (UCF-101 and HMDB-51 have three); 0 takes the splits as they are, fold 1."""
    gallery_split: str = "train"
    """Videos that are searched, and from which shots are drawn."""
    query_split: str = "test"
    """Videos that are classified."""
    clips: int = 10
    """Uniform clips per video, whose features are averaged."""
    gallery_per_class: int = 0
    """Use only the first so many gallery videos of each class, to save time; 0 for all."""
    random_weights: bool = False
    """Evaluate a network of the same size with random weights instead, as a baseline."""
    seed: int = 0
    """Decides which videos are the shots."""
    threads: int = 0
    """CPU threads; 0 leaves it to torch."""
    out: Path | None = None
    """Where the JSON goes; default beside the checkpoint."""

    def output(self, dataset: str) -> Path:
        """Where the JSON of an evaluation on this data set goes."""
        fold = f"-fold{self.fold}" if self.fold else ""
        name = f"frozen-{dataset}{fold}{'-random' if self.random_weights else ''}.json"
        return self.out or (self.ckpt if self.ckpt.is_dir() else self.ckpt.parent) / name


def frozen(settings: Frozen) -> Result:
    """R@k and few-shot accuracy beside their chance levels; also written as JSON.

    Raises UserError where the shards, their labels, a split or the checkpoint are missing or do not fit.
    """
    if settings.out is not None and not settings.out.parent.is_dir():
        raise UserError(f"there is no folder {settings.out.parent} to write to; set --out to a file in one there is")
    if settings.clips < 1:
        raise UserError(f"--clips is {settings.clips}; it must be 1 or more")
    if settings.gallery_split == settings.query_split:
        raise UserError(
            f"gallery and queries are both the split '{settings.query_split}', where every video finds itself; set "
            "--query-split or --gallery-split to another"
        )
    if settings.threads:
        torch.set_num_threads(settings.threads)
    trained = (untrained if settings.random_weights else load_model)(settings.ckpt)
    if trained.foreign is not None and not (settings.dataset or settings.shards):
        raise UserError(f"{settings.ckpt} is of no run of this program; say with --dataset what to evaluate it on")
    dataset = settings.dataset or trained.settings.dataset
    stored = None if settings.dataset else trained.settings.shards
    index = Index.open(shard_folder(dataset, settings.shards or stored))
    result = _evaluated(settings, trained, dataset, index)
    write_text(settings.output(dataset), to_json(result) + "\n")
    return result


def _evaluated(settings: Frozen, trained: Trained, dataset: str, index: Index) -> Result:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    provenance = Provenance.of(device)
    data = fingerprint(index)
    if settings.fold:
        index = index.fold(settings.fold)
    if trained.foreign is not None:
        print(f"{settings.ckpt} holds {trained.foreign}")
    if trained.statistics is None:
        print(f"{settings.ckpt} does not say how its inputs were normalised; those of {index.folder} are, by their own")
    index = trained.normalised(index)
    clip, scale = trained.settings.clip, trained.settings.augmentation.scale[0]
    gallery, queries, too_short = _videos(settings, index, clip)
    features = extract(trained.model, index, np.concatenate([gallery, queries]), clip, scale, settings.clips, device)
    n = len(gallery)
    train_label, test_label = index.label[gallery].astype(str), index.label[queries].astype(str)
    classes, sizes = np.unique(train_label, return_counts=True)
    return Result(
        checkpoint=settings.ckpt,
        dataset=dataset,
        preset=RANDOM if settings.random_weights else trained.name,
        step=trained.step,
        seed=trained.settings.seed,
        gallery=n,
        queries=len(queries),
        too_short=too_short,
        query_split=settings.query_split,
        fold=settings.fold,
        classes=len(classes),
        clips=settings.clips,
        recall=recall(features.maximum[n:], test_label, features.maximum[:n], train_label, KS),
        chance=chance(test_label, train_label, KS),
        few_shot={
            shots: few_shot(
                features.average[n:], test_label, features.average[:n], train_label, shots, 20, settings.seed
            )
            for shots in SHOTS
            if shots <= sizes.min()
        },
        random_weights=settings.random_weights,
        gallery_split=settings.gallery_split,
        gallery_per_class=settings.gallery_per_class,
        shots_seed=settings.seed,
        pretraining=trained.settings,
        data=data,
        provenance=provenance,
    )


def _videos(settings: Frozen, index: Index, clip: Clip) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows of the index that are searched and that are classified, and how many are left out as too short."""
    long_enough = index.start_counts(clip.frames, clip.stride) > 0
    labelled = [_labelled(index, split) for split in (settings.gallery_split, settings.query_split)]
    gallery, queries = (videos[long_enough[videos]] for videos in labelled)
    too_short = sum(len(videos) for videos in labelled) - len(gallery) - len(queries)
    if too_short:
        print(f"{too_short} videos are shorter than a clip and left out")
    if not len(gallery) or not len(queries):
        raise UserError(f"every video of a split of {index.folder} is shorter than a clip of the model")
    if settings.gallery_per_class:
        groups = [gallery[index.label[gallery] == label] for label in np.unique(index.label[gallery].astype(str))]
        gallery = np.sort(np.concatenate([group[: settings.gallery_per_class] for group in groups]))
    return gallery, queries, too_short


def _labelled(index: Index, split: str) -> np.ndarray:
    videos = np.flatnonzero((index.split == split) & (index.label != ""))
    if not len(videos):
        raise UserError(
            f"{index.folder} has no labelled videos in the split '{split}'; evaluation needs a train and a test split "
            "(folders train/ and test/ with one folder per class)"
        )
    return videos
