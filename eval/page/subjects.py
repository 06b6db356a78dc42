"""Which models are drawn: runs and whatever was evaluated, the best of every data set first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdt.common.errors import UserError
from gdt.eval.page.collect import Collected, Found, Run
from gdt.eval.record import RANDOM
from gdt.train.settings import Pretrain


@dataclass(frozen=True)
class Subject:
    """A model, with all that is known of it."""

    name: str
    """Of its run below the folder of runs, or of its file."""
    checkpoint: Path | None
    run: Run | None
    found: tuple[Found, ...]
    """Its results, the latest first."""

    @property
    def settings(self) -> Pretrain | None:
        return self.run.settings if self.run else self.found[0].result.pretraining

    @property
    def dataset(self) -> str:
        return self.found[0].result.dataset if self.found else self.run.dataset if self.run else ""

    @property
    def shards(self) -> Path | None:
        """Of the data set that it was evaluated on, or learned from."""
        if self.found:
            return self.found[0].result.shards
        return self.settings.shard_folder if self.settings else None

    @property
    def score(self) -> float:
        """What it is ranked by within a data set: R@1 of retrieval, or else its first figure; -1 without any."""
        ranked = sorted(self.found, key=lambda found: found.result.protocol != "retrieval")
        return next(iter(ranked[0].result.measures.values())).value if ranked else -1.0


def subjects(collected: Collected) -> list[Subject]:
    """All models there are, by name."""
    runs = {run.folder.resolve(): run for run in collected.runs}
    owned: dict[Path, list[Found]] = {folder: [] for folder in runs}
    others: dict[tuple[str, Path], list[Found]] = {}
    for found in (found for evaluation in collected.evaluations for found in evaluation.found):
        row = found.result
        if row.model == RANDOM:
            continue
        folder = row.checkpoint.resolve()
        folder = folder if folder in runs else folder.parent
        if folder not in runs:  # it may have been moved since, and its settings with it
            folder = next(
                (p for p, run in runs.items() if run.settings == row.pretraining and p.name == row.model), folder
            )
        place = owned.get(folder)
        (others.setdefault((row.model, row.checkpoint), []) if place is None else place).append(found)
    made = [Subject(run.name, run.checkpoint, run, _latest(owned[folder])) for folder, run in runs.items()]
    for (name, path), results in others.items():
        made.append(Subject(name, path if path.exists() else None, None, _latest(results)))
    return sorted(made, key=lambda subject: subject.name)


def _latest(found: Iterable[Found]) -> tuple[Found, ...]:
    return tuple(sorted(found, key=lambda each: each.result.provenance.started, reverse=True))


def chosen(all_of_them: Sequence[Subject], named: Sequence[str], most: int) -> list[Subject]:
    """Those that are named, or the best of every data set in turn. Raises UserError where one that is named is not
    there.
    """
    if named:
        by_name = {Path(subject.name).name: subject for subject in all_of_them}
        by_name |= {subject.name: subject for subject in all_of_them}
        if unknown := [name for name in named if name not in by_name]:
            there = ", ".join(subject.name for subject in all_of_them)
            raise UserError(f"there is no model '{unknown[0]}'; set --figures-of to some of {there}")
        return list({by_name[name].name: by_name[name] for name in named}.values())
    ranked: list[tuple[int, str, Subject]] = []
    for dataset in sorted({subject.dataset for subject in all_of_them}):
        own = [subject for subject in all_of_them if subject.dataset == dataset]
        own.sort(key=lambda subject: (-subject.score, subject.name))
        ranked += [(place, dataset, subject) for place, subject in enumerate(own)]
    return [subject for _, _, subject in sorted(ranked, key=lambda row: row[:2])[:most]]
