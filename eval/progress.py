"""One progress bar over runs in processes of their own, from what they write down."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdt.pipeline.shards.index import Index
from gdt.train.settings import METRICS, Pretrain

_SECONDS = 8.0
"""Between two lines where nobody watches: no log is silent for 10 seconds."""


class Progress:
    """Steps of all runs, the loss of those that run, and the time that is left for them."""

    def __init__(self, runs: Mapping[Path, Pretrain], what: str = "pretrain", more: int = 0, over: int = 0) -> None:
        """`runs` are settings by the folder of the run; so many `more` steps are of runs to `follow`, or `over`."""
        self._logs: dict[Path, LogReader] = {}
        self._steps: dict[Path, int] = {}
        self._running: dict[Path, str] = {}
        self._over, self._lock = over, threading.Lock()
        for folder, settings in runs.items():
            self.follow(folder, _steps(settings))
        self._bar = tqdm(
            total=sum(self._steps.values()) + more, initial=self._done(), unit="step", desc=what, smoothing=0.05,
            mininterval=0.0 if sys.stderr.isatty() else _SECONDS, dynamic_ncols=True,
        )  # fmt: skip

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def follow(self, folder: Path, steps: int) -> None:
        """A run of so many steps; may be called from any thread."""
        log = LogReader(folder / METRICS)
        log.read()
        with self._lock:
            self._steps[folder], self._logs[folder] = steps, log

    def refresh(self) -> None:
        """See how far the runs are; to call every second."""
        with self._lock:
            for folder, log in self._logs.items():
                if log.read():
                    step = int(log.last["step"]) + 1
                    evaluated = step >= self._steps[folder]
                    what = "being evaluated" if evaluated else f"loss {log.last['loss']:.2f}"
                    self._running[folder] = f"{folder.name}: {what}"
            self._bar.set_postfix_str(", ".join(list(self._running.values())), refresh=False)
            self._bar.update(self._done() - self._bar.n)
        if sys.stderr.isatty():
            self._bar.refresh()  # the time goes on even where no step is done

    def set_status(self, folder: Path, what: str) -> None:
        """What a run has begun to do, until its log says more; may be called from any thread."""
        self._running[folder] = f"{folder.name}: {what}"

    def finish(self, folder: Path, text: str) -> None:
        """A run is over, as if with all its steps, which is said in a line above the bar; from any thread."""
        with self._lock:
            self._over += self._steps[folder]
            del self._logs[folder]
            self._running.pop(folder, None)
        self._bar.write(text)

    def _done(self) -> int:
        return self._over + sum(int(log.last["step"]) + 1 for log in self._logs.values() if log.last)


class LogReader:
    """The last whole line of a log of JSON that another process writes, and now and then begins anew."""

    def __init__(self, path: Path) -> None:
        self.last: dict[str, Any] = {}
        self._path, self._read = path, 0

    def read(self) -> bool:
        """Whether there is a new one."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:
                    self._read = 0  # a run that goes on takes the lines after its checkpoint away
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        try:
            last = json.loads(whole.splitlines()[-1]) if whole else {}
        except ValueError:  # it was begun anew, and is as long as it was, so that this is the middle of a line
            self._read = 0
            return False
        self._read += len(whole)
        self.last = last or self.last
        return bool(last)


def _steps(settings: Pretrain) -> int:
    """How many steps a run takes."""
    return settings.steps or settings.epochs * settings.tree(Index.open(settings.shard_folder)).batches_per_epoch
