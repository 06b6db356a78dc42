"""Settings of what decodes videos."""

from dataclasses import dataclass

from gdt.common.errors import UserError, require_range

_MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class Workers:
    workers: int = 0
    """Threads, or for many videos processes; 0: one per core."""
    scheduler: str = ""
    """Dask scheduler (tcp://host:8786); default: this machine."""

    def __post_init__(self) -> None:
        require_range(self, "workers", least=0, most=_MOST)
        if self.scheduler and ":" not in self.scheduler:
            raise UserError(f"--scheduler is '{self.scheduler}'; it must be an address, such as tcp://host:8786")
