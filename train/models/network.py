"""Settings of the networks, in a module that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from gdt.common.errors import UserError, require_positive

BACKBONES = {"r2plus1d": "gdt.train.models.r2plus1d.R2Plus1D"}
"""Video networks by their names: module and class of each, a `models.backbone.Backbone`."""


@dataclass(frozen=True)
class Network:
    """Sizes of the networks (section A.4)."""

    backbone: str = "r2plus1d"
    """Name of the video network."""
    stem: int = 64
    """Channels after the first convolution of the video trunk."""
    stem_middle: int = 45
    """Channels inside that convolution, between its spatial and its temporal part."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages of the video trunk; the last is the size of the feature."""
    depth: int = 2
    """Residual blocks per stage of the video trunk; 2 with four stages is R(2+1)D-18."""
    slim: bool = False
    """Inner channels of the factorised convolutions: as many as the outer ones, instead of as many as keep the
    parameters of a full 3x3x3 convolution."""
    audio_stem: int = 64
    """Channels after the first convolution of the audio trunk."""
    audio_widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages of the audio trunk."""
    word_dimensions: int = 0
    """Dimensions of the word vectors; 0 takes those of the word2vec file, 300 for that of Google News."""
    text_width: int = 2048
    """Features of a text clip."""
    hidden: int = 512
    """Hidden units of the projection heads."""
    embedding: int = 256
    """Size of the L2-normalised embedding."""
    dropout: float = 0.3
    """Dropout before each layer of the projection heads, as in the published release."""

    def __post_init__(self) -> None:
        if self.backbone not in BACKBONES:
            raise UserError(f"there is no --network.backbone '{self.backbone}'; choose one of {', '.join(BACKBONES)}")
        require_positive(
            self, "network", "stem", "stem_middle", "depth", "audio_stem", "text_width", "hidden", "embedding"
        )
        if self.word_dimensions < 0 or not 0 <= self.dropout < 1:
            raise UserError("network: word-dimensions must be 0 or more, and dropout 0 or more and below 1")
        if min(*self.widths, *self.audio_widths, 1) < 1 or not self.widths or not self.audio_widths:
            raise UserError("network: widths and audio-widths must be numbers of 1 or more, at least one of each")
