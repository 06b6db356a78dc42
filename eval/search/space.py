"""The search space: compositions of the given factors as parameters that Optuna draws."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from gdt.common.errors import UserError
from gdt.eval.ablation.settings import CLIPS_PER_STEP
from gdt.eval.search.settings import Search
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition, Contrast, Factor, Weight
from gdt.pipeline.shards.index import Index
from gdt.train.settings import SIZES, Pretrain

POSITION = "position of "
"""Prefix of the parameters that order the factors, the lowest first."""
RUNS = "runs"
_AUGMENTATIONS = ("augmentation:i:1", "augmentation:i:2")
"""Compositions of one modality need the second."""


@dataclass(frozen=True)
class Space:
    """All compositions of the factors of a search.

    Every trial draws every parameter, so that all trials contribute to the importance of each.
    """

    settings: Search
    index: Index

    def with_clips(self) -> Space:
        """With the default of --clips-per-step filled in, lowered if the baseline can use too few videos for it."""
        settings, clips = self.settings, CLIPS_PER_STEP
        if settings.clips_per_step or settings.batch_size:
            return self
        with contextlib.suppress(UserError):  # later checks explain unusable videos
            baseline = presets.preset(settings.baseline).factors
            most = self._usable(baseline) * self._parse(baseline).clips_per_video
            clips = min(clips, most - most % 8 or most)  # a multiple of most compositions' clips per video
        return replace(self, settings=replace(settings, clips_per_step=clips))

    @cached_property
    def options(self) -> dict[str, tuple[Factor, ...]]:
        """Options of each factor: not varied, or each K in both contrasts; modalities also with the cross-modal weight.

        Raises UserError for an unknown factor or an invalid K.
        """
        options: dict[str, tuple[Factor, ...]] = {}
        for entry in self.settings.factors:
            name, _, typed = entry.partition(":")
            ks = [int(k) if k.isdecimal() else 0 for k in typed.split(",")] if typed else []
            if entry == "video" or name == "augmentation":
                raise UserError(f"--factors: leave out '{name}', which is part of every composition that is tried")
            if name == "video" or min(ks, default=2) < 2:
                raise UserError(
                    f"--factors: cannot read '{entry}'; list factors, each with the K to try (2 or more), as in "
                    "time_shift:2,4 modality; the search chooses contrasts and order"
                )
            # two augmentations make a composition with any other factor valid
            plain = self._parse(f"video:d {name}:i:1 augmentation:i:2").factors[1]
            transformation = plain.transformation
            if plain.name in options:
                raise UserError(f"--factors names '{plain.name}' twice")
            ks = ks or [transformation.size() or 2]
            ways = [plain]
            for k in ks:
                if why := transformation.refuses(k):
                    raise UserError(f"--factors: K = {k} in '{entry}': {why}")
                if len(transformation.modalities(k)) > 1:
                    ways.append(replace(plain, k=k, weight=Weight.DIFFERS))
                ways += [replace(plain, k=k, contrast=each) for each in (Contrast.INVARIANT, Contrast.DISTINCTIVE)]
            if len(transformation.modalities(max(ks))) > 1 and not self.settings.label:
                ways.remove(plain)  # recall compares modalities, so it needs two
            options[plain.name] = tuple(ways)
        return options

    def _parse(self, text: str) -> Composition:
        custom = self.settings.factors_from
        return notation.parse(text, 2, known=notation.load_factors(custom) if custom else notation.TRANSFORMATIONS)

    @cached_property
    def parameters(self) -> dict[str, BaseDistribution]:
        """An option and a position per factor, and the augmentation."""
        last = max(1, len(self.options) - 1)
        return {
            **{name: CategoricalDistribution([str(way) for way in ways]) for name, ways in self.options.items()},
            **{POSITION + name: IntDistribution(0, last) for name in self.options},
            "augmentation": CategoricalDistribution(_AUGMENTATIONS),
        }

    def text(self, parameters: Mapping[str, str | int]) -> str:
        """The composition in the notation of pretraining's `--factors`, without factors that have no effect."""
        names = sorted(self.options, key=lambda name: int(parameters[POSITION + name]))
        drawn = [way for name in names for way in self.options[name] if str(way) == parameters[name]]
        return " ".join(["video:d", *_with_effect(drawn), str(parameters["augmentation"])])

    def of_preset(self, name: str) -> dict[str, str | int]:
        """The parameters of a preset. Raises UserError if it is outside the space."""
        _, *others, last = presets.composition(name, 2).factors
        chosen = {factor.name: str(factor) for factor in others}
        parameters: dict[str, str | int] = {"augmentation": str(last)}
        for factor, ways in self.options.items():
            texts = [str(way) for way in ways]
            parameters[factor] = chosen[factor] if chosen.get(factor) in texts else texts[0]
            parameters[POSITION + factor] = [*chosen].index(factor) if factor in chosen else len(self.options) - 1
        wanted = " ".join(["video:d", *_with_effect(others), str(last)])
        if str(last) not in _AUGMENTATIONS or self.text(parameters) != wanted:
            raise UserError(
                f"--baseline {name} ('{wanted}') is outside the search; choose another preset, or change --factors or "
                "--metric"
            )
        return parameters

    def folder(self, text: str) -> Path:
        """Folder of a composition's run, named by a digest."""
        return self.settings.folder / RUNS / hashlib.sha256(text.encode()).hexdigest()[:10]

    def _videos(self, clips: int) -> int:
        """Videos per step that fill --clips-per-step. Raises UserError if there are none or only one."""
        videos, left = divmod(self.settings.clips_per_step, clips)
        if left or videos < 2:
            raise UserError(
                f"it uses {clips} clips per video; set --clips-per-step (now {self.settings.clips_per_step}) to "
                f"{2 * clips} or another multiple of {clips}"
            )
        return videos

    def _run(self, text: str, videos: int) -> Pretrain:
        settings = self.settings
        return replace(
            SIZES[settings.size][1], dataset=settings.dataset, shards=self.index.folder, factors=text,
            factors_from=settings.factors_from, batch_size=videos, epochs=0, steps=settings.steps, seed=settings.seed,
            checkpoint_steps=-(-settings.steps // settings.looks), out=self.folder(text),
        )  # fmt: skip

    def _usable(self, text: str) -> int:
        """Number of videos that a composition can use. Raises UserError if they are too few for any batch."""
        return len(self._run(text, 2).tree(self.index).source.videos)

    def pretraining(self, text: str) -> Pretrain:
        """The run of a composition. Raises UserError, naming what to change, if it cannot be trained."""
        settings, clips = self.settings, self._parse(text).clips_per_video
        videos = settings.batch_size or self._videos(clips)
        run = self._run(text, videos)
        try:
            run.tree(self.index)
        except UserError as error:
            if settings.batch_size or videos <= (usable := self._usable(text)):
                raise
            raise UserError(
                f"a batch takes {videos} videos but only {usable} can be used; set --clips-per-step to "
                f"{usable * clips} or less"
            ) from error
        if len(run.composition.modalities) < 2 and not settings.label:
            raise UserError("it has one modality, and recall between modalities needs two")
        return run


def _with_effect(factors: Sequence[Factor]) -> list[str]:
    """The factors without those that have the same value everywhere; the start of a clip varies even at K = 1."""
    return [str(factor) for factor in factors if factor.k > 1 or not factor.transformation.takes_all(1)]
