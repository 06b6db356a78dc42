"""Compositions, plans and batches for one's own training loop."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gdt.common.errors import UserError
from gdt.pipeline import notation
from gdt.pipeline.composition import Composition
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.presets import PRESETS
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import BANDS
from gdt.pipeline.transformations.base import VideoPool
from gdt.pipeline.tree import Tree
from gdt.train.experiment import Experiment
from gdt.train.loss import gdt_loss
from gdt.train.models.gdt import GDT


def composition(text: str, batch_size: int) -> Composition:
    """The composition of a preset, such as "l", or of a text as --factors takes; a batch has `batch_size` videos.

    Raises UserError, naming the factor to change, if no batch can meet the conditions of section 3.1.
    """
    factors = PRESETS[text].factors if text in PRESETS else text
    return notation.parse(factors, batch_size)


def tree(composition: Composition, starts: Sequence[int], *, clip: Clip = Clip(), fps: int = 30, seed: int = 0) -> Tree:
    """The sampling tree of a composition over videos of your own: `tree.plan(epoch, batch)` is a batch.

    `starts` is the number of frames of each video at which a clip may start. Of a plan, `plan.leaves` says what to load
    for each leaf: its video (a position in `starts`), modality, start and frames; `plan.columns` is the table for
    `gdt_loss`. Raises UserError if a batch needs more videos, or more starts of one.
    """
    counts = np.asarray(starts, np.int64)
    usable = np.flatnonzero(counts >= composition.starts_needed)
    return Tree(composition, VideoPool(usable, counts, fps), clip, BANDS, seed)


class Batches:
    """An iterable of batches, the same in every pass, prepared in the background."""

    def __init__(self, experiment: Experiment, index: Index, device: torch.device) -> None:
        self.settings = experiment.settings
        self.index = index
        self.device = device
        self._experiment = experiment

    @property
    def composition(self) -> Composition:
        """An argument of `gdt_loss`; its modalities are those of the batches."""
        return self._experiment.composition

    def __len__(self) -> int:
        """Number of batches of all epochs."""
        return self.settings.epochs * self._experiment.tree.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        experiment = self._experiment
        plans = experiment.tree.plans(0, len(self))
        loading = self.settings.loading
        with Loader(self.index, plans, experiment.inputs, self.device, loading, experiment.words) as loader:
            yield from loader

    def loss(self, embeddings: Tensor | Mapping[str, Tensor], batch: Batch, temperature: float = 0.07) -> Tensor:
        """Equation 1 for the embeddings of a batch's leaves: [n, d] in the order of `batch.inputs`, or by modality.

        Raises UserError unless they are of all leaves and have length 1.
        """
        if isinstance(embeddings, Mapping):
            missing = batch.inputs.keys() - embeddings.keys()
            if missing:
                raise UserError(f"there are no embeddings of {' and '.join(sorted(missing))}, which the batch has")
            embeddings = torch.cat([embeddings[name] for name in batch.inputs])
        return gdt_loss(embeddings, batch.table, self.composition, temperature)

    def network(self) -> GDT:
        """A network of this size, or of the kind of the model's, with random weights."""
        start = self._experiment.start
        if start is None:
            return GDT(self.settings.network, self.composition.modalities).to(self.device)
        return GDT(start.model.network, self.composition.modalities, start.model.makers).to(self.device)
