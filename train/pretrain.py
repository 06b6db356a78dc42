"""`gdt pretrain`: from settings to a checkpoint, as one process or as one of the ranks that torchrun started."""

import contextlib
import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, exit_with_message, explain_out_of_memory
from gdt.common.files import locked
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.train import checkpoint
from gdt.train.distributed import Process, barrier, join_ranks, leave_without_teardown, together
from gdt.train.experiment import resolve
from gdt.train.models.own import Makers, NetworkLike, makers
from gdt.train.settings import Pretrain
from gdt.train.trainer import Trainer, describe


def command(settings: Pretrain) -> None:
    threading.excepthook = _show
    if "RANK" not in os.environ:
        pretrain(settings)
        return
    status: Any = 0
    try:
        exit_with_message(lambda: pretrain(settings))
    except SystemExit as end:
        status = end.code
    leave_without_teardown(status)


def _show(thread: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread; not of TensorBoard's on a full disk, of which the main thread reports."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)


def pretrain(settings: Pretrain, networks: Mapping[str, Sequence[NetworkLike]] = MappingProxyType({})) -> Path:
    """Train to the last step, from the run's checkpoint if there is one; returns the path of the checkpoint.

    Losses depend only on settings and shards: those of a killed and resumed run are the same, bit for bit on a CPU.
    `networks`: the user's own by modality, besides those in the settings. Raises UserError on bad input; exits with
    128 + n after a signal n.
    """
    if settings.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("--wandb needs the package wandb; run 'pip install wandb', or leave the option out")
    process = join_ranks(settings.device, settings.threads)
    advice = "set --gradient-cache on, or a smaller --group-size"
    with contextlib.ExitStack() as lock, explain_out_of_memory(advice):
        folder = locked(settings.run_folder, "set --out to another folder")
        together(lambda: lock.enter_context(folder) if process.rank == 0 else None)
        trainer = _trainer(settings, process, makers({**settings.own_networks.given, **networks}))
        if trainer.step == trainer.steps:
            if process.rank == 0:
                print(f"{trainer.path} is trained to its last step, {trainer.steps}; nothing to do")
            return trainer.path
        summary = trainer.train()
        barrier()  # no rank exits while another still communicates with it
        if summary:
            more = ["--word2vec", settings.word2vec] if settings.word2vec else []
            for modality, (text,) in settings.own_networks.given.items():
                more += [f"--{modality}-network", text]
            evaluate = gdt_command("evaluate", "--ckpt", trainer.path, *more)
            if networks:
                evaluate = f'gdt.evaluate("{trainer.path}", …) with the same networks'
            print(f"{summary}\nthe trained model is in {trainer.path}; evaluate it with:\n  {evaluate}")
        return trainer.path


def _trainer(settings: Pretrain, process: Process, given: Makers) -> Trainer:
    """A new run, or the one in its folder unless that is to be overwritten.

    `given` are networks of the user's own. Raises UserError if the folder holds a run that this one cannot continue,
    and on bad input.
    """
    index = Index.open(settings.shard_folder, settings.cache)
    state = None if settings.overwrite else checkpoint.read_run(settings.run_folder)
    earlier = None
    if state:
        checkpoint.require_same_shards(state.record, fingerprint(index), settings.run_folder)
        earlier = state.record.settings
    start = checkpoint.load_model(settings.init, given) if settings.init else None
    say = partial(describe, process.rank)
    experiment = resolve(settings, index, process.device, earlier, start, given, say)
    return Trainer(experiment, index, process, state)
