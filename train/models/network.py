"""Settings of the networks; does not import torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from gdt.common.errors import UserError, require_range

_Networks = Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NETWORK ...")]


@dataclass(frozen=True)
class OwnNetworks:
    """Networks of your own, in place of the paper's."""

    video_network: _Networks = None
    """Your own video network, from clips [n, 3, frames, size, size] to features: file.py:Name(width=3) or
    package.module:name. A run has one; of several, each checkpoint takes the one with the name of its own."""
    audio_network: _Networks = None
    """The same for sound, from log-mel [n, 1, bands, frames]."""

    def __post_init__(self) -> None:
        for modality in ("video", "audio"):
            if getattr(self, f"{modality}_network") == ():
                raise UserError(f"--{modality}-network is empty; give one or more, or leave it out")

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """Those that are set, by modality."""
        networks = {"video": self.video_network, "audio": self.audio_network}
        return {modality: several for modality, several in networks.items() if several}

    def among(self, modalities: Collection[str]) -> OwnNetworks:
        """Those of some modalities."""
        return OwnNetworks(
            self.video_network if "video" in modalities else None,
            self.audio_network if "audio" in modalities else None,
        )


PAPER_NETWORKS = OwnNetworks()
"""No networks of the user's own."""


@dataclass(frozen=True, kw_only=True)
class ReadsWeights:
    own_networks: Annotated[OwnNetworks, tyro.conf.arg(name="")] = PAPER_NETWORKS
    """Those that the checkpoints were trained with, or rows of an ablation are."""


@dataclass(frozen=True)
class OwnNetwork:
    """A network of the user's own, as settings and checkpoints record it."""

    name: str
    """As it was given, without folders; for messages."""
    dim: int
    """Size of its features."""
    removed: tuple[str, ...]
    """The layers that classified them, which are left out."""

    def __str__(self) -> str:
        without = f", without its classifier {', '.join(self.removed)}" if self.removed else ""
        return f"{self.name}: {self.dim} features{without}"


@dataclass(frozen=True)
class Network:
    """Sizes of the networks (the paper's section A.3.4). Those that are not options are set by --size, or in Python."""

    stem: Annotated[int, tyro.conf.Suppress] = 64
    """Channels after the stem of the video trunk."""
    stem_middle: Annotated[int, tyro.conf.Suppress] = 45
    """Channels between the spatial and the temporal convolution of the stem."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages of the video trunk; the last is the feature size."""
    depth: int = 2
    """Residual blocks per stage; 2 with four stages is R(2+1)D-18."""
    slim: Annotated[bool, tyro.conf.Suppress] = False
    """Fewer inner channels in factorised convolutions: as many as output channels, instead of
    the number that gives as many parameters as a 3x3x3 convolution."""
    audio_stem: Annotated[int, tyro.conf.Suppress] = 64
    """Channels after the stem of the audio trunk."""
    audio_widths: Annotated[tuple[int, ...], tyro.conf.Suppress] = (64, 128, 256, 512)
    """Channels of the stages of the audio trunk."""
    text_width: Annotated[int, tyro.conf.Suppress] = 2048
    """Feature size of a text clip."""
    hidden: int = 512
    """Hidden units of the projection heads."""
    embedding: int = 256
    """Size of the L2-normalised embedding."""
    dropout: float = 0.3
    """Dropout before each layer of the projection heads, as in the published release."""

    def __post_init__(self) -> None:
        sizes = ("stem", "stem_middle", "depth", "audio_stem", "text_width", "hidden", "embedding")
        require_range(self, *sizes, group="network")
        require_range(self, "dropout", least=0, most=1, group="network")
        if not self.widths or min(*self.widths, *self.audio_widths) < 1:
            raise UserError(f"--network.widths is {self.widths}; it must be one or more numbers of 1 or more")

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes by name, without what an `Architecture` holds besides them."""
        return {size.name: getattr(self, size.name) for size in fields(Network)}


@dataclass(frozen=True)
class Architecture(Network):
    """The networks of a model: their sizes, and what its data, its weights and the user's own networks decide."""

    video: OwnNetwork | None = None
    """The video network, if it is not the paper's."""
    audio: OwnNetwork | None = None
    """The audio network, if it is not the paper's."""
    word_dimensions: int = 0
    """Dimensions of the word vectors."""
    text_padding: bool = False
    """Include padding in the maximum over words, as the published weights do."""

    @property
    def own(self) -> dict[str, OwnNetwork]:
        """The networks that are the user's own, by modality."""
        networks = {"video": self.video, "audio": self.audio}
        return {modality: network for modality, network in networks.items() if network}
