"""Published results, shown in the tables next to ours."""

from collections.abc import Sequence

from gdt.eval.protocols import PROTOCOLS

Reported = dict[str, dict[str, float]]
"""Percent, by row and column of a table."""

PAPER: dict[str, dict[str, Reported]] = {
    "ucf101": {
        "retrieval": {"paper: GDT, K-400 (split 1)": {"R@1": 62.8, "R@5": 79.0}},
        "few-shot": {
            "paper: GDT, K-400 (split 1)": {"1-shot": 26.7, "5-shot": 44.6},
            "paper: random weights": {"1-shot": 2.3, "5-shot": 4.6},
        },
        "linear": {"SEVERE: GDT, K-400": {"linear top-1": 75.7}},
        "finetune": {
            "paper: GDT, K-400": {"finetune top-1": 90.9},
            "paper: GDT, HT100M": {"finetune top-1": 94.1},
            "paper: GDT, IG65M": {"finetune top-1": 95.2},
            "paper: supervised, K-400": {"finetune top-1": 94.2},
            "SEVERE: GDT, K-400": {"finetune top-1": 91.3},
        },
    },
    "hmdb51": {
        "retrieval": {"paper: GDT, K-400 (split 1)": {"R@1": 26.1, "R@5": 51.7}},
        "few-shot": {
            "paper: GDT, K-400 (split 1)": {"1-shot": 14.3, "5-shot": 15.4},
            "paper: random weights": {"1-shot": 3.0, "5-shot": 3.5},
        },
        "finetune": {
            "paper: GDT, K-400": {"finetune top-1": 62.3},
            "paper: GDT, HT100M": {"finetune top-1": 67.4},
            "paper: GDT, IG65M": {"finetune top-1": 72.8},
            "paper: supervised, K-400": {"finetune top-1": 65.1},
        },
    },
    "esc50": {
        "svm": {
            "CrissCross, Kinetics-Sound": {"SVM top-1": 82.8},
            "CrissCross, K-400": {"SVM top-1": 86.8},
            "CrissCross, AudioSet": {"SVM top-1": 90.5},
        }
    },
}
"""By data set and protocol: tables 3 and 4, results of the SEVERE benchmark with the published K-400 weights, and, on
ESC-50, for which the paper has none, of CrissCross (Sarkar and Etemad 2023; its README)."""
VIDEOS = {"ucf101": (9537, 3696), "hmdb51": (3570, 1530), "esc50": (1600, 400)}
"""Training and test videos of the smallest official fold of each data set."""
_COMPLETE = 0.95
"""Share of these that an evaluation must have to stand beside published results; some files may be damaged."""
SOUND = {"esc50"}
"""Data sets whose published results are those of audio networks."""
SAMPLED: dict[str, dict[str, Reported]] = {
    "ucf101": {"finetune": {"SEVERE: GDT, K-400, 1,000 samples": {"finetune top-1": 77.8}}}
}
"""Published results with --train-samples 1000."""


def reported(dataset: str, protocols: Sequence[str], train_samples: int, queries: int, gallery: int) -> Reported:
    """Published results of some protocols with this number of training samples (0: all) on a data set.

    None with far fewer queries or gallery videos than it has, as of a part of it, or of other videos in its layout;
    `gallery` is 0 where there are only samples of it.
    """
    rows: Reported = {}
    train, test = VIDEOS.get(dataset, (0, 0))
    if queries < _COMPLETE * test or 0 < gallery < _COMPLETE * train:
        return rows
    for protocol in protocols:
        sampled = train_samples and "train_samples" in PROTOCOLS[protocol].settings
        if sampled and train_samples != 1000:
            continue
        published = SAMPLED if sampled else PAPER
        for row, values in published.get(dataset, {}).get(protocol, {}).items():
            rows.setdefault(row, {}).update(values)
    return rows
