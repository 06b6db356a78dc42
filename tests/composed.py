"""Compositions of presets."""

from __future__ import annotations

from gdt.pipeline.composition import Composition
from gdt.pipeline.notation import parse
from gdt.pipeline.presets import preset
from gdt.pipeline.transformations.augmentation import Augmentation


def composed(name: str, videos: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The composition of a preset."""
    return parse(preset(name).factors, videos, augmentation)
