"""ResNet over log-mel clips, one basic block per stage (9 layers with four stages), with torchvision's names."""

from torch import Tensor, nn

from gdt.train.models.backbone import Backbone


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(x + shortcut)


class AudioResNet(Backbone):
    """Audio trunk with a 1-channel 7x7 stem: log-mel [n, 1, bands, frames] to features [n, dim]."""

    def __init__(self, stem: int = 64, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = stem
        for number, outputs in enumerate(widths, 1):
            self.add_module(f"layer{number}", nn.Sequential(BasicBlock(inputs, outputs, 1 if number == 1 else 2)))
            inputs = outputs
        self.dim = inputs
