"""Thousands of faults, each of which has to end in the right result or in one sentence.

Damage in shards, index, checkpoints and the small files beside them, odd entries and odd names among the videos: each
meets the commands that read it. A case is good where the command ends in time, and either gives what it gives without
the fault, or says in one sentence what is wrong and exits with 2. Everything else is told in full: a crash, a hang, a
traceback, or a result that is wrong without a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from tqdm import tqdm

from benchmarks.common import machine, scratch
from benchmarks.forked import Fork
from gdt.common.errors import exit_with_message
from gdt.eval.tables import layout

ROOT = str(Path(__file__).parents[1])
_LIMIT = 120.0
"""Seconds that no case may take; the slowest undisturbed ones take about 10 here."""
_SIZES = ["--videos-per-batch", "4", "--threads", "1", "--network.dropout", "0.3", "--preset", "l"]


@dataclass(frozen=True)
class Faults:
    """Damage things and see how the commands end."""

    cases: int = 2000
    """How many, over all kinds."""
    seed: int = 0
    """Which ones."""
    kinds: tuple[str, ...] = ()
    """Only these kinds; default all."""
    at_once: int = len(os.sched_getaffinity(0))
    """Cases run at a time."""
    real: int = 40
    """Every so many cases is run as a user runs it, by a new Python; the others in forks of this one, which has
    imported everything."""
    keep: Path | None = None
    """Folder for the bad cases."""


@dataclass(frozen=True)
class World:
    """What is damaged, and what comes of it without damage."""

    folder: Path
    losses: list[float]
    measures: list[object]
    digests: dict[str, str]

    @property
    def videos(self) -> Path:
        return self.folder / "videos"


Judge = Callable[[int, str], str]
"""From exit status and what was said: empty where that is right, else what is wrong."""
Made = tuple[list[str], Judge, str]
"""The command, how to judge its end, and the fault in words."""
Kind = Callable[[World, Path, random.Random], Made]


# ------------------------------------------------------------------------------------------------------------- damage


def damage(path: Path, draw: random.Random) -> str:
    """Flip a bit, punch a hole, cut the end, append, exchange or empty; says which, "" where nothing has changed."""
    whole = path.read_bytes()
    data = bytearray(whole)
    n = len(data)
    kind = draw.choice(["bit", "bit", "bit", "bits", "hole", "hole", "ones", "cut", "longer", "noise", "empty"])
    # the beginning and the end, where formats keep what they are about, more often than by chance
    edge = draw.randrange(min(n, 8192)) if n else 0
    place = draw.choice([draw.randrange(n), draw.randrange(n), edge, n - 1 - edge]) if n else 0
    size = draw.choice([16, 512, 4096])
    if not n:  # rejected.jsonl of a data set without rejects, say
        kind = "longer"
    if kind == "bit":
        data[place] ^= 1 << draw.randrange(8)
    elif kind == "bits":
        for k in draw.choices(range(n), k=64):
            data[k] ^= 1 << draw.randrange(8)
    elif kind in ("hole", "ones"):
        data[place : place + size] = bytes([0 if kind == "hole" else 255]) * len(data[place : place + size])
    elif kind == "cut":
        data = data[:place]
    elif kind == "longer":
        data += draw.randbytes(size)
    elif kind == "noise":
        data[place : place + size] = draw.randbytes(len(data[place : place + size]))
    elif kind == "empty":
        data = bytearray()
    path.unlink()  # it may be a link to what other cases use
    path.write_bytes(data)
    return f"{kind} at {place} of {n} bytes of {path.name}" if data != whole else ""


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder whose files are links, which nothing but `damage` writes to."""
    shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns(".lock"))
    return target


def one_sentence(code: int, said: str) -> bool:
    """Exit status 2 and one line that begins with `error: `."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    return code == 2 and len(errors) == 1 and "Traceback" not in said


def digests(folder: Path) -> dict[str, str]:
    """Of everything that the videos and the settings decide."""
    names = ("index.h5", "plan.jsonl", "rejected.jsonl", *(path.name for path in folder.glob("shard-*.h5")))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# -------------------------------------------------------------------------------------------------------------- kinds


def _train(world: World, folder: Path, shards: Path, *more: str) -> tuple[list[str], Judge]:
    """Four steps of a run, whose losses are known."""
    run = folder / "run"

    def judge(code: int, said: str) -> str:
        if code:
            return "" if one_sentence(code, said) else f"ended with {code}"
        if losses(run) == world.losses or "damaged clips were skipped" in said:
            return ""
        return "other losses without a word"

    command = ["pretrain", "tiny", "--shards", str(shards), "--out", str(run), *_SIZES, "--steps", "4", *more]
    return command, judge


def shard_to_train(world: World, folder: Path, draw: random.Random) -> Made:
    shards = copied(world.folder / "shards", folder / "shards")
    fault = damage(draw.choice(sorted(shards.glob("shard-*.h5"))), draw)
    more = ["--loading.damaged", "skip"] if draw.random() < 0.3 else []
    return *_train(world, folder, shards, *more), fault


def index_to_train(world: World, folder: Path, draw: random.Random) -> Made:
    shards = copied(world.folder / "shards", folder / "shards")
    fault = damage(shards / "index.h5", draw)
    return *_train(world, folder, shards), fault


def checkpoint_to_train(world: World, folder: Path, draw: random.Random) -> Made:
    run = copied(world.folder / "half", folder / "run")
    name = draw.choice(["checkpoint.pt", "checkpoint.pt", "checkpoint.previous.pt", "metrics.jsonl", "settings.json"])
    fault = damage(run / name, draw)
    if draw.random() < 0.2 and name == "checkpoint.pt":
        fault += " and " + damage(run / "checkpoint.previous.pt", draw)
    command, judge = _train(world, folder, world.folder / "shards", "--checkpoint-steps", "1")
    if name == "metrics.jsonl":  # a log, in which what is damaged is dropped

        def judge(code: int, said: str) -> str:
            return "" if code == 0 and losses(run)[-2:] == world.losses[-2:] else f"ended with {code}"

    return command, judge, fault


def checkpoint_to_features(world: World, folder: Path, draw: random.Random) -> Made:
    path = folder / "checkpoint.pt"
    shutil.copy(world.folder / "run" / "checkpoint.pt", path)
    fault = damage(path, draw)
    out = folder / "eval"

    def judge(code: int, said: str) -> str:
        if code:
            return "" if one_sentence(code, said) else f"ended with {code}"
        return "" if _measures(out) == world.measures else "other numbers"

    shards = str(world.folder / "shards")
    command = ["eval", "downstream", "--ckpt", str(path), "--shards", shards, "--dataset", "x", "--clips", "2"]
    return [*command, "--protocols", "retrieval", "--threads", "1", "--out", str(out)], judge, fault


def _verify(world: World, folder: Path, draw: random.Random, name: str) -> Made:
    shards = copied(world.folder / "shards", folder / "shards")
    path = shards / name
    fault = damage(path, draw)

    def judge(code: int, said: str) -> str:
        if code == 0:
            return "" if not fault else "not found"
        return "" if one_sentence(code, said) and f"{path}: " in said else f"ended with {code}"

    return ["verify", "--shards", str(shards), "--workers", "1"], judge, fault


def shard_to_verify(world: World, folder: Path, draw: random.Random) -> Made:
    return _verify(world, folder, draw, draw.choice([f"shard-{k:06d}.h5" for k in range(3)]))


def index_to_verify(world: World, folder: Path, draw: random.Random) -> Made:
    return _verify(world, folder, draw, "index.h5")


def _preprocess(folder: Path, shards: Path, source: Path, *more: str) -> list[str]:
    command = ["preprocess", "--source", str(source), "--destination", str(shards), "--workers", "1"]
    return [*command, "--videos-per-shard", "8", *more]


def _remade(world: World, folder: Path, draw: random.Random, names: list[str]) -> Made:
    """Preprocessing makes again what is damaged; damage in the data of a shard is left to those who read it."""
    shards = copied(world.folder / "shards", folder / "shards")
    fault = " and ".join(filter(None, (damage(shards / name, draw) for name in names)))

    def judge(code: int, said: str) -> str:
        if code:
            return "" if one_sentence(code, said) else f"ended with {code}"
        from gdt.preprocess.verify import check_shard

        now = digests(shards)
        other = [name for name in world.digests if now.get(name) != world.digests[name]]
        unseen = [name for name in other if not name.startswith("shard") or not check_shard(shards / name, full=False)]
        return (
            f"{', '.join(unseen)} not as before, without a word" if unseen or now.keys() != world.digests.keys() else ""
        )

    return _preprocess(folder, shards, world.videos), judge, fault


def shard_to_preprocess(world: World, folder: Path, draw: random.Random) -> Made:
    return _remade(world, folder, draw, [draw.choice([f"shard-{k:06d}.h5" for k in range(3)])])


def small_files_to_preprocess(world: World, folder: Path, draw: random.Random) -> Made:
    names = ["index.h5", "plan.jsonl", "rejected.jsonl", "summary.json"]
    return _remade(world, folder, draw, draw.sample(names, draw.randint(1, 3)))


def _entry(folder: Path, name: str, draw: random.Random, video: Path) -> str:
    """Something that is named like a video; "" where it is one, else whether it is left out, or may be either."""
    path = folder / name
    kind = draw.choice(["fifo", "folder", "device", "broken link", "loop", "empty", "text", "cut", "damaged", "link"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(video)
        return ""
    elif kind in ("device", "broken link", "loop"):
        path.symlink_to({"device": Path("/dev/zero"), "broken link": folder / "nowhere", "loop": path}[kind])
    elif kind in ("cut", "damaged"):
        data = video.read_bytes()
        path.write_bytes(data[: len(data) // 20] if kind == "cut" else data)
        if kind == "damaged":
            damage(path, draw)
            return "either"
    else:
        path.write_bytes(b"" if kind == "empty" else b"no video at all\n" * 50)
    return "left out"


def odd_name(draw: random.Random) -> str:
    """A name that some program would stumble over."""
    special = [
        "\n", "\r", "\t", " ", "'", '"', "%d", "%", "$(x)", "`y`", "|", ";", "&", "*", "?", "[0-9]", "\\", "-", "--",
        "~", ":", "file:", "http:", "concat:", "\u2028", "\u202e", "é", "e\u0301", "映画", "\x01", "\x1b[31m", "\x7f",
        "#", "=", ",", "No space left on device", "[error] ", "[fatal] x: No space left on device", "Duration: 9",
        "matches no streams",
    ]  # fmt: skip
    stem = "".join(draw.choices([*special, "a", "b"], k=draw.randint(1, 6)))
    return stem[:60].replace("/", "_") + draw.choice([".mp4", ".MP4", ".mkv", ".avi"])


def sources_to_preprocess(world: World, folder: Path, draw: random.Random) -> Made:
    source, shards = folder / "source", folder / "shards"
    (source / "a").mkdir(parents=True)
    videos = sorted(path for path in world.videos.rglob("*.mp4") if path.name != "broken.mp4")
    kept, either, out = {"good.mp4"}, set[str](), set[str]()
    os.link(videos[0], source / "good.mp4")
    for k in range(6):
        name = odd_name(draw) if draw.random() < 0.7 else f"{k}.mp4"
        below = draw.choice(["", "a/"])
        if (source / below / name).exists() or os.path.lexists(source / below / name):
            continue
        if draw.random() < 0.5:
            os.link(draw.choice(videos), source / below / name)
            what = ""
        else:
            what = _entry(source / below, name, draw, draw.choice(videos))
        if name.startswith("."):
            what = "left out"
        {"": kept, "either": either, "left out": out}[what].add(below + name)
    dry = ["--dry-run"] if draw.random() < 0.15 else []

    def judge(code: int, said: str) -> str:
        if code:
            return "" if one_sentence(code, said) else f"ended with {code}"
        if dry:
            return "" if "videos decoded" in said and not shards.exists() else "no estimate"
        from gdt.pipeline.shards.index import Index
        from gdt.pipeline.shards.layout import read_rejected

        inside = set(Index.open(shards).id)
        named = {row["id"] for row in read_rejected(shards)}
        good = (
            kept <= inside <= kept | either and out <= named <= out | either and inside | named == kept | either | out
        )
        return "" if good else f"kept {inside - kept}, left out {named - out}"

    return _preprocess(folder, shards, source, *dry), judge, f"{sorted(kept)}, {sorted(out)}, {sorted(either)}"


KINDS: dict[str, tuple[float, Kind]] = {
    "shard, train": (0.20, shard_to_train),
    "shard, verify": (0.12, shard_to_verify),
    "shard, preprocess": (0.10, shard_to_preprocess),
    "index, train": (0.12, index_to_train),
    "index, verify": (0.05, index_to_verify),
    "index and small files, preprocess": (0.13, small_files_to_preprocess),
    "checkpoint, train": (0.10, checkpoint_to_train),
    "checkpoint, features": (0.06, checkpoint_to_features),
    "entries and names, preprocess": (0.12, sources_to_preprocess),
}
"""Share of the cases, and what makes one."""


# ------------------------------------------------------------------------------------------------------------ running


def build(folder: Path) -> World:
    """The world, made in another process: this one has to stay without threads, since it is forked for every case."""
    (folder / "cases").mkdir()
    code = "import sys; from pathlib import Path; from benchmarks.faults import make; make(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, folder], env=os.environ | {"PYTHONPATH": ROOT}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout)
    return World(folder, losses(folder / "run"), _measures(folder / "eval"), digests(folder / "shards"))


def make(folder: Path) -> None:
    """Videos, shards, a run of four steps, one that was stopped after two, and frozen features."""
    import torch

    from gdt.eval.downstream import downstream
    from gdt.eval.settings.downstream import Downstream
    from gdt.preprocess.stage import Preprocess, run
    from gdt.preprocess.synthetic import Synthetic, generate

    torch.set_num_threads(1)
    videos, shards = folder / "videos", folder / "shards"
    generate(videos, Synthetic(train=6, val=1, test=2, classes=2, seconds=2.0), workers=1, progress=False)
    (videos / "broken.mp4").write_bytes(b"nonsense")
    run(Preprocess("folder", videos, shards, videos_per_shard=8, workers=1))
    command, _ = _train(World(folder, [], [], {}), folder, shards)
    subprocess.run([sys.executable, "-m", "gdt", *command], check=True)
    _stop_after_two(folder / "run", folder / "half")
    downstream(Downstream((folder / "run",), "x", shards, ("retrieval",), clips=2, out=folder / "eval", threads=1))


def _measures(folder: Path) -> list[object]:
    """What an evaluation found."""
    return [result["measures"] for result in json.loads((folder / "results.json").read_text())]


def _stop_after_two(whole: Path, half: Path) -> None:
    """A copy of a run as it was after two steps, with the checkpoints of both."""
    import torch

    from gdt.pipeline.loader import Loader
    from gdt.pipeline.shards.index import Index, fingerprint
    from gdt.train.checkpoint import Data
    from gdt.train.settings import from_json
    from gdt.train.trainer import Trainer

    half.mkdir()
    shutil.copy(whole / "settings.json", half)
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    (half / "metrics.jsonl").write_text("".join(lines[:2]))
    # what the run itself came to, or its checkpoint would be that of another run
    settings = dataclasses.replace(from_json((whole / "settings.json").read_text()), out=half)
    index = Index.open(settings.shard_folder)
    tree = settings.tree(index)
    trainer = Trainer(settings, tree, Data(fingerprint(index), index.statistics), torch.device("cpu"))
    with Loader(index, tree.plans(0, 2), settings.clip, torch.device("cpu"), settings.loading) as loader:
        for step, batch in enumerate(loader):
            trainer.step(step, batch)
            trainer.save(step + 1)


def _start(command: list[str], folder: Path, real: bool) -> Fork | subprocess.Popen[bytes]:
    if not real:
        return Fork(command, folder, folder / "said")
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "gdt", *command], cwd=folder, stdout=said, stderr=said, start_new_session=True,
            env=os.environ | {"PYTHONPATH": ROOT},
        )  # fmt: skip


@dataclass
class Running:
    """A case on its way."""

    kind: str
    number: int
    folder: Path
    judge: Judge
    fault: str
    process: Fork | subprocess.Popen[bytes]
    until: float

    def sentence(self) -> str:
        """What it said was wrong, without what differs from case to case."""
        said = (self.folder / "said").read_text(errors="replace")
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        return re.sub(r"\d+", "N", re.sub(r"'?/[^ ;:,)]*", "PATH", lines[0]))[:150] if lines else ""

    def outcome(self) -> tuple[str, str] | None:
        """How it ended and what is wrong with that, if anything; None where it has not ended."""
        code = self.process.poll()
        if code is None and time.monotonic() < self.until:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it left running, too
        self.process.wait()
        said = (self.folder / "said").read_text(errors="replace")
        if code is None:
            return "hang", f"it had not ended after {_LIMIT:.0f} s"
        if code < 0 or code > 128:
            return "crash", f"ended by signal {-code if code < 0 else code - 128}"
        if "Traceback" in said:
            return "traceback", said[said.index("Traceback") :]
        if wrong := self.judge(code, said):
            return "wrong", wrong
        return ("one sentence" if code else "right result"), ""


def cases(settings: Faults, world: World, folder: Path) -> Iterator[Callable[[], Running]]:
    """The cases, each to be started."""
    kinds = settings.kinds or tuple(KINDS)
    shares = np.array([KINDS[kind][0] for kind in kinds])
    counts = np.diff(np.round(np.cumsum([0, *shares / shares.sum()]) * settings.cases).astype(int))
    order = np.repeat(np.arange(len(kinds)), counts)
    np.random.default_rng(settings.seed).shuffle(order)
    for number, which in enumerate(order):

        def started(number: int = number, kind: str = kinds[which]) -> Running:
            draw = random.Random(f"{settings.seed}, {number}")
            own = folder / str(number)
            own.mkdir()
            command, judge, fault = KINDS[kind][1](world, own, draw)
            process = _start(command, own, real=number % settings.real == 0)
            return Running(kind, number, own, judge, fault, process, time.monotonic() + _LIMIT)

        yield started


def run_all(
    settings: Faults, world: World, folder: Path
) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]], list[str]]:
    """Outcomes and sentences by kind, and the bad cases in words."""
    waiting = cases(settings, world, folder)
    running: list[Running] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    sentences: Counter[tuple[str, str]] = Counter()
    bad: list[str] = []
    bar = tqdm(total=settings.cases, unit="case", mininterval=1.0)
    while True:
        while len(running) < settings.at_once and (start := next(waiting, None)) is not None:
            running.append(start())
        if not running:
            bar.close()
            return outcomes, sentences, bad
        for case in list(running):
            if (found := case.outcome()) is None:
                continue
            running.remove(case)
            bar.update()
            outcomes[case.kind, found[0]] += 1
            if found[0] == "one sentence":
                sentences[case.kind, case.sentence()] += 1
            if found[1]:
                bad.append(f"case {case.number} ({case.kind}; {case.fault}): {found[0]}, {found[1]}")
                tqdm.write(bad[-1])
                if settings.keep:
                    shutil.copytree(case.folder, settings.keep / str(case.number), symlinks=True, copy_function=_copy)
            shutil.rmtree(case.folder)
        time.sleep(0.01)


def _copy(source: str, target: str) -> None:
    """A copy, but of what would be waited for."""
    if Path(source).is_file():
        shutil.copy(source, target)


def table(outcomes: Counter[tuple[str, str]]) -> str:
    """Kinds by outcomes."""
    columns = ["right result", "one sentence", "wrong", "traceback", "crash", "hang"]
    rows = [["what is damaged, and who meets it", *columns, "cases"]]
    for kind in [kind for kind in KINDS if any((kind, column) in outcomes for column in columns)]:
        numbers = [outcomes[kind, column] for column in columns]
        rows.append([kind, *map(str, [*numbers, sum(numbers)])])
    totals = [sum(outcomes[kind, column] for kind in KINDS) for column in columns]
    rows.append(["all", *map(str, [*totals, sum(totals)])])
    return layout(rows)


def main() -> None:
    settings = tyro.cli(Faults, prog="python -m benchmarks.faults")
    with scratch() as name:
        world = build(Path(name))
        began = time.perf_counter()
        outcomes, sentences, bad = run_all(settings, world, Path(name) / "cases")
        print(f"{machine()}; seed {settings.seed}, {time.perf_counter() - began:.0f} s")
        print(table(outcomes))
        for kind in KINDS:
            said = [(count, text) for (which, text), count in sentences.most_common() if which == kind]
            if said:
                print("\n".join([kind, *(f"{count:6d}  {text}" for count, text in said)]))
        sys.exit(bool(bad))


if __name__ == "__main__":
    exit_with_message(main)
