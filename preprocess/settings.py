"""Settings of the commands that make and check shards, and of gdt generate."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from gdt.common.commandline import Location
from gdt.common.errors import require_range
from gdt.common.folders import Folder
from gdt.pipeline.shards.naming import shard_folder
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import Shares
from gdt.preprocess.synthetic.moments import Synthetic
from gdt.preprocess.workers import Workers


@dataclass(frozen=True)
class Preprocess(Workers):
    """Turn a data set of videos into shards. Run the same command again to resume."""

    dataset: str = "kinetics"
    """Name of the data set."""
    source: Location | None = None
    """Folder of the videos, or s3://…; default: data/videos/<dataset>."""
    destination: Location | None = None
    """Folder of the shards, or s3://…; default: data/shards/<dataset>."""
    layout: str = ""
    """Layout of --source; default: that of a known data set if --dataset names one, else folder, any tree of videos."""
    extraction: Annotated[Extraction, tyro.conf.arg(name="")] = field(default_factory=Extraction)
    word2vec: Path | None = None
    """word2vec file, to store captions as words; default: no captions."""
    videos_per_shard: int = 128
    """Maximum number of videos per shard; a 20th of few videos, or 256 MB, end it sooner."""
    val: float | None = None
    """Fraction of unsplit videos for val; default: last run's, or 0."""
    test: float | None = None
    """The same for test; the others become train."""
    drop_missing: bool = False
    """Rebuild shards without the videos no longer in --source."""
    retry_rejected: bool = False
    """Rebuild the shards with rejected videos, to try these again."""
    allow_rejected: bool = False
    """Go on where a third of the first hundred videos are rejected for one reason, or where some cannot be read now."""
    dry_run: bool = False
    """List and count the videos; decode none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "videos_per_shard")
        Shares(self.val or 0.0, self.test or 0.0)  # validates

    @property
    def shard_folder(self) -> Folder:
        return shard_folder(self.dataset, self.destination)

    @property
    def absolute_shards(self) -> Folder:
        """Workers of a cluster may run in another folder."""
        return self.shard_folder.absolute()

    @property
    def source_folder(self) -> Folder:
        """Absolute, as the shards are."""
        return Folder(self.source or Path("data/videos") / self.dataset).absolute()


@dataclass(frozen=True)
class Verify:
    """Check every shard of a data set; the exit status is 2 if one is damaged or cannot be checked."""

    dataset: str = "kinetics"
    """Name of the preprocessed data set."""
    shards: Location | None = None
    """Folder of the shards, or s3://…; default: data/shards/<dataset>."""
    remove: bool = False
    """Remove damaged shards; preprocessing rebuilds them."""

    @property
    def shard_folder(self) -> Folder:
        return shard_folder(self.dataset, self.shards)


@dataclass(frozen=True)
class Generate:
    """Generate a synthetic data set."""

    destination: Path = Path("data/videos/synthetic")
    """Folder of the videos."""
    workers: int = 0
    """Processes that render and encode; 0: one per core."""
    videos: Annotated[Synthetic, tyro.conf.arg(name="")] = field(default_factory=Synthetic)
