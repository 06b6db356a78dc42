"""One section of the benchmark, in a process of its own: what breaks it leaves the others alone."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from benchmarks.gpu import absent
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.table import AGAIN, ROWS, Rows, Values, read
from benchmarks.gpu.ways import GOALS, IDEAS, PREDICTED, Way
from gdt.common.serialization import rebuilt

if TYPE_CHECKING:
    from benchmarks.gpu.device import Processor

if __name__ in ("__main__", "__mp_main__"):  # the processes that this one starts need them, too
    absent.stand_in()

_ALIKE = 0.05
"""Share by which the loss of another way to compute the same may be off after a few steps; bfloat16 rounds."""


def machine(settings: Settings, rows: Rows) -> None:
    import torch

    from gdt.train.provenance import git_commit

    def facts() -> Mapping[str, str]:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        found = {
            "commit": git_commit()[:12] or "unknown", "python": platform.python_version(),
            "torch": str(torch.__version__), "CUDA": torch.version.cuda or "none", "cuDNN": str(cudnn or "none"),
            "DALI": _version("nvidia-dali"), "cores": str(settings.processes), "threads": str(torch.get_num_threads()),
            "is": f"stood in for: {', '.join(sorted(absent.MISSING)) or 'nothing'}",
        }  # fmt: skip
        return _device(settings).facts() | found

    if rows("machine", "versions", facts) is None:
        sys.exit(2)


def _version(package: str) -> str:
    for found in metadata.distributions():
        if (found.metadata["Name"] or "").startswith(package):
            return f"{found.metadata['Name']} {found.version}"
    return "not installed"


def shards(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu.drawn import draw

    def drawn() -> Values:
        folder = draw(settings.shards, settings.batch, settings.frames, settings.shorter_side, settings.processes)
        size = sum(path.stat().st_size for path in folder.glob("shard-*.h5"))
        return {"videos": settings.batch, "frames": settings.frames, "MB": size / 1e6,
                "kB/frame": size / 1e3 / settings.batch / settings.frames}  # fmt: skip

    rows("shards", "drawn", drawn)


def kernels(settings: Settings, rows: Rows) -> None:
    """What a run would compute with, found as a run finds it."""
    import torch

    from gdt.train.kernels import first_right, ways

    device, cuda = _device(settings), settings.device == "cuda"

    def chosen() -> Values:
        said: list[str] = []
        numbers = torch.bfloat16 if cuda else torch.float32
        with device.numbers(benchmark=True):
            found = first_right(ways(numbers, compiled=cuda), settings.network, settings.clip, settings.leaves_of_ideas,
                                0, device.device, said.append)  # fmt: skip
        kept = {"bfloat16": found.precision == torch.bfloat16, "channels_last": found.channels_last,
                "compiled": found.compiled}  # fmt: skip
        return {name: "yes" if value else "no" for name, value in kept.items()} | {"is": "; ".join(said)}

    rows("kernels", "the first that are right", chosen, 120)


def best(settings: Settings) -> Way:
    """The way that training computes: with the kernels that were found right, or what comes first where none were."""
    for row in read(settings.out / ROWS):
        if row.section == "kernels" and row.values:
            names = ("bfloat16", "channels_last", "compiled")
            return Way(**{name: row.values[name] == "yes" for name in names})
    return Way() if settings.device == "cuda" else Way(bfloat16=False, compiled=False)


def step(settings: Settings, rows: Rows) -> None:
    """The best way over sizes, and the plain way."""
    from benchmarks.gpu.step import plain_step, run_settings

    device, way = _device(settings), best(settings)
    name = device.facts()["device"]
    goal = next((clips for part, clips in GOALS.items() if part in name), None)
    predicted = PREDICTED["clips/s"] if "H100" in name and settings.size == "paper" else None
    beside = {name: value for name, value in (("goal", goal), ("predicted", predicted)) if value is not None}
    found = {}

    def best_way(leaves: int) -> Values:
        return beside | _step(settings, device, way, leaves)

    for leaves in settings.leaves:
        values = rows("step", f"best way, {leaves} clips", partial(best_way, leaves), 90, "step")
        if values:
            found[leaves] = float(values["clips/s"])

    def plain(leaves: int) -> Values:
        take = plain_step(run_settings(settings, "l", leaves), device)
        losses = [take() for _ in range(max(1, settings.warm))]
        seconds = device.seconds(take, settings.steps)
        return {"clips/s": leaves / seconds, "ms": 1000 * seconds, "GiB": device.most(), "loss": losses[0]}

    rows.note("step", "goals", {"is": f"{', '.join(f'{n:.0f} clips/s on an {gpu}' for gpu, n in GOALS.items())}, and "
                                f"{PREDICTED['plain']:g} times the plain way; this is {name}"})  # fmt: skip
    most = settings.leaves_of_ideas
    for leaves in sorted({most, *(n for n in settings.leaves if n < most)}, reverse=True):
        if values := rows("step", f"plain way, {leaves} clips", partial(plain, leaves), 60):
            break
    if values and found:
        own, fastest = float(values["clips/s"]), max(found, key=lambda one: found[one])
        alike = f"{found[leaves] / own:.2f}" if leaves in found else "not measured"
        rows.note("step", "best over plain way", {
            "times": found[fastest] / own,
            "is": f"at {fastest} clips, the fastest; at {leaves} of both {alike}; goal {PREDICTED['plain']:g}",
        })  # fmt: skip


def _step(
    settings: Settings, device: Processor, way: Way, leaves: int, norm_leaves: int = 0, chunk_leaves: int = 0
) -> dict[str, float | str]:
    from benchmarks.gpu.step import Step, measured, run_settings

    run = run_settings(settings, "l", leaves)
    made = Step(way, run, device, norm_leaves=norm_leaves, chunk_leaves=chunk_leaves)
    return dict(measured(made, run, device, settings))


def training(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu.training import GPUS, whole

    for row in settings.rows:
        rows("training", f"row {row}, {settings.batch} videos", partial(whole, settings, row, settings.batch),
             240 if row == "l" else 120)  # fmt: skip
    share = settings.batch // GPUS
    if share >= 2:
        rows("training", f"row l, {share} videos, as on each of {GPUS}", partial(whole, settings, "l", share), 90)


def loading(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu.loading import choices, differences, rate

    device = _device(settings)
    several = {f", {name}" if name else "": loading for name, loading in choices(settings).items()}
    for name, loading in several.items():
        rows("loading", f"crops of {settings.device} and cpu{name}", partial(differences, settings, device, loading))
    for name, loading in several.items():
        # pictures alone need no DALI where the cores decode
        for row in ("e", "l", "a") if loading.decoder == "cpu" else ("e", "l"):
            rows("loading", f"row {row}{name}", partial(rate, settings, device, row, loading),
                 settings.loading_seconds + 10, "loading")  # fmt: skip


def caching(settings: Settings, rows: Rows) -> None:
    """The same groups, embedded once with all activations, and twice a chunk at a time."""
    device, way, leaves = _device(settings), best(settings), settings.leaves_of_ideas
    group = leaves // 4
    rates = []
    for what, chunk in (("embedded once", 0), ("gradient caching", group)):
        values = rows("caching", f"{what}, {leaves} clips in groups of {group}",
                      partial(_step, settings, device, way, leaves, group, chunk), 90, "step")  # fmt: skip
        rates.append(float(values["clips/s"]) if values else None)
    if rates[0] and rates[1]:
        gain = {"gain predicted": PREDICTED["caching"], "gain measured": rates[1] / rates[0]}
        rows.note("caching", "caching over once", gain)


def ranks(settings: Settings, rows: Rows) -> None:
    from benchmarks.gpu.ranks import together

    rows("ranks", "one rank and two", partial(together, settings, _device(settings).number()), 90)


def ideas(settings: Settings, rows: Rows) -> None:
    """Each idea switched over on its own, from the best way."""
    from benchmarks.gpu.step import disagreement, run_settings

    device, base, leaves = _device(settings), best(settings), settings.leaves_of_ideas
    first = rows("ideas", f"best way, {leaves} clips", partial(_step, settings, device, base, leaves), 90, "step")

    def measure(name: str) -> Values:
        idea, way = IDEAS[name], IDEAS[name].of(base)
        if way == base:
            return {"is": "the best way here does so already"}
        said: dict[str, float | str] = {"gain predicted": idea.predicted}
        if way.padded or way.folded:
            said["features off"] = disagreement(way, run_settings(settings, "l", leaves), device)
            device.fresh()
        found = _step(settings, device, way, leaves)
        if first:
            said["gain measured"] = float(found["clips/s"]) / float(first["clips/s"])
            off = abs(float(found["last loss"]) / float(first["last loss"]) - 1)
            if idea.same and not off < _ALIKE:
                said["is"] = f"NOT THE SAME: its last loss is off by {100 * off:.0f} %"
        return said | found | {"why": idea.why}

    for name in settings.ideas:
        rows("ideas", name, partial(measure, name), 90, "step" if IDEAS[name].of(base).compiled else "eager step")
    # how far the first one can be relied on
    rows("ideas", "best way, once more", partial(_step, settings, device, base, leaves), 90, "step")


def _device(settings: Settings) -> Processor:
    from benchmarks.gpu.device import device_of

    return device_of(settings.device)


MEASURES = {one.__name__: one for one in (machine, shards, kernels, step, training, loading, caching, ranks, ideas)}


def measure(name: str, settings: Settings, deadline: float) -> None:
    """The rows of a section; `deadline` as of time.time(). Exits with AGAIN where another process should go on."""
    clean = (lambda: None) if name in ("machine", "shards") else _device(settings).fresh
    MEASURES[name](settings, Rows(settings.out, deadline, clean, partial(sys.exit, int(AGAIN))))


def main() -> None:
    """section, deadline, settings as JSON."""
    name, deadline, told = sys.argv[1:]
    measure(name, rebuilt(Settings, json.loads(told)), float(deadline))


if __name__ == "__main__":
    main()
