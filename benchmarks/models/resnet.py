"""ResNet-50 (He et al. 2016; stride in the 3 x 3 convolution, as everybody trains it today)."""

import torch
from torch import nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same height and width divided by ``stride``, ``4 * width`` channels."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Sequential):
    """Images of any size from 32 x 32 up; 25.6 M parameters in 161 tensors for 1,000 classes."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        channels = 64
        for stage, (width, count) in enumerate(STAGES):
            for block in range(count):
                layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = width * EXPANSION
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
        super().__init__(*layers, *head)
