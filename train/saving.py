"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class Saver:
    """Writes one checkpoint at a time beside the training; used as a context, it is left once all is on the disk."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None:  # which is not kept waiting for by another reason to end
            self._thread.join()

    def start(self, write: Callable[[Any], None], state: Any) -> None:
        """Write a copy of the state as it is now, once the one before is written. Raises what that one raised."""
        self.wait()
        copy = copied(state)

        def run() -> None:
            try:
                write(copy)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise what writing has raised, if it has."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Until the newest is written. Raises what that has raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()


def copied(state: Any) -> Any:
    """With all tensors copied to memory of the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state
