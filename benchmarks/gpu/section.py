"""One section of the benchmark, in a process of its own: what breaks it leaves the others alone."""

from __future__ import annotations

import importlib
import sys

from benchmarks.gpu import absent
from benchmarks.gpu.settings import SECTIONS, Settings, parsed
from benchmarks.gpu.table import Rows

if __name__ in ("__main__", "__mp_main__"):  # the processes that this one starts need them, too
    absent.stand_in()


def measure(name: str, settings: Settings, deadline: float) -> None:
    """The rows of a section; `deadline` as of time.time()."""
    from benchmarks.gpu import device

    module = importlib.import_module(f"benchmarks.gpu.{SECTIONS[name]}")
    path = settings.out / "rows.jsonl"
    if name in ("machine", "shards"):  # a machine without a device says so in its row
        getattr(module, name)(settings, Rows(path, name, deadline))
    else:
        place = device.device_of(settings.device)
        getattr(module, name)(settings, Rows(path, name, deadline, lambda: device.fresh(place)), place)


if __name__ == "__main__":
    measure(sys.argv[1], parsed(sys.argv[3:]), float(sys.argv[2]))
