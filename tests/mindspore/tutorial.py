"""MindSpore's tutorial on the landscape of a training: its LeNet-5, its MNIST, and what its SummaryLandscape calls.

This runs in an interpreter that has MindSpore, and imports nothing of this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import nn
from mindspore.common.initializer import Normal
from mindspore.dataset import transforms, vision
from mindspore.train import Loss, Model

DIRECTION_SEED = 7  # of numpy's generator just before the random directions are drawn
PIXELS = [
    vision.Resize((32, 32)),
    vision.Rescale(1 / 255, 0),
    vision.Rescale(1 / 0.3081, -0.1307 / 0.3081),
    vision.HWC2CHW(),
]


class LeNet5(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, 10, weight_init=Normal(0.02))
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, images):
        hidden = self.max_pool2d(self.relu(self.conv1(images)))
        hidden = self.flatten(self.max_pool2d(self.relu(self.conv2(hidden))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(hidden)))))


def images(data: Path, batch_size: int, operations: list[Any], *, shuffle: bool = False) -> Any:
    """The data set of MNIST's test files in a folder, the pixels as `operations` make them."""
    dataset = mindspore.dataset.MnistDataset(str(data), usage="test", shuffle=shuffle)
    dataset = dataset.map(transforms.TypeCast(mindspore.int32), input_columns="label")
    return dataset.map(operations, input_columns="image").batch(batch_size, drop_remainder=True)


def pixels(data: Path, operations: list[Any]) -> np.ndarray:
    rows: Iterator[dict[str, np.ndarray]] = images(data, 1, operations).create_dict_iterator(1, output_numpy=True)
    return np.concatenate([row["image"] for row in rows])


def loss_function() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def callback(data: Path, batch_size: int, loss: Loss) -> Any:
    """The function that SummaryLandscape calls for model, network, data and metrics.

    It is called before each landscape's values and, where a landscape on the path comes first, before the random
    directions of the last are drawn, which are then known by the seed.
    """

    def callback_fn() -> tuple[Model, nn.Cell, Any, dict[str, Loss]]:
        network, metrics = LeNet5(), {"Loss": loss}
        model = Model(network, loss_function(), metrics=metrics)
        np.random.seed(DIRECTION_SEED)  # noqa: NPY002 - MindSpore draws from this one
        return model, network, images(data, batch_size, PIXELS), metrics

    return callback_fn
