"""`gdt pretrain`: checks that need no torch, then the run, as one process or as a rank that torchrun started."""

from __future__ import annotations

import os
from typing import Any

from gdt.common.errors import UserError, exit_with_message
from gdt.pipeline.shards.index import Index
from gdt.train.settings import Pretrain


def pretrain(settings: Pretrain) -> None:
    """Pretrain. Raises UserError on bad input, before seconds of imports where possible."""
    if "RANK" not in os.environ:
        _require_data(settings)
        from gdt.train.pretrain import pretrain

        pretrain(settings)
        return
    from gdt.train.distributed import leave_without_teardown
    from gdt.train.pretrain import pretrain

    status: Any = 0
    try:
        exit_with_message(lambda: pretrain(settings))
    except SystemExit as end:
        status = end.code
    leave_without_teardown(status)


def _require_data(settings: Pretrain) -> None:
    """Raise UserError if the composition is invalid, or the shards are missing or do not suit it."""
    _ = settings.composition  # raises UserError
    index = Index.open(settings.shard_folder)
    notes: list[str] = []
    try:
        settings.with_batch_size(index).tree(index, notes.append)
    except UserError:
        print(*notes, sep="\n", end="\n" * len(notes))  # such as the number of videos that are too short
        raise
