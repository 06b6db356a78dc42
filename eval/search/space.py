"""The compositions of given factors, as parameters that Optuna draws, and which of them cannot be trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from gdt.common.errors import UserError
from gdt.eval.search.settings import Search
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight
from gdt.pipeline.shards.index import Index
from gdt.train.settings import SIZES, Pretrain

PLACE = "place of "
"""Before the name of a factor: the parameter by which the factors are ordered, the lowest first."""
RUNS = "runs"
_LAST = "augmentation"
Parameters = Mapping[str, str | int]


@dataclass(frozen=True)
class Space:
    """All compositions of the factors of a search.

    Every parameter is drawn in every trial, also the place of a factor that is not varied, since only so the importance
    of each can be told from all trials.
    """

    settings: Search
    index: Index

    @cached_property
    def options(self) -> dict[str, tuple[Factor, ...]]:
        """By the factor's name, how it may take part: not varied, or with each K in both contrasts; modalities with
        the cross-modal weight, too. Raises UserError where there is no such factor.
        """
        found: dict[str, tuple[Factor, ...]] = {}
        for entry in self.settings.factors:
            name, _, typed = entry.partition(":")
            # with two augmentations, any one factor makes a composition
            plain = self._parsed(f"video:d {name}:i:1 augmentation:i:2").factors[1]
            transformation = plain.transformation
            if plain.name in found:
                raise UserError(f"--factors: factor '{plain.name}' occurs twice; each may occur once")
            ks = [int(k) if k.isdecimal() else 0 for k in typed.split(",")] if typed else [transformation.size() or 2]
            if min(ks) < 2:
                raise UserError(
                    f"--factors: '{entry}' cannot be read; after the name of a factor come a colon and how many of its "
                    "values a batch may hold, 2 or more, as in time_shift:2,4; not to vary it is always tried"
                )
            ways = [plain]
            for k in ks:
                if why := transformation.refuses(k):
                    raise UserError(f"--factors: '{entry}' has the K {k}; {why}")
                if len(transformation.modalities(k)) > 1:
                    ways.append(replace(plain, k=k, weight=Weight.DIFFERS))
                ways += [replace(plain, k=k, contrast=each) for each in (Contrast.INVARIANT, Contrast.DISTINCTIVE)]
            compared = len(transformation.modalities(max(ks))) > 1 and not self.settings.label
            found[plain.name] = tuple(ways[compared:])  # recall compares modalities, so it needs two
        return found

    def _parsed(self, text: str) -> Composition:
        return notation.parse(text, 2, known=self._known)

    @cached_property
    def _known(self) -> notation.Transformations:
        own = self.settings.factors_from
        return notation.load_factors(own) if own else notation.TRANSFORMATIONS

    @cached_property
    def parameters(self) -> dict[str, BaseDistribution]:
        """What is drawn: how each factor takes part, its place, and the number of augmentations."""
        last = max(1, len(self.options) - 1)
        return {
            **{name: CategoricalDistribution([str(way) for way in ways]) for name, ways in self.options.items()},
            **{PLACE + name: IntDistribution(0, last) for name in self.options},
            _LAST: CategoricalDistribution(self._last),
        }

    @property
    def _last(self) -> list[str]:
        return [f"{_LAST}:i:{k}" for k in self.settings.augmentations]

    def text(self, parameters: Parameters) -> str:
        """The composition, as `make pretrain FACTORS=` takes it.

        A factor that is not varied and so has its first value everywhere stands at the end: its place changes nothing.
        (The start of a clip is drawn even where it is not varied, so there the place counts.)
        """
        names = sorted(self.options, key=lambda name: int(parameters[PLACE + name]))  # stable: else as they were given
        still = [name for name, ways in self.options.items() if _plain(ways[0]) and parameters[name] == str(ways[0])]
        drawn = [name for name in names if name not in still]
        return " ".join(["video:d", *(str(parameters[name]) for name in [*drawn, *still, _LAST])])

    def of_preset(self, name: str) -> dict[str, str | int]:
        """The parameters that give a preset. Raises UserError where it is none of these compositions."""
        composition = presets.composition(name, 2)
        own = {factor.name: str(factor) for factor in composition.factors if factor.name in self.options}
        found: dict[str, str | int] = {_LAST: str(composition.factors[-1])}
        for one, ways in self.options.items():
            texts = [str(way) for way in ways]
            found[one] = own[one] if own.get(one) in texts else texts[0]
            found[PLACE + one] = [*own].index(one) if one in own else len(self.options) - 1
        if found[_LAST] not in self._last or self.shown(self.text(found)) != self.shown(str(composition)):
            raise UserError(
                f"--baseline {name}, which is '{composition}', is none of the compositions that are searched; set it "
                f"to another of --preset help, or change --factors ({' '.join(self.settings.factors)}), "
                "--augmentations or --metric"
            )
        return found

    def shown(self, text: str) -> str:
        """A composition without what is the same as if it were not there, for tables."""
        return " ".join(str(factor) for factor in self._parsed(text).factors[1:] if not _plain(factor))

    def folder(self, text: str) -> Path:
        """Of the run of a composition, by its digest."""
        return self.settings.folder / RUNS / hashlib.sha256(text.encode()).hexdigest()[:10]

    def pretraining(self, text: str) -> Pretrain:
        """The run of a composition. Raises UserError, naming what to change, where it cannot be trained."""
        settings = self.settings
        clips = self._parsed(text).clips_per_video
        videos, left = divmod(settings.clips_per_step, clips)
        if left or videos < 2:
            raise UserError(
                f"it takes {clips} clips of a video, and --clips-per-step {settings.clips_per_step} is not 2 or more "
                "times that"
            )
        run = replace(
            SIZES[settings.size][1], dataset=settings.dataset, shards=self.index.folder, factors=text,
            factors_from=settings.factors_from, batch_size=videos, bn_group_size=settings.bn_group_size, epochs=0,
            steps=settings.steps, checkpoint_steps=-(-settings.steps // settings.looks), seed=settings.seed,
            out=self.folder(text),
        )  # fmt: skip
        if "text" in run.composition.modalities:
            run = replace(run, word2vec=settings.word2vec)
        run.tree(self.index)
        if len(run.composition.modalities) < 2 and not settings.label:
            raise UserError("it has one modality, and recall across modalities needs two")
        return run


def _plain(factor: Factor) -> bool:
    """Whether a factor is not varied and so has its first value everywhere, as if it were not there."""
    return factor.k == 1 and factor.transformation.takes_all(1)
