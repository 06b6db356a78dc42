"""Pretraining from settings to checkpoint: one call on each rank."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, first_line, is_out_of_memory
from gdt.common.files import is_disk_full
from gdt.common.lock import locked
from gdt.train.checkpoint import OtherRun
from gdt.train.distributed import barrier, join_ranks, together
from gdt.train.settings import Pretrain
from gdt.train.trainer import Trainer


def pretrain(settings: Pretrain) -> Path:
    """Train to the last step, from the run's checkpoint if there is one; returns the path of the checkpoint.

    Losses depend only on settings and shards: those of a killed and resumed run are the same, bit for bit on a CPU.
    Raises UserError on bad input; exits with 128 + n after a signal n.
    """
    rank, world, device = join_ranks(settings.device, settings.threads)
    with contextlib.ExitStack() as lock, report_shortage(settings):
        together(lambda: rank or lock.enter_context(_folder(settings.run_folder)))
        try:
            trainer = Trainer(settings, rank, world, device)
        except OtherRun:
            if not settings.overwrite:
                raise
            trainer = Trainer(settings, rank, world, device, fresh=True)
        if trainer.step == trainer.steps:
            trainer.say(f"{trainer.path} is trained to its last step, {trainer.steps}; nothing to do")
            return trainer.path
        trainer.train()
        barrier()  # no rank exits while another still communicates with it
        if trainer.log:
            print(trainer.log.summary())
            print(_next_steps(trainer.settings, trainer.path))
        return trainer.path


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Lock the folder of the run. Raises UserError if another run holds it, or TensorBoard cannot use it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{folder} is not UTF-8, which TensorBoard needs; set --out to another folder") from error
    with locked(folder, "set --out to another folder"):
        yield


@contextlib.contextmanager
def report_shortage(settings: Pretrain) -> Iterator[None]:
    """Context that turns a lack of memory or disk space into a UserError that says what to change."""
    before = threading.excepthook

    def show(thread: threading.ExceptHookArgs) -> None:
        """Print the traceback of a thread, unless the disk is full: then the main thread reports it."""
        if not (isinstance(thread.exc_value, OSError) and is_disk_full(thread.exc_value)):
            before(thread)

    threading.excepthook = show
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise UserError(
            f"no space left on the disk of {settings.run_folder}; free some, then run the same command to resume"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory ({first_line(error)}); resume with --gradient-cache on, or start again with a smaller "
            "--group-size"
        ) from error
    finally:
        threading.excepthook = before


def _next_steps(settings: Pretrain, path: Path) -> str:
    """Where the trained model is, and the commands that use it."""
    # the report finds evaluations below its folder only
    runs = settings.run_folder if settings.out else settings.run_folder.parent
    results = ("--out", settings.run_folder / "eval") if settings.out else ()
    words = ("--word2vec", settings.word2vec) if settings.word2vec else ()
    commands = (
        ("evaluate", "--ckpt", path, *words, *results),
        ("embed", "--ckpt", path, "--shards", settings.shard_folder),
        ("report", "--runs", runs),
    )
    return "\n  ".join([f"the trained model is in {path}", *(gdt_command(*command) for command in commands)])
