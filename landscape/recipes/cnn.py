"""The two-layer convolutional network with dropout that landscape articles train on MNIST: training and callback.

python -m landscape.recipes.cnn --data mnist/ --run runs/cnn
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscape.errors import JobError, shown

SMALLEST = 4  # pixels a side: two poolings leave one


class CNN(nn.Module):
    """Grey images [N, 1, side, side] → logits [N, classes]; 3,274,634 parameters for MNIST's 28×28 and 10 classes.

    A 5×5 convolution with 32 channels, another with 64, each followed by ReLU and 2×2 max-pooling, 1,024 dense units
    with ReLU and dropout, and the output. The convolutions keep the size of the image by padding.

    Args:
        side: of the images in pixels; 28 are MNIST's, 32 those of `landscape.recipes.digits`.
        dropout: the share of the dense units that are left out in training.

    Raises:
        JobError: side is below 4, or dropout is not from 0 to below 1.
    """

    def __init__(self, classes: int = 10, *, side: int = 28, dropout: float = 0.5) -> None:
        super().__init__()
        if side < SMALLEST:
            raise JobError(f"side: must be at least {SMALLEST}, not {side}")
        if not 0 <= dropout < 1:
            raise JobError(f"dropout: must be from 0 to below 1, not {shown(dropout)}")
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (side // 4) ** 2, 1024)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of images [N, 1, side, side]."""
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = nn.functional.max_pool2d(torch.relu(self.conv2(hidden)), 2).flatten(1)
        return self.fc2(self.dropout(torch.relu(self.fc1(hidden))))  # type: ignore[no-any-return]
