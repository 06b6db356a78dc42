"""Networks as users write them, for test_own: their own, and small ones of libraries."""

import os
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CLIP, BANK = (3, 8, 32, 32), (1, 40, 99)
SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "hidden_dropout_prob": 0.1,
}  # fmt: skip
PICTURE = SMALL | {"image_size": 32, "patch_size": 8, "num_frames": 8}


class Net(nn.Module):
    """Patches of clips, layer norm, attention, dropout, drop path and a classifier; blocks are skipped at random."""

    def __init__(self, width: int = 16, dropout: float = 0.3) -> None:
        super().__init__()
        self.patches = nn.Conv3d(3, width, (2, 8, 8), stride=(2, 8, 8))
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.extra = nn.Linear(width, width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = self.blocks(x.view(*x.shape[:2], -1).transpose(1, 2))
        if not self.training or torch.rand(()) < 0.5:
            x = x + self.extra(x)
        return self.fc(self.dropout(self.norm(x).mean(1)))


class Sound(nn.Sequential):
    """Batch norm; maps [n, 8, bands, frames]."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 8, 5, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.3))


class Unseeded(Sound):
    """Starts with other weights on every rank."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self[1].weight, 1 + int(os.environ.get("RANK", "0")))


class Plain(nn.Sequential):
    """Dropout, and quick to compile."""

    def __init__(self) -> None:
        super().__init__(nn.Conv3d(3, 8, 8, 8), nn.Dropout(0.3), nn.Flatten(2), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).transpose(1, 2)


class Elsewhere(Sound):
    """Draws from Python's random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * random.random()


class Breaking(Plain):
    """The last rank's gradient is NaN from a pass of training on; its loss is finite."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if out.requires_grad and int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            self.left -= 1
            if self.left <= 0:
                out.register_hook(lambda gradient: gradient * torch.nan)
        return out


class Skipping(Sound):
    """Skips its batch norm in one of a hundred passes."""

    def forward(self, x: Tensor) -> Tensor:
        convolution, norm, *_ = self
        x = convolution(x)
        return x if self.training and torch.rand(()) < 0.01 else norm(x)


class Counting(Sound):
    """Changes a buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


def _arranged(kind: type[nn.Module], config: Any, arrange: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network of transformers, with its own names, and inputs arranged for it."""

    class Arranged(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Any:
            return super().forward(arrange(x))

    return Arranged(config)


def videomae() -> nn.Module:
    import transformers as t

    return _arranged(t.VideoMAEModel, t.VideoMAEConfig(**PICTURE), lambda x: x.transpose(1, 2))


def ast() -> nn.Module:
    import transformers as t

    config = t.ASTConfig(**SMALL, max_length=99, num_mel_bins=40)
    return _arranged(t.ASTForAudioClassification, config, lambda x: x[:, 0].transpose(1, 2))


def x3d() -> nn.Module:
    from pytorchvideo.models.x3d import create_x3d

    return create_x3d(input_clip_length=8, input_crop_size=32)


def mvit() -> nn.Module:
    from pytorchvideo.models.vision_transformers import create_multiscale_vision_transformers

    return create_multiscale_vision_transformers(
        spatial_size=32, temporal_size=8, depth=2, patch_embed_dim=16, num_heads=2, dropout_rate_block=0.1,
        droppath_rate_block=0.1, embed_dim_mul=None, atten_head_mul=None, pool_q_stride_size=None,
        pool_kv_stride_size=None,
    )  # fmt: skip
