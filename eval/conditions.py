"""What decides the numbers of a protocol: which settings, and the digest by which results are found again."""

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gdt.eval.folds import Fold
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.eval.subjects import EvalSet
from gdt.pipeline.word2vec import WordVectors

_FEATURES = 6
"""Version of features; increase it when they change, and those of the protocols that use them."""
_RESOLVED = ("folds", "word2vec")
"""Settings that the digests of the fold and of the words stand for."""


def only_decisive(settings: Downstream, protocol: str) -> Downstream:
    """The settings, with those that do not decide a protocol's numbers at their defaults."""
    used = {"clips", *PROTOCOLS[protocol].settings}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(settings) if field.name not in used}
    return replace(settings, **defaults)


def decisive_settings(settings: Downstream, protocol: str) -> dict[str, Any]:
    """The settings that decide a protocol's numbers, besides model, videos and words."""
    return {name: getattr(settings, name) for name in ("clips", *PROTOCOLS[protocol].settings) if name not in _RESOLVED}


def conditions_of(
    settings: Downstream, protocol: str, eval_set: EvalSet, fold: Fold, device: str, words: WordVectors | None
) -> str:
    """Digest of all that decides a protocol's numbers on a fold, besides the model."""
    videos = eval_set.fingerprint, eval_set.split, fold.digest, words_of(protocol, words)
    version = PROTOCOLS[protocol].version
    return _digest([version, protocol, decisive_settings(settings, protocol), videos, device])


def words_of(protocol: str, words: WordVectors | None) -> str:
    """Checksum of the word vectors that a protocol uses; empty without."""
    return words.checksum if words and "word2vec" in PROTOCOLS[protocol].settings else ""


def features_path(folder: Path, fingerprint: str, clips: int, device: str, modality: str = "video") -> Path:
    """The file of a model's features in its folder, by shards, clips, type of device (cpu or cuda) and modality."""
    return folder / f"features-{modality}-{_digest([_FEATURES, fingerprint, clips, device])}.npz"


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
