"""Runs with killed workers, and with a real scheduler."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gdt.preprocess.stage import Preprocess
from tests.conftest import ROOT, preprocess
from tests.preprocess.test_stage import digests

PYTHON = (sys.executable, "-m", "gdt")
DASK = (sys.executable, "-m", "dask")


@pytest.fixture(scope="module")
def videos(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """42 videos, two of them unusable: a run of a few seconds."""
    folder = tmp_path_factory.mktemp("many")
    for path in sorted(synthetic.rglob("*.mp4")):
        shutil.copy(path, folder)
    broken = sorted(folder.iterdir())[::25]
    for path in broken:
        path.write_bytes(path.read_bytes()[:3000])
    return folder


@pytest.fixture(scope="module")
def undisturbed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of the shards of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    summary = preprocess(Preprocess("folder", videos, folder, videos_per_shard=3))
    assert (summary.kept, summary.rejected, summary.shards_made) == (40, 2, 14)
    return digests(folder)


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
    return (*PYTHON, "preprocess", *source, "--destination", folder, "--videos-per-shard", 3, *more)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes of a run."""
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def ffmpegs(folder: Path) -> list[psutil.Process]:
    """ffmpeg processes that write below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line and "ffmpeg" in Path(line[0]).name and any(str(folder) in word for word in line):
            found.append(process)
    return found


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.slow  # kills of one worker are tested below, and of the whole run in test_kills.py
def test_random_kills_do_not_change_the_shards(
    start: Start, videos: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    draw = random.Random(0)
    kills = {"worker": 0, "run": 0}
    while sum(kills.values()) < 10:
        if len(made := sorted(folder.glob("shard-*.h5"))) > 10:  # leave work for the next run
            for path in draw.sample(made, 7):
                path.unlink()
        process = start(*stage(videos, folder, "--workers", 2))
        wait_until(lambda process=process: len(workers_of(process)) == 2)
        for victim in ("worker", "worker", "run"):
            time.sleep(draw.uniform(0.1, 1.5))
            workers = workers_of(process)
            if process.poll() is not None or not workers:
                break
            if victim == "run":
                os.killpg(process.pid, signal.SIGKILL)  # with its scheduler and workers
            else:
                draw.choice(workers).kill()
            kills[victim] += 1
        text, _ = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), text  # a run survives the death of workers
    wait_until(lambda: not ffmpegs(folder), 10)  # a killed worker takes its ffmpeg with it
    assert kills["worker"] >= 4 and kills["run"] >= 2
    last = start(*stage(videos, folder, "--workers", 2))
    assert "40 of 42 videos kept" in last.communicate(timeout=120)[0]
    assert digests(folder) == undisturbed
    assert not [path for path in folder.iterdir() if path.is_dir()]


def scheduler(start: Start) -> tuple[subprocess.Popen[str], str]:
    """`dask scheduler` as the README says, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    process = start(*DASK, "scheduler", "--host", address, "--dashboard-address", "127.0.0.1:0")
    return process, address


def worker(start: Start, address: str) -> subprocess.Popen[str]:
    return start(*DASK, "worker", address, "--nthreads", 1, "--memory-limit", 0, "--no-dashboard")


def test_documented_dask_commands_listen_on_one_interface(start: Start) -> None:
    """Both commands of the docs, on the interface of this machine alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    text = (ROOT / "docs" / "preprocessing.md").read_text().replace("\\\n", " ")
    trees = []
    for line in re.findall(r"^dask (.*?)(?: {2,}#.*)?$", text, re.M):
        words = line.replace("eth0", "lo").replace("host:8786", f"127.0.0.1:{port}").replace("8787", "0").split()
        more = ["--nworkers", 1] if words[0] == "worker" else ["--port", port]
        trees.append(psutil.Process(start(*DASK, *words, *more).pid))

    def listening() -> list[str]:
        found = []
        for process in (each for tree in trees for each in [tree, *tree.children(recursive=True)]):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
        return found

    wait_until(lambda: len(listening()) >= 5)  # a nanny; scheduler and worker, each with a dashboard
    assert set(listening()) == {"127.0.0.1"}


def test_kills_of_a_worker_and_of_the_scheduler_do_not_change_the_shards(
    start: Start, videos: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    server, address = scheduler(start)
    workers = [worker(start, address) for _ in range(2)]
    process = start(*stage(videos, folder, "--scheduler", address))

    def made() -> int:
        return len(list(folder.glob("shard-*.h5")))

    wait_until(lambda: made() >= 2 and len(list(folder.glob(".shard-*"))) >= 2, 90)
    os.killpg(workers[0].pid, signal.SIGKILL)
    before = made()
    wait_until(lambda: made() >= before + 3)  # the other worker goes on
    os.killpg(server.pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 2, text
    assert "error: the Dask scheduler was lost" in text and "Traceback" not in text, text
    assert not (folder / "index.h5").exists()
    again = start(*stage(videos, folder, "--workers", 2))
    assert "40 of 42 videos kept" in again.communicate(timeout=120)[0]
    assert digests(folder) == undisturbed
