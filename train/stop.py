"""Signals that ask a run to stop."""

from __future__ import annotations

import signal
import threading
from typing import Any


class StopSignal:
    """While entered, remembers SIGTERM, SIGUSR1 or Ctrl-C until the step is done; Ctrl-C twice stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # no other can say what becomes of signals
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
