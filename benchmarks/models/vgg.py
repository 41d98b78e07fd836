"""VGG-16 (Simonyan and Zisserman 2015): few tensors, and most parameters in one of them."""

from torch import nn

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG16(nn.Sequential):
    """Images of any size from 32 x 32 up, 32 tensors.

    With features pooled to 7 x 7, as published, 138.4 M parameters for 1,000 classes; pooled to
    1 x 1, which suits small machines, 37.7 M.
    """

    def __init__(self, classes: int, pooled: int = 7) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, count in STAGES:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        super().__init__(
            *layers, nn.AdaptiveAvgPool2d(pooled), nn.Flatten(),
            nn.Linear(channels * pooled**2, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, classes),
        )  # fmt: skip
