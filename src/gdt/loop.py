"""Batches for one's own training loop."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.train.experiment import Experiment
from gdt.train.loss import gdt_loss
from gdt.train.models.gdt import GDT


class Batches:
    """An iterable of batches, the same in every pass, prepared in the background."""

    def __init__(self, experiment: Experiment, index: Index, device: torch.device) -> None:
        self.settings = experiment.settings
        self.index = index
        self.device = device
        self._experiment = experiment

    @property
    def composition(self) -> Composition:
        """Its factors are an argument of `gdt_loss`, its modalities are those of the batches."""
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
        if len(embeddings) != len(batch.plan):
            raise UserError(f"there are {len(embeddings)} embeddings, and {len(batch.plan)} leaves in the batch")
        if not bool(((embeddings.norm(dim=1) - 1).abs() < 1e-2).all()):
            raise UserError("embeddings must have length 1; pass torch.nn.functional.normalize(embeddings, dim=1)")
        return gdt_loss(embeddings, batch.table, self.composition.factors, temperature)

    def network(self) -> GDT:
        """A network of this size, or of the kind of the model's, with random weights."""
        start = self._experiment.start
        if start is None:
            return GDT(self.settings.network, self.composition.modalities).to(self.device)
        return GDT(start.model.network, self.composition.modalities, start.builders).to(self.device)
