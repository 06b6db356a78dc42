"""Settings of the networks; does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from gdt.common.errors import UserError, require_positive, unknown

BACKBONES = {"r2plus1d": "gdt.train.models.r2plus1d.R2Plus1D"}
"""Video networks by name: module and class, a `models.backbone.Backbone`."""
VIDEO_OPTIONS = ("stem", "stem_middle", "widths", "depth", "slim")
"""Fields of `Network` for video networks; each network uses those in its `options`."""


@dataclass(frozen=True)
class Network:
    """Sizes of the networks (the paper's section A.4)."""

    backbone: str = "r2plus1d"
    """Name of the video network."""
    stem: int = 64
    """Channels after the stem of the video trunk."""
    stem_middle: int = 45
    """Channels between the spatial and the temporal convolution of the stem."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages of the video trunk; the last is the feature size."""
    depth: int = 2
    """Residual blocks per stage; 2 with four stages is R(2+1)D-18."""
    slim: bool = False
    """Fewer inner channels: as many as outer ones, instead of the number that matches
    a 3x3x3 convolution's parameters."""
    audio_stem: int = 64
    """Channels after the stem of the audio trunk."""
    audio_widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages of the audio trunk."""
    word_dimensions: int = 0
    """Dimensions of the word vectors; 0: those of the word2vec file."""
    text_width: int = 2048
    """Feature size of a text clip."""
    text_padding: bool = False
    """Include padding in the maximum over words; set automatically with --init weights that were trained that way, such
    as the published ones."""
    hidden: int = 512
    """Hidden units of the projection heads."""
    embedding: int = 256
    """Size of the L2-normalised embedding."""
    dropout: float = 0.3
    """Dropout before each layer of the projection heads, as in the published release."""

    def __post_init__(self) -> None:
        if self.backbone not in BACKBONES:
            raise unknown("--network.backbone", self.backbone, BACKBONES)
        require_positive(
            self, "network", "stem", "stem_middle", "depth", "audio_stem", "text_width", "hidden", "embedding"
        )
        if self.word_dimensions < 0 or not 0 <= self.dropout < 1:
            raise UserError("--network.word-dimensions must be 0 or more, and --network.dropout 0 or more and below 1")
        if min(*self.widths, *self.audio_widths, 1) < 1 or not self.widths or not self.audio_widths:
            raise UserError(
                "--network.widths and --network.audio-widths must be numbers of 1 or more, at least one of each"
            )
