"""What every tool evaluates: a trained model, its samples, and one plane with a lattice of points on it.

The two directions are Gaussian, each tensor of length √(its size), the whole as long as the weights. Landscaper gives
any direction this shape and cannot be told not to; the other tools take directions as they are. So this plane is the
one that all can evaluate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from landscape.recipes import cifar10, digits, mnist
from landscape.recipes.resnet import ResNet

State = dict[str, Tensor]
Points = list[tuple[float, float]]
Batches = list[tuple[Tensor, Tensor]]

STEP = 0.02  # between points, in lengths of the weights
SEED = 0
EPOCHS = 2  # of LeNet-5; the loss then is near a minimum, and it takes seconds


class MissingData(Exception):
    """The files of a subject are not there."""


@dataclass(frozen=True)
class Subject:
    """A model in eval mode and its samples; the directions are a tensor per parameter."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    source: str

    @cached_property
    def axes(self) -> tuple[State, State]:
        generator = torch.Generator().manual_seed(SEED)
        return make_axis(self.model, generator), make_axis(self.model, generator)

    def moved(self, alpha: float, beta: float) -> nn.Module:
        """A copy of the model at θ₀ + α·d₁ + β·d₂, worked out in float64."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                shift = alpha * self.axes[0][name].double() + beta * self.axes[1][name].double()
                parameter.copy_(parameter.double() + shift)
        return model

    def batches(self, size: int) -> Batches:
        return list(zip(self.inputs.split(size), self.targets.split(size), strict=True))


@dataclass(frozen=True)
class Lattice:
    """side × side points; index i of an axis lies at (i − ⌊side/2⌋)·step, so one point is the origin."""

    side: int
    step: float = STEP

    @property
    def coordinates(self) -> list[float]:
        return [self.at(index) for index in range(self.side)]

    def at(self, index: int) -> float:
        return (index - self.side // 2) * self.step

    @property
    def points(self) -> Points:
        return [(alpha, beta) for alpha in self.coordinates for beta in self.coordinates]


def make_axis(model: nn.Module, generator: torch.Generator) -> State:
    """A Gaussian direction: ‖dₖ‖ = √(size of k) up to a common factor, ‖d‖ = ‖θ‖."""
    axis = {name: torch.randn(each.shape, generator=generator) for name, each in model.named_parameters()}
    axis = {name: each * (each.numel() ** 0.5 / each.norm()) for name, each in axis.items()}
    factor = _length(dict(model.named_parameters())) / _length(axis)
    return {name: each * factor for name, each in axis.items()}


def _length(state: State) -> float:
    return sum(float(each.detach().double().square().sum()) for each in state.values()) ** 0.5


def lenet(data: Path, workspace: Path, samples: int) -> Subject:
    """LeNet-5 on MNIST's test digits, or on scikit-learn's where those are not there; trained here."""
    if (data / "t10k-images-idx3-ubyte.gz").exists():
        trained = mnist.train(workspace / "mnist", data, EPOCHS, split="test", intervals=[[0, 1, 2]])
        images, labels = mnist.network_input(mnist.read_mnist(data, "test"), "resize")
        source = f"MNIST t10k, trained for {EPOCHS} epochs"
    else:
        trained = digits.train(workspace / "digits", EPOCHS, intervals=[[0, 1, 2]])
        (images, labels), _ = digits.read_digits()
        source = f"scikit-learn's digits, trained for {EPOCHS} epochs"
    return Subject("LeNet-5", trained.model.cpu().eval(), images[:samples], labels[:samples], source)


def resnet20(data: Path, workspace: Path, samples: int) -> Subject:
    """The trained CIFAR-10 ResNet-20 and test images of the shared data.

    Raises:
        MissingData: they are not there.
    """
    weights, images = data / "resnet20-cifar10.safetensors", data / "cifar10-test-2048.npz"
    for file in (weights, images):
        if not file.exists():
            raise MissingData(f"{file} is not there")
    model = ResNet(20)
    model.load_state_dict(load_file(weights))
    pixels, labels = cifar10.read_cifar10(images, "test")
    pixels, labels = cifar10.normalise(pixels[:samples]), labels[:samples]
    return Subject("ResNet-20", model.eval(), pixels, labels, "CIFAR-10 test images, trained weights as published")


SUBJECTS: dict[str, Callable[[Path, Path, int], Subject]] = {"lenet": lenet, "resnet20": resnet20}


def reference(subject: Subject, points: Points) -> list[float]:
    """The mean losses in float64, by a plain loop that shares no code with any of the tools."""
    losses = []
    for alpha, beta in points:
        model = copy.deepcopy(subject.model).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += alpha * subject.axes[0][name].double() + beta * subject.axes[1][name].double()
            total = 0.0
            for inputs, targets in subject.batches(256):
                total += nn.functional.cross_entropy(model(inputs.double()), targets, reduction="sum").item()
        losses.append(total / len(subject.targets))
    return losses
