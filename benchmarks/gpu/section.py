"""One section of the benchmark, in a process of its own: what breaks it leaves the others alone."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from benchmarks.gpu import absent
from benchmarks.gpu.settings import Settings, from_json
from benchmarks.gpu.table import ROWS, Rows
from benchmarks.gpu.ways import IDEAS, PREDICTED, Way

if TYPE_CHECKING:
    from benchmarks.gpu.device import Processor


def best(settings: Settings) -> Way:
    """The way that training computes; a processor has no fast bfloat16, and compiles for minutes."""
    return Way() if settings.device == "cuda" else Way(bfloat16=False, compiled=False)


def machine(settings: Settings, rows: Rows) -> None:
    import torch

    from benchmarks.gpu.device import device_of
    from train.provenance import git_commit

    def facts() -> Mapping[str, str]:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        found = {
            "commit": git_commit() or "unknown", "python": platform.python_version(), "torch": str(torch.__version__),
            "CUDA": torch.version.cuda or "none", "cuDNN": str(cudnn or "none"), "DALI": _version("nvidia-dali"),
            "cores": str(settings.processes), "threads": str(torch.get_num_threads()),
        }  # fmt: skip
        return device_of(settings.device).facts() | found

    if rows("machine", "versions", facts) is None:
        sys.exit(2)


def _version(package: str) -> str:
    for found in metadata.distributions():
        if (found.metadata["Name"] or "").startswith(package):
            return f"{found.metadata['Name']} {found.version}"
    return "not installed"


def shards(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu.drawn import draw

    def drawn() -> Mapping[str, float]:
        folder = draw(settings.shards, settings.videos, settings.frames, settings.shorter_side, settings.processes)
        size = sum(path.stat().st_size for path in folder.glob("shard-*.h5"))
        return {"videos": settings.videos, "frames": settings.frames, "MB": size / 1e6,
                "kB/frame": size / 1e3 / settings.videos / settings.frames}  # fmt: skip

    rows("shards", "drawn", drawn)


def loading(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu import loading
    from benchmarks.gpu.device import device_of

    device = device_of(settings.device)
    rows("loading", f"{settings.device} against cpu", lambda: loading.differences(settings, device))
    for name, chosen in loading.choices().items():
        for row in ("e", "l"):
            rows(
                "loading", f"row {row}{', ' * bool(name)}{name}",
                lambda row=row, chosen=chosen: loading.rate(settings, device, row, chosen),  # type: ignore[misc]
                settings.loading_seconds + 10, "loading",
            )  # fmt: skip


def step(settings: Settings, rows: Rows) -> None:
    """The best way over sizes until memory ends, and the plain way."""
    from benchmarks.gpu import step

    device, way = _device(settings), best(settings)
    found = {}
    for leaves in settings.leaves:
        run = step.run_settings(settings, "l", leaves)
        values = rows(
            "step", f"best way, {leaves} clips",
            lambda run=run: _timed(step.Step(way, run, device), run, device, settings), 90, "step",  # type: ignore[misc]
        )  # fmt: skip
        if values is None:
            break
        found[leaves] = float(values["clips/s"])
    leaves = settings.leaves_of_ideas
    run = step.run_settings(settings, "l", leaves)

    def plain() -> Mapping[str, float | str]:
        device.fresh()
        take = step.plain_step(run, device)
        losses = [take() for _ in range(settings.warm)]
        seconds = device.seconds(take, settings.steps)
        return {"clips/s": leaves / seconds, "ms": 1000 * seconds, "GiB": device.most(), "loss": losses[0]}

    values = rows("step", f"plain way, {leaves} clips", plain, 60)
    if values and found:
        alike, most = found.get(leaves), max(found, key=lambda one: found[one])
        ratios: dict[str, float | str] = {"times the plain way": found[most] / float(values["clips/s"])}
        told = f"at {most} clips, the fastest; at {leaves} of both: "
        told += f"{alike / float(values['clips/s']):.2f}" if alike else "not measured"
        goal = f"predicted {PREDICTED['plain']:g}, which is the goal"
        rows.note("step", "best way over plain way", ratios | {"is": f"{told}; {goal}"})


def _timed(step: object, run: object, device: object, settings: Settings) -> Mapping[str, float | str]:
    from benchmarks.gpu.step import measured

    return measured(step, run, device, settings)  # type: ignore[arg-type]


def training(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu import training

    device = _device(settings)

    def whole(row: str, videos: int) -> Mapping[str, float | str]:
        device.fresh()
        return training.whole(settings, row, videos)

    for row in settings.rows:
        rows("training", f"row {row}, {settings.videos} videos",
             lambda row=row: whole(row, settings.videos), 240 if row == "l" else 120)  # type: ignore[misc]  # fmt: skip
    share = settings.videos // training.GPUS
    if share >= 2:
        rows("training", f"row l, {share} videos, as on each of {training.GPUS}", lambda: whole("l", share), 90)


def caching(settings: Settings, rows: Rows) -> None:
    """The same groups, embedded once with all activations, and twice a chunk at a time."""
    from benchmarks.gpu import step

    device, way, leaves = _device(settings), best(settings), settings.leaves_of_ideas
    run = step.run_settings(settings, "l", leaves)
    rates = []
    for what, chunk in (("embedded once", 0), ("gradient caching", run.videos_per_batch)):

        def measure(chunk: int = chunk) -> Mapping[str, float | str]:
            made = step.Step(way, run, device, norm_leaves=run.videos_per_batch, chunk_leaves=chunk)
            return _timed(made, run, device, settings)

        values = rows("caching", f"{what}, {leaves} clips in groups of {run.videos_per_batch}", measure, 90, "step")
        rates.append(float(values["clips/s"]) if values else None)
    if rates[0] and rates[1]:
        rows.note("caching", "caching over once", {"measured": rates[1] / rates[0], "predicted": PREDICTED["caching"]})


def ranks(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu import ranks

    device = _device(settings)
    for norm_leaves, what in ((settings.ranks_videos // 2, "groups"), (0, "the whole batch")):
        rows("ranks", f"one and two ranks, batch norm over {what}",
             lambda n=norm_leaves: ranks.together(settings, device.number(), n), 60)  # type: ignore[misc]  # fmt: skip


def ideas(settings: Settings, rows: Rows) -> None:
    """Each idea switched over on its own, from the best way."""
    from benchmarks.gpu import step

    device, base, leaves = _device(settings), best(settings), settings.leaves_of_ideas
    run = step.run_settings(settings, "l", leaves)
    values = rows("ideas", f"best way, {leaves} clips",
                  lambda: _timed(step.Step(base, run, device), run, device, settings), 90, "step")  # fmt: skip
    first = float(values["clips/s"]) if values else 0.0
    for name in settings.ideas:
        idea = IDEAS[name]
        way = idea.of(base)

        def measure(way: Way = way, name: str = name) -> Mapping[str, float | str]:
            if way == base:
                return {"is": "the best way here does so already"}
            off = step.disagreement(way, run, device) if way.padded or way.folded else None
            found = dict(_timed(step.Step(way, run, device), run, device, settings))
            said: dict[str, float | str] = {"predicted": IDEAS[name].predicted}
            if first:
                said["measured"] = float(found["clips/s"]) / first
            return said | found | ({} if off is None else {"off": off}) | {"why": IDEAS[name].why}

        rows("ideas", name, measure, 90, "step" if way.compiled else "eager step")
        device.fresh()


def _device(settings: Settings) -> Processor:
    from benchmarks.gpu.device import device_of

    return device_of(settings.device)


MEASURES = {one.__name__: one for one in (machine, shards, loading, step, training, caching, ranks, ideas)}


def main() -> None:
    """section, deadline as of time.time(), settings as JSON."""
    name, deadline, told = sys.argv[1:]
    settings = from_json(told)
    missing = absent.stand_in()
    clean = (lambda: None) if name in ("machine", "shards") else _device(settings).fresh
    MEASURES[name](settings, Rows(settings.out / ROWS, float(deadline), clean))
    # what was imported from elsewhere, for whoever wants to run this on a bare machine
    known = {*sys.stdlib_module_names, "benchmarks", "pipeline", "train"}
    outside = sorted({module.split(".")[0] for module in sys.modules} - known)
    print(f"imported: {', '.join(name for name in outside if not name.startswith('_'))}")
    if missing:
        print(f"not installed, and stood in for: {', '.join(missing)}")


if __name__ == "__main__":
    main()
