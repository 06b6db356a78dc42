"""One progress bar over several training processes, from their logs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdt.pipeline.shards.index import Index
from gdt.train.run import METRICS
from gdt.train.settings import Pretrain

_SECONDS = 8.0
"""Seconds between updates without a terminal, so that logs are never silent for 10 seconds."""


class Progress:
    """Progress bar with the steps of all runs and the losses of those that are running."""

    def __init__(self, runs: Mapping[Path, Pretrain]) -> None:
        """`runs` are settings by folder."""
        self._steps = {folder: _steps(settings) for folder, settings in runs.items()}
        self._logs = {folder: LogReader(folder / METRICS) for folder in runs}
        self._status: dict[Path, str] = {}
        self._finished = 0
        for log in self._logs.values():
            log.read()
        self._bar = tqdm(
            total=sum(self._steps.values()), initial=self._done(), unit="step", desc="pretrain", smoothing=0.05,
            mininterval=0.0 if sys.stderr.isatty() else _SECONDS, dynamic_ncols=True,
        )  # fmt: skip

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def refresh(self) -> None:
        """Read the logs; to be called every second."""
        for folder, log in self._logs.items():
            if log.read():
                finished = int(log.last["step"]) + 1 >= self._steps[folder]
                self.set_status(folder, "evaluating" if finished else f"loss {log.last['loss']:.2f}")
        self._bar.set_postfix_str(", ".join(list(self._status.values())), refresh=False)
        self._bar.update(self._done() - self._bar.n)
        if sys.stderr.isatty():
            self._bar.refresh()  # the clock advances even if no step was done

    def set_status(self, folder: Path, status: str) -> None:
        """Show what a run is doing until its log changes; may be called from any thread."""
        self._status[folder] = f"{folder.name}: {status}"

    def finish(self, folder: Path, text: str) -> None:
        """Count all steps of a run as done and print a line above the bar."""
        self._finished += self._steps[folder]
        del self._logs[folder]
        self._status.pop(folder, None)
        self._bar.write(text)

    def _done(self) -> int:
        return self._finished + sum(int(log.last["step"]) + 1 for log in self._logs.values() if log.last)


class LogReader:
    """Reads the last complete line of a JSON log that another process appends to, and sometimes truncates."""

    def __init__(self, path: Path) -> None:
        self.last: dict[str, Any] = {}
        self._path, self._offset = path, 0

    def read(self) -> bool:
        """Update `last`; returns whether there is a new line."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0  # a resumed run removes the lines after its checkpoint
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        try:
            last = json.loads(whole.splitlines()[-1]) if whole else {}
        except ValueError:  # it was rewritten and grew, so this is the middle of a line
            self._offset = 0
            return False
        self._offset += len(whole)
        self.last = last or self.last
        return bool(last)


def _steps(settings: Pretrain) -> int:
    return settings.schedule(settings.tree(Index.open(settings.shard_folder)).batches_per_epoch).steps
