"""LeNet-5 (LeCun et al. 1998) for 32×32 grey images, with ReLU and max-pooling as in MindSpore's tutorial."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 32
# Of THOR, in batches of 16 to 64; docs/howto/thor.md says what was tried. What suits a ResNet makes LeNet diverge.
OF_OPTIMIZERS = {"thor": {"learning_rate": 0.01, "damping": 0.1, "frequency": 20, "average": 0.9}}


class LeNet5(nn.Module):
    """Images [N, 1, 32, 32] → logits [N, classes]; 61,706 parameters for 10 classes.

    Args:
        conv_bias: whether convolutions have biases; without, as by default in MindSpore, there are 61,684 parameters.
    """

    def __init__(self, classes: int = 10, *, conv_bias: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, bias=conv_bias)
        self.conv2 = nn.Conv2d(6, 16, 5, bias=conv_bias)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of images [N, 1, 32, 32]."""
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = nn.functional.max_pool2d(torch.relu(self.conv2(hidden)), 2).flatten(1)
        hidden = torch.relu(self.fc1(hidden))
        return self.fc3(torch.relu(self.fc2(hidden)))  # type: ignore[no-any-return]
