"""How good a composition is: one share of right answers, of held-out videos, by the protocols of evaluation."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.measures import Measure
from gdt.eval.protocols import Protocols
from gdt.eval.search.space import Space
from gdt.eval.settings.downstream import Downstream, Protocol
from gdt.eval.subjects import Model, folds, held_out
from gdt.pipeline.shards.index import fingerprint
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import Trained
from gdt.train.models.gdt import any_device


class Measuring:
    """The measure of a search on one split. Raises UserError, saying what is missing, where the videos are not fit."""

    def __init__(self, space: Space, split: str) -> None:
        settings, index = space.settings, space.index
        if not (index.split == split).any():
            raise UserError(
                f"{index.folder} has no videos of the split '{split}'; the same 'make preprocess' command with "
                f'ARGS="--{split} 0.1" sets some apart and decodes nothing again'
            )
        modalities = {
            name for ways in space.options.values() for way in ways for name in way.transformation.modalities(way.k)
        }
        if "audio" in modalities and not index.mel_count.any():
            raise UserError(
                f"the videos of {index.folder} have no sound, of which --factors makes a modality; name other factors, "
                "and where these have one modality left, --measure label and --baseline a"
            )
        if len(modalities) < 2 and not settings.label:
            raise UserError(
                "recall across modalities needs two of them, and no factor of --factors has two; add one that has, or "
                "set --measure to a label"
            )
        if settings.word2vec and "text" not in modalities:
            raise UserError("--word2vec has no effect: words are no modality of --factors")
        self._words = WordVectors.of(index, settings.word2vec) if "text" in modalities else None
        self._protocol: Protocol = "retrieval" if settings.label else "cross-modal"
        self._settings = Downstream(
            ckpt=(), label=settings.label, protocols=(self._protocol,), clips=settings.clips, query_split=split,
            gallery_per_class=settings.gallery_per_class if settings.label else 0, seed=settings.seed,
            word2vec=None if settings.label else settings.word2vec,
        )  # fmt: skip
        self._index = replace(index, folds=np.array([]))  # the splits as they are, with those that were trained on
        self._split, self._k = split, settings.k
        self._fold = folds(self._settings, self._index, split)[0] if settings.label else held_out(index, split)
        self._data = fingerprint(index)

    def __call__(self, trained: Trained) -> Measure:
        """R@k; across modalities the mean over the directions, with as many answers as there are videos."""
        with tempfile.TemporaryDirectory() as folder:
            protocols = Protocols(
                self._settings,
                self._index,
                self._data,
                [self._fold],
                self._split,
                any_device(),
                Path(folder),
                self._words,
            )
            model = Model("trial", Path(folder), trained, False)
            found = protocols.evaluate(model, self._protocol, self._fold, Path(folder)).measures
        some = [measure for name, measure in found.items() if name.split()[-1] == f"R@{self._k}"]
        return Measure(float(np.mean([m.value for m in some])), some[0].chance, min(m.answers for m in some))
