"""ResNet-(6n+2) for 32×32 images (He et al. 2016, section 4.2), wider or without its skip connections if asked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError


class Block(nn.Module):
    """Two 3×3 convolutions; the input is added if `shortcut` is set."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added, self.shortcut = stride, outputs - inputs, shortcut

    def forward(self, images: Tensor) -> Tensor:
        """The block's output: images [N, inputs, H, W] → [N, outputs, ⌈H/stride⌉, ⌈W/stride⌉]."""
        hidden = torch.relu(self.bn1(self.conv1(images)))
        hidden = self.bn2(self.conv2(hidden))
        if self.shortcut:
            hidden = hidden + self._identity(images)
        return torch.relu(hidden)

    def _identity(self, images: Tensor) -> Tensor:
        """The skip connection of option A: every second pixel, and zero channels on both sides; no parameters."""
        if self.added or self.stride > 1:
            before = self.added // 2
            images = images[:, :, :: self.stride, :: self.stride]
            images = nn.functional.pad(images, (0, 0, 0, 0, before, self.added - before))
        return images


class ResNet(nn.Module):
    """Images [N, 3, 32, 32] → logits [N, classes]; depth 20 and width 1 have 269,722 parameters for 10 classes.

    Args:
        depth: 6n+2 layers: 8, 14, 20, 32, 44, 56, 110, ….
        width: multiplies the 16, 32 and 64 channels.
        shortcuts: False removes the skip connections, as Li et al. (2018) did to show their effect.

    Raises:
        JobError: depth is not 6n+2 with n from 1 on, or width is below 1.
    """

    def __init__(self, depth: int = 20, width: int = 1, *, shortcuts: bool = True, classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise JobError(f"depth: must be 6n+2 with n from 1 on (8, 14, 20, 32, 56, 110, …), not {depth}")
        if width < 1:
            raise JobError(f"width: must be at least 1, not {width}")
        channels = [16 * width, 32 * width, 64 * width]
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        blocks = (depth - 2) // 6
        self.layer1 = _stage(channels[0], channels[0], blocks, 1, shortcuts)
        self.layer2 = _stage(channels[0], channels[1], blocks, 2, shortcuts)
        self.layer3 = _stage(channels[1], channels[2], blocks, 2, shortcuts)
        self.linear = nn.Linear(channels[2], classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of images [N, 3, 32, 32]."""
        hidden = torch.relu(self.bn1(self.conv1(images)))
        hidden = self.layer3(self.layer2(self.layer1(hidden)))
        return self.linear(hidden.mean((2, 3)))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, blocks: int, stride: int, shortcuts: bool) -> nn.Sequential:
    first = Block(inputs, outputs, stride, shortcuts)
    return nn.Sequential(first, *(Block(outputs, outputs, 1, shortcuts) for _ in range(blocks - 1)))
