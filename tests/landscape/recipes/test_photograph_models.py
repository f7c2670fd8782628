"""ResNet-50 v1.5 and the two-layer network: sizes by hand, what the stride reads, dropout in training alone."""

import pytest
import torch

from landscape.core.errors import JobError
from landscape.recipes.cnn import CNN
from landscape.recipes.resnet50 import Bottleneck, ResNet50


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def by_hand(channels: int, classes: int) -> int:
    """Parameters of ResNet-50, counted from the paper's table: kernels, and two numbers a channel of batch norm."""
    total, inputs = 3 * 49 * channels + 2 * channels, channels
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = channels * 2**stage
        for block in range(blocks):
            total += inputs * width + 9 * width**2 + 4 * width**2 + 2 * (width + width + 4 * width)
            total += (4 * inputs * width + 8 * width) * (block == 0)
            inputs = 4 * width
    return total + inputs * classes + classes


def test_resnet_50_has_the_parameters_of_the_paper():
    with torch.device("meta"):
        assert count(ResNet50()) == by_hand(64, 1000) == 25_557_032
    assert count(ResNet50(7, channels=4)) == by_hand(4, 7)


def test_resnet_50_takes_images_of_other_sizes():
    model = ResNet50(3, channels=2).eval()
    for side in (32, 64, 224):
        assert model(torch.zeros(1, 3, side, side)).shape == (1, 3)


def test_the_stride_of_v15_reads_every_pixel():
    """With the stride in a 1×1 convolution three pixels of four would have no gradient."""
    block = Bottleneck(8, 2, 2).eval()
    block.shortcut = torch.nn.AvgPool2d(2)
    torch.nn.init.ones_(block.conv1.weight)
    torch.nn.init.ones_(block.conv2.weight)
    torch.nn.init.ones_(block.conv3.weight)
    images = torch.ones(1, 8, 6, 6, requires_grad=True)
    output = block(images)
    (through_the_block,) = torch.autograd.grad(output.sum() - block.shortcut(images).sum(), images)
    assert output.shape == (1, 8, 3, 3)
    assert (through_the_block > 0).all()


def test_blocks_with_zero_gamma_pass_their_input_on():
    images = torch.rand(2, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    passing, plain = (ResNet50(2, channels=4, zero_gamma=zero).blocks[1].eval() for zero in (True, False))
    assert torch.equal(passing(images), images)
    assert not torch.allclose(plain(images), images)


@pytest.mark.parametrize(
    ("classes", "channels", "field"), [(0, 4, "classes"), (2, 0, "channels"), (True, 4, "classes")]
)
def test_a_resnet_50_that_there_is_not(classes, channels, field):
    with pytest.raises(JobError, match=f"^{field}: must be a whole number from 1 on"):
        ResNet50(classes, channels=channels)


@pytest.mark.parametrize(("side", "parameters"), [(28, 3_274_634), (32, 4_257_674)])
def test_the_two_layer_network(side, parameters):
    model = CNN(side=side)
    assert count(model) == parameters
    assert model(torch.zeros(2, 1, side, side)).shape == (2, 10)


def test_dropout_is_of_training_alone():
    torch.manual_seed(0)
    model, images = CNN(side=8, dropout=0.5), torch.rand(4, 1, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("options", [{"side": 3}, {"dropout": 1.0}, {"dropout": -0.1}, {"dropout": float("nan")}])
def test_a_two_layer_network_that_there_is_not(options):
    with pytest.raises(JobError, match=f"^{next(iter(options))}: must be"):
        CNN(**options)
