"""Evaluation protocols: a line of PROTOCOLS with the facts about each, and its function in a module of this folder.

`--help` reads the table, so it needs neither torch nor scikit-learn; functions are imported when they run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """A line of PROTOCOLS."""

    name: str
    function: str
    """Its function, as module:attribute below `gdt`; see `Evaluator.run`."""
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


_FROZEN = ("label", "folds", "gallery_split", "modalities")
_SAMPLED = (*_FROZEN, "seed", "train_samples")
_PROBED = (*_SAMPLED, "linear_c")
_TRAINED = (*_SAMPLED, "epochs", "lr", "clips_per_epoch")
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "cross-modal",
            "eval.protocols.cross_modal:cross_modal",
            ("word2vec",),
            "cross-modal",
            default=True,
            labels=False,
            pairs=True,
        ),
        Protocol("retrieval", "eval.protocols.retrieval:retrieval", _FROZEN, "neighbours", default=True),
        Protocol("few-shot", "eval.protocols.few_shot:few_shot", (*_FROZEN, "seed"), "neighbours", default=True),
        Protocol("knn", "eval.protocols.knn:knn", _FROZEN, "neighbours", default=True),
        Protocol("linear", "eval.protocols.linear:linear", _PROBED, "classifiers"),
        Protocol("svm", "eval.protocols.linear:svm", _PROBED, "classifiers"),
        Protocol("multilabel", "eval.protocols.multilabel:multilabel", (*_FROZEN, "linear_c"), "labels", several=True),
        Protocol("attentive", "eval.protocols.attentive:attentive", _TRAINED, "classifiers", trains=True),
        Protocol("finetune", "eval.protocols.finetune:finetune", _TRAINED, "classifiers", trains=True),
    )
}
"""All protocols, in the order of the tables' columns."""
