"""Evaluation protocols: a line of PROTOCOLS with the facts about each, and its function in a module of its name.

`--help` reads the table, so it needs neither torch nor scikit-learn; functions are imported when they run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """A line of PROTOCOLS."""

    name: str
    settings: tuple[str, ...]
    """Fields of `Downstream` that decide its numbers, besides `clips`; it sees no others."""
    table: str
    """Protocols with the same value share a table."""
    default: bool = False
    """Whether it is evaluated when --protocols is not set and models and data fit."""
    labels: bool = True
    """Whether it needs a gallery and labels."""
    several: bool = False
    """Whether a video may have any number of labels, also none; else it has one."""
    pairs: bool = False
    """Whether the model and the videos need two modalities."""
    trains: bool = False
    """Whether it trains a network, in its own process."""
    version: int = 7
    """Increase it when the same settings give other numbers, also by constants in the code."""

    @property
    def function(self) -> str:
        """Its function, as module:attribute below `gdt`; `eval.downstream` calls it."""
        name = self.name.replace("-", "_")
        return f"eval.protocols.{name}:{name}"


_FROZEN = ("label", "folds", "gallery_split", "modalities")
_SAMPLED = (*_FROZEN, "seed", "train_samples")
_PROBED = (*_SAMPLED, "linear_c")
_TRAINED = (*_SAMPLED, "epochs", "lr", "clips_per_epoch")
PROTOCOLS = {
    facts.name: facts
    for facts in (
        Protocol("cross-modal", ("word2vec",), "cross-modal", default=True, labels=False, pairs=True),
        Protocol("retrieval", _FROZEN, "neighbours", default=True),
        Protocol("few-shot", (*_FROZEN, "seed"), "neighbours", default=True),
        Protocol("knn", _FROZEN, "neighbours", default=True),
        Protocol("linear", _PROBED, "classifiers"),
        Protocol("svm", _PROBED, "classifiers"),
        Protocol("multilabel", (*_FROZEN, "linear_c"), "labels", several=True),
        Protocol("finetune", _TRAINED, "classifiers", trains=True),
    )
}
"""All protocols, in the order of the tables' columns."""
