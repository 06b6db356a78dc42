"""The model: a trunk and a projection head per modality, with the parameter names of the published weights."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gdt.pipeline.colour import Pixels
from gdt.pipeline.leaves import MODALITIES
from gdt.train.models.audio import AudioResNet
from gdt.train.models.backbone import Backbone
from gdt.train.models.network import Architecture
from gdt.train.models.own import Maker, build
from gdt.train.models.r2plus1d import R2Plus1D
from gdt.train.models.text import TextNetwork


class ProjectionHead(nn.Module):
    """Two fully connected layers: features [n, inputs] to embeddings [n, outputs] of length 1."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.block_forward = nn.Sequential(
            nn.Identity(),  # these keep the layer numbers of the release
            nn.Dropout(dropout),
            nn.Linear(inputs, hidden, bias=False),
            nn.Identity(),
            nn.BatchNorm1d(hidden),
            nn.Identity(),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.block_forward(x)
        return functional.normalize(x if x.dtype == torch.float64 else x.float(), dim=1)


class Trunk(nn.Module):
    """Wraps a network as `base`, as in the published checkpoints."""

    base: Any

    def __init__(self, base: Backbone) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Pixels | Tensor) -> Tensor:
        """Clips of the loader, or floats as the network takes them, to features [n, dim]."""
        return self.base(as_floats(x, next(self.parameters()).dtype))


class GDT(nn.Module):
    """Phi: maps leaves to embeddings by the trunk and head of their modality."""

    def __init__(
        self,
        network: Architecture,
        modalities: Sequence[str] = ("video", "audio"),
        makers: Mapping[str, Maker] = MappingProxyType({}),
    ) -> None:
        """`makers` are those of the trunks that `network` says are the user's own, by modality."""
        super().__init__()
        n = network
        self.network = network
        self.makers = dict(makers)
        self.modalities = tuple(name for name in MODALITIES if name in modalities)
        if "video" in modalities:
            video = build(makers["video"], n.video) if n.video else R2Plus1D(n)
            self.video_network = Trunk(video)
            self.mlp_v = ProjectionHead(video.dim, n.hidden, n.embedding, n.dropout)
        if "audio" in modalities:
            sound = build(makers["audio"], n.audio) if n.audio else AudioResNet(n.audio_stem, n.audio_widths)
            self.audio_network = Trunk(sound)
            self.mlp_a = ProjectionHead(sound.dim, n.hidden, n.embedding, n.dropout)
        if "text" in modalities:
            self.text_network = TextNetwork(n.word_dimensions or 300, n.text_width, n.text_padding)
            self.mlp_t = ProjectionHead(n.text_width, n.hidden, n.embedding, n.dropout)
        for name, module in self.paper_modules():
            # not the audio stem: the release replaces it after this initialisation, so it has torch's default
            if isinstance(module, nn.Conv2d | nn.Conv3d) and name != "audio_network.base.conv1":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def paper_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules with their names, but those of networks of the user's own."""
        return ((name, module) for name, module in self.named_modules() if ".base.net." not in f"{name}.")

    def trunk(self, modality: str) -> nn.Module:
        """Leaves of a modality to features."""
        return self.get_submodule(f"{modality}_network")

    def backbone(self, modality: str) -> Backbone:
        """The network in the trunk of video or audio."""
        trunk: Any = self.trunk(modality)
        return trunk.base

    def head(self, modality: str) -> nn.Module:
        """Features of a modality to embeddings."""
        return self.get_submodule(head_name(modality))

    def embed(self, modality: str, inputs: Any) -> Tensor:
        """Leaves of one modality to embeddings: float32 [n, d]."""
        return self.head(modality)(self.trunk(modality)(inputs))

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """Leaves by modality, as in `Batch.inputs`, to embeddings in that order: float32 [n, d]."""
        return torch.cat([self.embed(modality, leaves) for modality, leaves in inputs.items()])


def as_floats(x: Pixels | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inputs of a network with parameters of a dtype: clips of the loader in the precision of autocast, if it is on."""
    if isinstance(x, Pixels):
        device = x.crops.device.type
        x = x.floats(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype)
    return x.to(dtype) if dtype == torch.float64 else x


def head_name(modality: str) -> str:
    return f"mlp_{modality[0]}"


def any_device() -> torch.device:
    """A GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast(device: torch.device) -> torch.autocast:
    """Precision of evaluation and finetuning: bfloat16 on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def modalities_of(weights: Mapping[str, Tensor]) -> list[str]:
    return [name for name in MODALITIES if any(key.startswith(f"{name}_network.") for key in weights)]
