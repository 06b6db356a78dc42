"""Runs with killed workers, and with a real scheduler."""

import contextlib
import errno
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.eval.embed import embed
from gdt.eval.settings import Embed
from gdt.preprocess import cluster
from gdt.preprocess import stage as stage_module
from gdt.preprocess import worker as worker_module
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.settings import Preprocess
from tests.conftest import ROOT, few, preprocess
from tests.preprocess.media import Fake, assert_gone
from tests.preprocess.test_stage import digests
from tests.train.runs import wait_until

ON_PROCESSES = "from gdt.preprocess import cluster; cluster._FEW = cluster._FEW_WORKERS = 0; "
PYTHON = (sys.executable, "-c", f"{ON_PROCESSES}from gdt.cli import console; console()")
DASK = (sys.executable, "-m", "dask")


@pytest.fixture(scope="module")
def videos(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """21 videos, three of them unusable: a run of a few seconds."""
    folder = tmp_path_factory.mktemp("many")
    for path in sorted(synthetic.rglob("*.mp4"))[::2]:
        shutil.copy(path, folder)
    broken = sorted(folder.iterdir())[::10]
    for path in broken:
        path.write_bytes(path.read_bytes()[:3000])
    return folder


@pytest.fixture(scope="module")
def undisturbed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of an undisturbed run in threads."""
    folder = tmp_path_factory.mktemp("undisturbed")
    summary = preprocess(Preprocess("folder", videos, folder, videos_per_shard=2))
    assert (summary.kept, summary.shards_made) == (18, 11)
    return folder


def fails(calls: Path) -> None:
    with calls.open("a") as file:
        file.write("called\n")
    raise UserError("the disk is full")


def kills_its_worker(calls: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_raises_is_not_repeated_and_one_that_kills_names_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_FEW_WORKERS", 0)
    with cluster.connect("", 1, cluster._FEW + 1) as client:
        with pytest.raises(UserError, match="the disk is full"):
            list(cluster.map_unordered(client, fails, [tmp_path / "calls"], 1))
        assert (tmp_path / "calls").read_text() == "called\n"
        with pytest.raises(UserError, match=rf"4 workers died on {tmp_path}, the last at tcp://127.0.0.1:\d+; check"):
            list(cluster.map_unordered(client, kills_its_worker, [tmp_path], 1))


@pytest.mark.parametrize("room", [1, 2, 9])
def test_threads_begin_no_task_before_there_is_room(room: int) -> None:
    """Where that of a result is free once the next is asked for."""
    begun: list[int] = []
    with cluster.Threads(4) as threads:
        results = cluster.map_unordered(threads, begun.append, range(9), 4, lambda tasks: len(tasks) <= room)
        for taken, _ in enumerate(results):
            assert len(begun) <= taken + min(room, 4)
    assert sorted(begun) == [*range(9)]


def test_the_error_of_a_worker_names_its_host(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node17")
    for error, said in ((UserError("no ffmpeg"), "no ffmpeg"), (OSError(errno.EIO, "no disk"), "cannot write"),
                        (OSError(errno.ENOSPC, "full"), "no space left on the disk of")):  # fmt: skip
        monkeypatch.setattr(worker_module, "require_tools", Mock(side_effect=error))
        with pytest.raises(UserError, match=f"^node17: {said}"):
            preprocess(Preprocess("folder", videos, tmp_path / "shards"))


@pytest.mark.slow
def test_a_worker_with_another_disk_is_named(
    videos: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own folder of that name, or none."""
    settings = Preprocess("folder", videos, tmp_path / "shards", videos_per_shard=2, workers=1)
    (tmp_path / "its-own").mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: "node17")
    for elsewhere, said in (
        ("its-own", "has written shard-000000.h5, but not to .*shards here"),
        ("none", ": it does"),
    ):

        def elsewhere_made(task: ShardTask, folder: Path = tmp_path / elsewhere) -> worker_module.MadeShard:
            return worker_module.make_shard(replace(task, destination=Folder(folder)))

        monkeypatch.setattr(stage_module, "make_shard", elsewhere_made)
        for _ in range(2):
            with pytest.raises(UserError, match=f"^node17 ?{said}.*all machines must see the same folder"):
                preprocess(settings)
            # an earlier one, of other videos
            shutil.copy(undisturbed / "shard-000001.h5", tmp_path / "shards" / "shard-000000.h5")


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command in its own process group, which is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def popen(*command: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*map(str, command)], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield popen
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stage(videos: Path, folder: Path, *more: object) -> tuple[object, ...]:
    source = ("--layout", "folder", "--source", videos)
    return (*PYTHON, "preprocess", *source, "--destination", folder, "--videos-per-shard", 2, *more)


def scheduler(start: Start) -> tuple[subprocess.Popen[str], str]:
    """`dask scheduler` as the README says, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    process = start(*DASK, "scheduler", "--host", address, "--dashboard-address", "127.0.0.1:0")

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0

    wait_until(answers)
    return process, address


def worker(start: Start, address: str) -> subprocess.Popen[str]:
    return start(*DASK, "worker", address, "--nthreads", 1, "--memory-limit", 0, "--no-dashboard")


def test_daemonic_processes_decode_in_threads(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at once, as in a Pool, a web server or Celery; also many videos."""
    settings = [Preprocess("folder", videos, tmp_path / name, videos_per_shard=2) for name in "ab"]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert [summary.kept for summary in pool.map(preprocess, settings)] == [18, 18]
    monkeypatch.setattr(cluster, "current_process", lambda: SimpleNamespace(daemon=True))
    with cluster.connect("", 9, 10**6) as client:
        assert isinstance(client, cluster.Threads)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_ffmpegs_of_threads(
    start: Start, fake: Fake, videos: Path, tmp_path: Path, number: int
) -> None:
    fake(f'[[ "$*" == *{videos}* ]] || exec $real "$@"; echo $$ > {tmp_path}/$$.pid; exec sleep 1000')
    source = ("--layout", "folder", "--source", videos, "--destination", tmp_path / "shards", "--videos-per-shard", 2)
    process = start(sys.executable, "-m", "gdt", "preprocess", *source, "--workers", 2)
    wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    os.killpg(process.pid, number)  # as a terminal does
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in text, text
    assert number != signal.SIGINT or text.endswith("interrupted; run the same command again\n")
    for path in tmp_path.glob("*.pid"):
        assert_gone(path)
    assert not list((tmp_path / "shards").glob(".shard-*"))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    few([
        ("", "<&- >&- 2>&-", ""), ("ulimit -n 28", "", "Too many open files); check the free memory"),
        ("mkdir gone; cd gone; rmdir ../gone", "", "the current folder has been removed"),
        ("export DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=0s", "", "cannot be started (Timed out"),
    ]),
)  # fmt: skip
def test_unusual_environments_do_no_harm_or_are_named(
    synthetic: Path, tmp_path: Path, before: str, after: str, said: str
) -> None:
    """Closed streams, few open files, a removed folder, settings of Dask."""
    words = (*PYTHON, "preprocess", "--layout", "folder", "--workers", 1, "--source", synthetic / "val")
    script = f"{before}\n{shlex.join(map(str, words))} --destination {tmp_path}/shards {after}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "shards" / "index.h5").exists() == (done.returncode == 0) == (not said), done.stderr


@pytest.mark.slow
def test_kills_of_a_worker_and_of_the_scheduler_do_not_change_the_shards(
    start: Start, videos: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    server, address = scheduler(start)
    workers = [worker(start, address) for _ in range(2)]
    process = start(*stage(videos, folder, "--scheduler", address))

    def made() -> int:
        return len(list(folder.glob("shard-*.h5")))

    wait_until(lambda: made() >= 2 and len(list(folder.glob(".shard-*"))) >= 2)
    os.killpg(workers[0].pid, signal.SIGKILL)
    before = made()
    wait_until(lambda: made() >= before + 3)  # the other worker goes on
    os.killpg(server.pid, signal.SIGKILL)
    text, _ = process.communicate()
    assert process.returncode == 2, text
    assert "error: the Dask scheduler was lost" in text and "Traceback" not in text, text
    assert not (folder / "index.h5").exists()
    again = start(*stage(videos, folder, "--workers", 2))
    assert "18 of 21 videos kept" in again.communicate()[0]
    assert digests(folder) == digests(undisturbed)


@pytest.mark.slow
def test_a_cluster_decodes_for_embed(
    start: Start, checkpoint: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative to a folder that is not that of the workers."""
    _, address = scheduler(start)
    worker(start, address)
    monkeypatch.chdir(videos.parent)
    asked = Embed(str(checkpoint), (Path(videos.name),), clips=2, out=Path("here.h5"))
    embed(asked)
    embed(replace(asked, scheduler=address, out=Path("there.h5")))
    assert Path("there.h5").read_bytes() == Path("here.h5").read_bytes()
