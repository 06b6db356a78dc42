"""R(2+1)D (Tran et al. 2018) with the parameter names of torchvision's `r2plus1d_18`, so that its weights load."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gdt.train.models.backbone import Backbone
from gdt.train.models.network import Network


class Factorised(nn.Sequential):
    """A convolution in space, batch norm, ReLU and a convolution in time; further layers may follow.

    Tensor cores take channels in multiples of 8. With `multiple` 8, the inner channels are padded with zeros in every
    pass, which changes neither the results nor the weights: a channel of zeros stays zero in all layers.
    """

    multiple = 1

    def forward(self, x: Tensor) -> Tensor:
        space, norm, relu, time, *rest = list[Any](self)
        extra = -norm.num_features % self.multiple
        if extra and isinstance(norm, nn.BatchNorm3d):
            x = functional.conv3d(x, _pad(space.weight, extra, 0), None, space.stride, space.padding)
            x = functional.conv3d(
                relu(_padded_norm(norm, x, extra)), _pad(time.weight, extra, 1), None, time.stride, time.padding
            )
        else:
            x = time(relu(norm(space(x))))
        for layer in rest:
            x = layer(x)
        return x


def _pad(values: Tensor, extra: int, axis: int) -> Tensor:
    """With `extra` zeros at the end of an axis."""
    return functional.pad(values, (0, 0) * (values.dim() - 1 - axis) + (0, extra))


def _padded_norm(norm: Any, x: Tensor, extra: int) -> Tensor:
    """Batch norm of n + extra channels by that of n."""
    mean = _pad(norm.running_mean, extra, 0)
    var = _pad(norm.running_var, extra, 0)
    weight = _pad(norm.weight, extra, 0)
    bias = _pad(norm.bias, extra, 0)
    x = functional.batch_norm(x, mean, var, weight, bias, norm.training, norm.momentum, norm.eps)
    if norm.training:
        # batch_norm has updated the padded copies
        norm.running_mean.copy_(mean[:-extra])
        norm.running_var.copy_(var[:-extra])
        norm.num_batches_tracked.add_(1)
    return x


def factorised(inputs: int, outputs: int, middle: int, stride: int = 1) -> Factorised:
    """A 3x3x3 convolution factorised into 1x3x3 in space and 3x1x1 in time."""
    return Factorised(
        nn.Conv3d(inputs, middle, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1), bias=False),
        nn.BatchNorm3d(middle),
        nn.ReLU(inplace=True),
        nn.Conv3d(middle, outputs, (3, 1, 1), stride=(stride, 1, 1), padding=(1, 0, 0), bias=False),
    )


class FactorisedBlock(nn.Module):
    """Residual block of two factorised convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, slim: bool) -> None:
        super().__init__()
        # as many parameters as a 3x3x3 convolution
        middle = outputs if slim else inputs * outputs * 27 // (inputs * 9 + 3 * outputs)
        self.conv1 = nn.Sequential(
            factorised(inputs, outputs, middle, stride), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True)
        )
        self.conv2 = nn.Sequential(factorised(outputs, outputs, middle), nn.BatchNorm3d(outputs))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm3d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv2(self.conv1(x)) + shortcut)


class R2Plus1D(Backbone):
    """Stages, all but the first halving time and space; four with two blocks each are 18 layers."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        middle = network.stem_middle
        inputs = network.stem
        self.stem = Factorised(
            nn.Conv3d(3, middle, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3), bias=False),
            nn.BatchNorm3d(middle),
            nn.ReLU(inplace=True),
            nn.Conv3d(middle, inputs, (3, 1, 1), padding=(1, 0, 0), bias=False),
            nn.BatchNorm3d(inputs),
            nn.ReLU(inplace=True),
        )
        for number, outputs in enumerate(network.widths, 1):
            stride = 1 if number == 1 else 2
            blocks = [FactorisedBlock(inputs, outputs, stride, network.slim)]
            blocks += [FactorisedBlock(outputs, outputs, 1, network.slim) for _ in range(network.depth - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            inputs = outputs
        self.dim = inputs
