"""Thousands of faults: damage to every file that is read again, odd files and names among the videos.

The commands that read them must give the same results as without the fault, compute them again, or exit with 2 and one
message. A crash, a hang, a traceback or a wrong result fails. With -s, the outcomes are printed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdt.eval.downstream import downstream
from gdt.eval.embed import Embed, embed
from gdt.eval.embed import read as read_features
from gdt.eval.page.collect import collect
from gdt.eval.settings import Downstream
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import read_rejected
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.stage import run as preprocess
from gdt.preprocess.synthetic import Synthetic, generate
from gdt.preprocess.verify import check_shard
from tests.conftest import ROOT, Run
from tests.test_kills import kill, run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

COUNT = int(os.environ.get("GDT_FAULTS", "2000"))
"""Number of faults over all tests; GDT_FAULTS=100 takes minutes."""
LIMIT = 120.0
"""Seconds that a command may take; without faults the slowest takes about 10."""
SHARDS = [f"shard-{number:06d}.h5" for number in range(3)]
SPECIAL = [
    "\n", "\r", "\t", " ", "'", '"', "%d", "%", "$(x)", "`y`", "|", ";", "&", "*", "?", "[0-9]", "\\", "-", "--",
    "~", ":", "file:", "http:", "concat:", "\u2028", "\u202e", "é", "e\u0301", "映画", "\x01", "\x1b[31m", "\x7f",
    "#", "=", ",", "No space left on device", "[error] ", "[fatal] x: No space left on device", "Duration: 9",
    "matches no streams", "a", "b",
]  # fmt: skip
"""Parts of file names that programs stumble over."""


@dataclass(frozen=True)
class World:
    """Files to damage, and the results without damage."""

    folder: Path
    losses: list[float]
    metrics: list[object]
    digests: dict[str, str]
    outcomes: Counter[tuple[str, str]]
    """Number of faults by test and outcome."""

    def fresh(self) -> Path:
        """An empty folder for the next example."""
        here = self.folder / "here"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        return here

    def copy(self, name: str, link: Callable[..., object] = os.link) -> Path:
        """A copy of one of its folders; by default by hard links, which only Damage.apply replaces."""
        ignored = shutil.ignore_patterns(".lock")
        return shutil.copytree(self.folder / name, self.fresh() / name, copy_function=link, ignore=ignored)

    def count(self, files: str, good: bool, recomputed: bool = False) -> None:
        outcome = "refused in one sentence" if not good else "computed again" if recomputed else "same numbers"
        self.outcomes[files, outcome] += 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Videos, shards, a run of four steps, a run killed after two, metrics of frozen features, and features files."""
    folder = tmp_path_factory.mktemp("world")
    videos, shards = folder / "videos", folder / "shards"
    generate(videos, Synthetic(train=6, val=1, test=2, classes=2, seconds=2.0), workers=1, progress=False)
    (videos / "broken.mp4").write_bytes(b"nonsense")
    preprocess(Preprocess("folder", videos, shards, videos_per_shard=8, workers=1))
    assert run_command(training(shards, folder / "run"), folder) == 0
    kill(training(shards, folder / "half"), folder, "os.rename checkpoint.pt 3 0")
    downstream(Downstream((folder / "run",), "x", shards, ("retrieval",), clips=2, out=folder / "eval", threads=1))
    (folder / "features").mkdir()
    for suffix in (".h5", ".npz"):
        embed(Embed(folder / "run" / "checkpoint.pt", shards=shards, out=folder / "features" / f"features{suffix}"))
    shutil.copytree(folder / "eval", folder / "run" / "eval")
    world = World(folder, losses(folder / "run"), metrics(folder / "eval"), digests(shards), Counter())
    yield world
    for (files, outcome), number in sorted(world.outcomes.items()):
        print(f"\n{files}: {outcome}: {number}", end="")


def fuzz(share: float, **drawn: st.SearchStrategy) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of a share of all faults, with drawn arguments; `real` is true once in eighty times."""
    tried = settings(
        max_examples=max(1, round(share * COUNT)), deadline=None, database=None, print_blob=True,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda test: tried(given(real=st.integers(0, 79).map(lambda number: number == 79), **drawn)(test))


# ------------------------------------------------------------------------------------------------------------- damage


@dataclass(frozen=True)
class Damage:
    """Damage to a file."""

    kind: str
    place: int
    """Offset modulo the length; negative from the end."""
    size: int
    seed: int

    def apply(self, path: Path) -> bool:
        """Damage a file; whether that changed it."""
        whole = path.read_bytes()
        data, n, draw = bytearray(whole), len(whole), random.Random(self.seed)
        place = self.place % max(n, 1)
        piece = slice(place, min(place + self.size, n))
        length = piece.stop - piece.start
        match self.kind if n else "longer":  # rejected.jsonl may be empty
            case "bit":
                data[place] ^= 1 << draw.randrange(8)
            case "bits":
                for k in draw.choices(range(n), k=64):
                    data[k] ^= 1 << draw.randrange(8)
            case "hole" | "ones":
                data[piece] = (b"\0" if self.kind == "hole" else b"\xff") * length
            case "noise":
                data[piece] = draw.randbytes(length)
            case "cut":
                del data[place:]
            case "longer":
                data += draw.randbytes(self.size)
            case "empty":
                data.clear()
            case "foreign":
                data[:] = draw.choice(FOREIGN)
        path.unlink()  # it is a hard link to a file of other examples
        path.write_bytes(data)
        return data != whole


# more often at the beginning and the end, where formats keep their headers
PLACES = st.integers(0, 2**40) | st.integers(0, 8191) | st.integers(-8192, -1)
KINDS = ["bit", "bit", "bit", "bits", "hole", "hole", "ones", "cut", "longer", "noise", "empty", "foreign"]
FOREIGN = [
    b"{}\n", b"null\n", b'{"crc32": 0}\n', b'[{"step": 1}]\n', b"[" * 100_000, b"no such file\n" * 50,
    b"\x89HDF\r\n\x1a\n" + bytes(512), b"PK\x03\x04" + bytes(512), b"\xff\xfe\x00",
]  # fmt: skip
"""Contents of other files."""
DAMAGE = st.builds(Damage, st.sampled_from(KINDS), PLACES, st.sampled_from([16, 512, 4096]), st.integers(0, 2**32))


Faults = dict[str, Damage]
"""By the file's name."""


def damage_to(names: list[str], most: int = 1) -> st.SearchStrategy[Faults]:
    return st.dictionaries(st.sampled_from(names), DAMAGE, min_size=1, max_size=most)


def damage(folder: Path, faults: Faults) -> bool:
    """Damage files of a folder; whether any has changed."""
    changed = [fault.apply(folder / name) for name, fault in faults.items()]
    return any(changed)


# --------------------------------------------------------------------------------------------------- commands and ends


def training(shards: Path, run: Path) -> list[object]:
    sizes = ["--batch-size", 4, "--threads", 1, "--network.dropout", 0.3, "--preset", "l", "--steps", 4]
    return ["pretrain", "--shards", shards, "--out", run, *sizes, "--checkpoint-steps", 1]


def preprocessing(shards: Path, source: Path) -> list[object]:
    videos = ["--layout", "folder", "--source", source]
    return ["preprocess", *videos, "--destination", shards, "--workers", 1, "--videos-per-shard", 8]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def metrics(folder: Path) -> list[object]:
    return [result["metrics"] for result in json.loads((folder / "results.json").read_text())]


def digests(shards: Path) -> dict[str, str]:
    """Digests of everything that depends on videos and settings only."""
    names = ["index.h5", "plan.jsonl", "rejected.jsonl", *(path.name for path in shards.glob("shard-*.h5"))]
    return {name: hashlib.sha256((shards / name).read_bytes()).hexdigest() for name in names}


def end(command: Run, arguments: list[object], real: bool) -> tuple[bool, str]:
    """Whether a command succeeded, and its output; a failure must be one message.

    `real` runs it in a new Python as a user would, else in a fork of a process that has imported everything.
    """
    began = time.monotonic()
    if real:
        done = subprocess.run(
            [sys.executable, "-m", "gdt", *map(str, arguments)], capture_output=True, text=True, check=False,
            timeout=LIMIT, env=os.environ | {"PYTHONPATH": str(ROOT)}, errors="replace",
        )  # fmt: skip
    else:
        done = command(*arguments)
    said = done.stdout + done.stderr
    assert time.monotonic() - began < LIMIT
    assert "Traceback" not in said, said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert done.returncode == 0 or (done.returncode == 2 and len(errors) == 1), (done.returncode, said)
    return done.returncode == 0, said


# -------------------------------------------------------------------------------------------------------------- tests


@fuzz(0.10, faults=damage_to([*SHARDS, "index.h5", "index.h5"]))
def test_training_on_damaged_shards(world: World, command: Run, faults: Faults, real: bool) -> None:
    shards = world.copy("shards")
    run = shards.with_name("run")
    damage(shards, faults)
    good, said = end(command, training(shards, run), real)
    same = good and losses(run) == world.losses
    assert same or not good, said
    world.count("shards, index: training", same)


@fuzz(0.05, faults=damage_to(["checkpoint.pt", "metrics.jsonl", "settings.json"], most=2))
def test_resuming_from_damaged_files(world: World, command: Run, faults: Faults, real: bool) -> None:
    run = world.copy("half")
    damage(run, faults)
    good, said = end(command, training(world.folder / "shards", run), real)
    world.count("checkpoints, log, settings: resuming", good, "damaged" in said)
    if "metrics.jsonl" in faults:  # a log, in which what is damaged is dropped
        assert losses(run)[-2:] == world.losses[-2:] if good else len(faults) > 1
    else:
        assert not good or losses(run) == world.losses


@fuzz(0.05, fault=DAMAGE)
def test_features_of_a_damaged_checkpoint(world: World, command: Run, fault: Damage, real: bool) -> None:
    here = world.fresh()
    shutil.copy(world.folder / "run" / "checkpoint.pt", here)
    fault.apply(here / "checkpoint.pt")
    arguments = ["evaluate", "--ckpt", here / "checkpoint.pt", "--shards", world.folder / "shards"]
    arguments += ["--dataset", "x", "--clips", 2, "--protocols", "retrieval", "--threads", 1, "--out", here / "eval"]
    good, _ = end(command, arguments, real)
    assert not good or metrics(here / "eval") == world.metrics
    world.count("checkpoint: evaluation", good)


@fuzz(0.06, number=st.integers(0, 99), fault=DAMAGE)
def test_evaluations_with_damaged_results(world: World, command: Run, number: int, fault: Damage, real: bool) -> None:
    """Records and stored features of an evaluation are computed again."""
    out = world.copy("eval")
    files = sorted(path for path in out.rglob("*") if path.suffix in (".json", ".npz"))
    changed = fault.apply(files[number % len(files)])
    arguments = ["evaluate", "--ckpt", world.folder / "run", "--shards", world.folder / "shards"]
    arguments += ["--dataset", "x", "--clips", 2, "--protocols", "retrieval", "--threads", 1, "--out", out]
    good, _ = end(command, arguments, real)
    assert good and metrics(out) == world.metrics
    world.count("results, stored features: evaluation", good, changed)


RUN = ["settings.json", "metrics.jsonl", "run.json", "eval/results.json"]


@fuzz(0.24, faults=damage_to(RUN))
def test_the_report_lists_damaged_results(world: World, command: Run, faults: Faults, real: bool) -> None:
    """The report names a damaged file, and shows the same numbers of the others."""
    run, ((name, _),) = world.copy("run"), faults.items()
    for path in run.glob("eval/*/*.json"):  # the same records again
        path.unlink()
    whole = collect(run)
    lines = (run / "metrics.jsonl").read_bytes()
    changed = damage(run, faults)
    if real:
        assert end(command, ["report", "--runs", run, "--models", 1], True)[0]
    found = collect(run)
    listed = [Path(each.what).name for each in found.unread]
    (before,), (after,) = whole.runs, found.runs
    world.count("settings, log, results: report", not listed)
    assert listed in ([], [Path(name).name]) and (changed or not listed)
    if not listed:
        left = len(after.metrics["step"])  # a log may end earlier, as after a kill
        if not lines.startswith((run / "metrics.jsonl").read_bytes()):
            assert left == len(before.metrics["step"])
        assert all(np.array_equal(before.metrics[key][:left], after.metrics[key]) for key in before.metrics)
    assert after.settings == (None if "settings.json" in listed else before.settings)
    assert after.start == ({} if "run.json" in listed else before.start)
    assert found.evaluations == ({} if "results.json" in listed else whole.evaluations)


@fuzz(0.24, faults=damage_to(["features.h5", "features.npz"]))
def test_neighbours_in_damaged_features(world: World, command: Run, faults: Faults, real: bool) -> None:
    folder, ((name, _),) = world.copy("features"), faults.items()
    whole = read_features(folder / name)
    damage(folder, faults)
    query = ["nearest", "--features", folder / name, "--query", whole.id[0]]
    good, _ = end(command, query, real)
    if good:
        found = read_features(folder / name)
        assert found.metadata == whole.metadata and found.features.keys() == whole.features.keys()
        for key in whole.features:
            assert np.array_equal(found.features[key], whole.features[key], equal_nan=True)
        assert all(np.array_equal(getattr(found, key), getattr(whole, key)) for key in ("id", "path", "start"))
    world.count(f"{name}: neighbours", good)


@fuzz(0.10, faults=damage_to([*SHARDS, "index.h5"]))
def test_verify_reports_all_damage(world: World, command: Run, faults: Faults, real: bool) -> None:
    shards = world.copy("shards")
    changed = damage(shards, faults)
    good, said = end(command, ["verify", "--shards", shards, "--workers", 1], real)
    assert good != changed
    assert good or all(f"{shards / name}: " in said for name in faults)
    world.count("shards, index: verifying", good)


SMALL = ["index.h5", "plan.jsonl", "rejected.jsonl", "summary.json"]


@fuzz(0.05, faults=damage_to(SHARDS) | damage_to(SMALL, most=3))
def test_preprocessing_rebuilds_damaged_files(world: World, command: Run, faults: Faults, real: bool) -> None:
    """Except damage in the data of a shard, which its readers report."""
    shards = world.copy("shards")
    changed = damage(shards, faults)
    good, _ = end(command, preprocessing(shards, world.folder / "videos"), real)
    world.count("shards, index, plan, lists: preprocessing", good, changed)
    if good:
        now = digests(shards)
        assert now.keys() == world.digests.keys()
        other = [name for name in now if now[name] != world.digests[name]]
        assert all(name.startswith("shard") and check_shard(shards / name, full=False) for name in other)


ENTRIES = ["fifo", "folder", "device", "broken link", "loop", "empty", "text", "cut", "damaged", "link"]
STEMS = st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=6).map(lambda parts: "".join(parts)[:60])
PATHS = st.builds("{}{}{}".format, st.sampled_from(["", "a/"]), STEMS,
                  st.sampled_from([".mp4", ".MP4", ".mkv", ".avi"]))  # fmt: skip


def enter(path: Path, kind: str, video: Path, fault: Damage) -> str:
    """Create an entry named like a video; whether it is to be kept, left out, or either."""
    match kind:
        case "video":
            os.link(video, path)
        case "link":
            path.symlink_to(video)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device" | "broken link" | "loop":
            path.symlink_to({"device": "/dev/zero", "broken link": "nowhere", "loop": path.name}[kind])
        case _:
            data = video.read_bytes()
            path.write_bytes({"empty": b"", "text": b"no video\n" * 50, "cut": data[: len(data) // 20]}.get(kind, data))
            if kind == "damaged":
                fault.apply(path)
    return {"video": "kept", "link": "kept", "damaged": "either"}.get(kind, "left out")


WHAT = st.tuples(st.just("video") | st.sampled_from(ENTRIES), st.integers(0, 17), DAMAGE)
DRY = st.integers(0, 6).map(lambda number: number == 6)


@fuzz(0.03, entries=st.dictionaries(PATHS, WHAT, min_size=3, max_size=6), dry=DRY)
def test_preprocessing_of_odd_entries_and_names(
    world: World, command: Run, entries: dict[str, tuple[str, int, Damage]], dry: bool, real: bool
) -> None:
    here = world.fresh()
    source, shards = here / "source", here / "shards"
    (source / "a").mkdir(parents=True)
    videos = sorted(path for path in (world.folder / "videos").rglob("*.mp4") if path.name != "broken.mp4")
    os.link(videos[0], source / "good.mp4")
    expected: dict[str, set[str]] = {"kept": {"good.mp4"}, "either": set(), "left out": set()}
    for path, (kind, number, fault) in entries.items():
        expected[enter(source / path, kind, videos[number % len(videos)], fault)].add(path)
    good, said = end(command, preprocessing(shards, source) + ["--dry-run"] * dry, real)
    world.count("videos: preprocessing", good)
    if dry:
        assert not good or (" unusable\n" in said and not shards.exists())
    elif good:
        kept, either, out = expected.values()
        inside, named = set(Index.open(shards).id), {row["id"] for row in read_rejected(shards)}
        assert kept <= inside <= kept | either and out <= named <= out | either
        assert inside | named == kept | either | out
