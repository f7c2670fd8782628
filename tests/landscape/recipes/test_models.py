"""The networks have the sizes of their papers, and a trained one gives the figures it is known for."""

from pathlib import Path

import pytest
import torch

from landscape.core.errors import JobError
from landscape.recipes.cifar10 import make_problem, normalise, read_cifar10
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet
from landscape.recipes.training import Arrays, evaluate

SHARED = Path(__file__).parents[4] / "shared" / "data"


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_lenet_5():
    assert count(LeNet5()) == 61_706
    assert LeNet5()(torch.zeros(3, 1, 32, 32)).shape == (3, 10)


@pytest.mark.parametrize(
    ("depth", "parameters"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018), (110, 1_727_962)]
)
def test_resnets_of_the_paper(depth, parameters):
    assert count(ResNet(depth)) == parameters


@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize(("depth", "width"), [(8, 1), (14, 3)])
def test_resnets_of_other_shapes(depth, width, shortcuts):
    model = ResNet(depth, width, shortcuts=shortcuts, classes=7).eval()
    assert count(model) == count(ResNet(depth, width, classes=7))  # option A has no parameters
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert model.layer3[0].conv1.weight.shape == (64 * width, 32 * width, 3, 3)


def test_a_skip_connection_passes_the_input_on():
    """With the last normalisation of a block at zero, only the shortcut is left."""
    images = torch.rand(2, 16, 32, 32, generator=torch.Generator().manual_seed(0))
    for shortcuts in (True, False):
        block = ResNet(8, shortcuts=shortcuts).layer2[0].eval()
        torch.nn.init.zeros_(block.bn2.weight)
        expected = torch.zeros(2, 32, 16, 16)
        if shortcuts:
            expected[:, 8:24] = images[:, :, ::2, ::2]
        assert torch.equal(block(images), expected)


@pytest.mark.parametrize("depth", [19, 2, 0, -4])
def test_depths_that_there_are_not(depth):
    with pytest.raises(JobError, match=f"depth: must be 6n.2 .* not {depth}"):
        ResNet(depth)


@pytest.mark.faults
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data beside the repository")
def test_the_trained_resnet_20_gives_its_known_figures():
    data, weights = SHARED / "cifar10-test-2048.npz", SHARED / "resnet20-cifar10.safetensors"
    problem = make_problem(data, weights)
    images = read_cifar10(data, "test")
    accuracy, loss = evaluate(problem.model, Arrays(images, lambda batch, _: normalise(batch)))
    assert round(accuracy, 3) == 0.805
    assert loss == pytest.approx(0.8845, abs=5e-5)
    with torch.inference_mode():
        batch = torch.stack([problem.data[k][0] for k in range(64)]), images[1][:64]
        observed = problem.observe(problem.model, batch)
    assert {name: values.shape for name, values in observed.items()} == {"loss": (64,), "accuracy": (64,)}
