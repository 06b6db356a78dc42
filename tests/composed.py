"""Compositions of presets, and inputs of models."""

from gdt.pipeline.composition import Composition
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Clip
from gdt.pipeline.notation import parse
from gdt.pipeline.presets import preset
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augmentation


def composed(name: str, videos: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The composition of a preset."""
    return parse(preset(name).factors, videos, augmentation)


def inputs_of(index: Index, clip: Clip, augmentation: Augmentation = Augmentation()) -> Inputs:
    """Those of a model that is trained on these shards."""
    return Inputs(clip, augmentation, index.statistics)
