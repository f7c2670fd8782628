"""Every check has a mutant that fires it, and is silent without: small problems whose faults are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr
from small_models import make_job, wandering, write_trajectory
from torch import Tensor, nn

from landscape import Problem, run
from landscape.analysis.checks.table import check_landscape
from landscape.surface.record_entries import Checks

Make = Callable[[], Problem]
PLANE = {"name": "a", "size": 13, "range": [-1, 1]}
NEAR = {**PLANE, "range": [-0.5, 0.5], "directions": [{"kind": "random", "seed": seed} for seed in (9, 10)]}
WORSE = ("holds", "unjudged", "information", "reservation", "fails")


class Bowl(nn.Module):
    """Per-sample loss ½·Σⱼ aⱼ·(θⱼ − xᵢⱼ)² of 400 parameters θ = 1, whose samples scatter about the minimum."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(20, 20))
        self.register_buffer("curvature", torch.linspace(0.5, 1.5, 400))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.curvature * (self.theta.reshape(-1) - 1 - x) ** 2).sum(1)


def bowl(
    observe: Callable[[nn.Module, Tensor], Tensor] = lambda model, batch: model(batch),
    curvature: Callable[[Tensor], Tensor] = lambda curvature: curvature,
    samples: int = 512,
    scatter: float = 0.1,
    centre: float = 0.0,
) -> Problem:
    """The bowl, which no check has anything against but that nothing is known of its loss."""
    model = Bowl()
    model.curvature = curvature(model.curvature)
    x = scatter * torch.randn(samples, 400, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(0) + centre  # so that the centre is the minimum
    with torch.no_grad():
        expected = {"loss": float(observe(model, x).mean())}
    return Problem(model, x, lambda network, batch: {"loss": observe(network, batch)}, expected=expected)


class Network(nn.Module):
    """A classifier with batch norm, smooth everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def clouds(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clouds of points, which overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(600) % 3
    middles = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return middles[labels] + torch.randn(600, 2, generator=generator), labels


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """The weights of the classifier after 150 steps, and its running statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Network()
    x, y = clouds()
    velocity = {name: torch.zeros_like(each) for name, each in network.named_parameters()}
    for _ in range(150):
        loss = nn.functional.cross_entropy(network(x), y)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for (name, each), gradient in zip(network.named_parameters(), gradients, strict=True):
                velocity[name] = 0.9 * velocity[name] + gradient
                each -= 0.1 * velocity[name]
    return {name: each.detach().clone() for name, each in network.state_dict().items()}


def classifier(
    weights: Mapping[str, Tensor],
    prepare: Callable[[Tensor], Tensor] = lambda x: x,
    change: Callable[[Network], Any] = lambda network: None,
    expected: Mapping[str, float] | None = None,
) -> Problem:
    network = Network()
    network.load_state_dict(dict(weights))
    change(network)
    x, y = clouds()
    return Problem.supervised(network, (prepare(x), y), expected=expected)


def judged(
    folder: Path, make: Make, spec: Mapping[str, Any] = PLANE, damage: Callable[[Path], None] = lambda folder: None,
    *, deep: bool = False, **fields: Any,
) -> Checks:  # fmt: skip
    """What is found of a landscape, which may be damaged before it is checked."""
    fields = {"num_samples": 256, "batch_size": 128, "engine": "eager", "tile": 13, **fields}
    run(make_job(folder, make, [spec], **fields))
    damage(folder / "landscapes.zarr" / spec["name"])
    return check_landscape(folder, spec["name"], deep=deep, problem=make)


def states(checks: Checks) -> dict[str, str]:
    return {check.number: check.state for check in checks.results}


def swap_axes(place: Path) -> None:
    """The directions of both axes change places on disk."""
    first, second = place / "directions/c/0/0", place / "directions/c/1/0"
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def shift_coordinates(place: Path) -> None:
    """The values of a row belong to the coordinates of the next one."""
    alpha = zarr.open_array(place / "alpha", mode="r+")
    alpha[:] = alpha[:] + (alpha[1] - alpha[0])


class Unseeded:
    """Adds noise from a generator of its own, which no seed of a job reaches, from some moment on."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = None

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        losses = model(batch)
        if self.generator is None or len(batch) < 50:  # the first look at a few samples would refuse it
            return losses
        return losses + torch.randn(len(batch), generator=self.generator)

    def begin(self, place: Path) -> None:
        self.generator = torch.Generator().manual_seed(0)


def moved(model: nn.Module) -> Tensor:
    """By how much the first parameter has moved from the origin."""
    return model.theta[0, 0] - 1


def rippled(model: nn.Module, batch: Tensor) -> Tensor:
    """A wave of a period of three cells of a grid of nine."""
    direction = model.theta.mean() - 1
    return model(batch) + 2000 * (1 - torch.cos(2 * torch.pi / 0.06 * direction)) * moved(model).square().clamp(max=0.2)


def detached(model: nn.Module, batch: Tensor) -> Tensor:
    """Half of the loss is computed from weights without a gradient."""
    weights = model.theta.detach().reshape(-1) - 1
    return 0.5 * model(batch) + 0.25 * (model.curvature * (weights - batch) ** 2).sum(1)


def narrow(model: nn.Module, batch: Tensor) -> Tensor:
    """A funnel at the centre that is narrower than a cell."""
    return model(batch) - 3 * torch.exp(-2 * ((model.theta - 1) ** 2).sum())


def hollow(model: nn.Module, batch: Tensor) -> Tensor:
    """Nothing is finite beyond half of the range."""
    far = (model.theta - 1).norm() > 12
    return model(batch) + torch.where(far, torch.inf, 0.0)


def kinked(model: nn.Module, batch: Tensor) -> Tensor:
    """A kink at every sample in every parameter: over a cell the mean curves far more than between two kinks."""
    return model(batch) + (model.theta.reshape(-1) - 1 - batch).abs().sum(1)


def first_alone(curvature: Tensor) -> Tensor:
    return torch.cat([torch.tensor([1e4]), curvature[1:]])


def one_down(curvature: Tensor) -> Tensor:
    return torch.cat([torch.tensor([-0.5]), curvature[1:]])


@dataclass(frozen=True)
class Mutant:
    """A fault of the bowl, the check that it is for, and all that fire.

    Attributes:
        problem: what is other than of the sound bowl.
        damage: what is done to the landscape on disk.
    """

    number: str
    fires: set[str]
    problem: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    damage: Callable[[Path], None] = lambda place: None


UNSEEDED = Unseeded()
UNSCALED = [{"kind": "random", "seed": seed, "normalise": "none"} for seed in (1, 2)]
MUTANTS = {
    "axes swapped in the store": Mutant("3", {"3"}, damage=swap_axes),
    "coordinates off by a step": Mutant("3", {"3"}, damage=shift_coordinates),
    "a generator of its own": Mutant("4", {"1", "2", "3", "4"}, {"observe": UNSEEDED}, damage=UNSEEDED.begin),
    "eight samples": Mutant("5", {"5"}, {"scatter": 4.0}, job={"num_samples": 8}),
    "a wave of three cells": Mutant("6", {"6", "7", "8b"}, {"observe": rippled}, {"size": 9}),
    "one stiff direction": Mutant("7", {"6", "7"}, {"curvature": first_alone}),
    "half of it detached": Mutant("8", {"8"}, {"observe": detached}),
    "a funnel within a cell": Mutant("8b", {"8b"}, {"observe": narrow}),
    "a way down": Mutant("9", {"9"}, {"curvature": one_down}),
    "off the minimum": Mutant("13", {"13"}, {"centre": 10.0}),
    "axes as they are drawn": Mutant("14", {"14"}, spec={"directions": UNSCALED}),
    "holes": Mutant("15", {"6", "15"}, {"observe": hollow}),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Checks:
    return judged(tmp_path_factory.mktemp("sound"), bowl, deep=True)


def test_nothing_speaks_against_a_bowl(sound):
    found = states(sound)
    silent = {"holds", "unjudged", "information"}
    assert {number for number, state in found.items() if state not in silent} == set()
    assert {number for number, state in found.items() if state == "unjudged"} == {"10", "11"}
    assert sound.verdict.startswith("nothing speaks against it (")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fires_its_check(name, sound, tmp_path):
    mutant = MUTANTS[name]
    make = partial(bowl, **mutant.problem)
    found = judged(tmp_path, make, {**PLANE, **mutant.spec}, mutant.damage, deep=mutant.number == "9", **mutant.job)
    assert fired(found, sound) == mutant.fires, found.text("a")
    assert mutant.number in mutant.fires


def fired(found: Checks, sound: Checks) -> set[str]:
    """The checks that found worse than of the sound one; of 13, which judges nothing, those that say more."""
    before = states(sound)
    worse = {
        check.number
        for check in found.results
        if check.state in ("reservation", "fails") and before[check.number] not in ("reservation", "fails")
    }
    texts = {check.number: check.text for check in found.results}
    return worse | ({"13"} if "is lower by" in texts["13"] else set())


def test_derivatives_between_kinks_do_not_judge_the_centre_cell(tmp_path):
    """The grid has the curvature of the mean, which no derivative has; it does not lack structure within its cells."""
    found = judged(tmp_path, partial(bowl, kinked), {**PLANE, "range": [-0.3, 0.3]})
    texts = {check.number: check.text for check in found.results}
    assert states(found)["8"] == "holds", "between two kinks losses and derivatives agree"
    assert states(found)["8b"] == "unjudged"
    assert texts["8b"].startswith("centre cell: the loss has too many kinks, as of ReLU")


@pytest.fixture(scope="module")
def healthy(trained, tmp_path_factory: pytest.TempPathFactory) -> Checks:
    return judged(tmp_path_factory.mktemp("healthy"), partial(classifier, trained), NEAR)


def test_a_trained_classifier_has_no_fault(healthy):
    assert not healthy.fails, healthy.text("a")


CLASSIFIERS = {
    "batch norm in training mode": ("1", {"1"}, {}, {}, {"batch_norm": "batch"}),
    "other preprocessing": ("2", {"2", "10", "13"}, {"prepare": lambda x: 0.2 * x, "expected": {"loss": 0.1}}, {}, {}),
    "stale statistics": ("10", {"10", "13"}, {"change": lambda network: network.norm.running_var.mul_(9)}, {}, {}),
    "far out": ("12", {"7", "8b", "12"}, {}, {"range": [-8, 8]}, {}),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_mutant_of_the_classifier_fires_its_check(name, healthy, trained, tmp_path):
    number, fires, changes, spec, job = CLASSIFIERS[name]
    make = partial(classifier, trained, **changes)
    found = judged(tmp_path, make, {**NEAR, **spec}, **job)
    assert fired(found, healthy) == fires, found.text("a")
    assert number in fires


def test_the_centre_is_judged_by_the_differences_of_the_samples(trained, tmp_path):
    """By the error of the loss itself both losses would seem to be the same."""
    make = partial(classifier, trained, change=lambda network: network.norm.running_var.mul_(3))
    found = judged(tmp_path, make, {**PLANE, "range": [-0.3, 0.3], "size": 5}, num_samples=600, batch_size=600)
    (check,) = (each for each in found.results if each.number == "10")
    network, (x, y) = make().model, clouds()
    losses = []
    for renew in (False, True):
        if renew:
            network.norm.momentum = 1.0
            network.train()(x)
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(network.eval()(x), y, reduction="none").double())
    difference = losses[1] - losses[0]
    paired, unpaired = (float(each.std() / len(y) ** 0.5) for each in (difference, losses[0]))
    assert check.numbers["centre stderr"] == pytest.approx(paired, rel=1e-3)
    apart = float(difference.mean().abs())
    assert 3 * paired < apart < 3 * unpaired
    assert "the centre has loss" in check.text
    assert check.state == "reservation"


def along_a_curve(model: nn.Module) -> dict[int, dict[str, Tensor]]:
    """Snapshots of a descent in a plane, which ends at the minimum."""
    generator = torch.Generator().manual_seed(3)
    fast, slow = (torch.randn(20, 20, generator=generator) for _ in range(2))
    state = model.state_dict()
    moves = {epoch: 0.3**epoch * fast + 0.7**epoch * slow for epoch in range(1, 9)}
    return {epoch: {**state, "theta": (state["theta"] + move).contiguous()} for epoch, move in moves.items()}


def test_a_path_of_pure_noise_fires_its_check(tmp_path):
    spec = {"name": "a", "trajectory": "all", "size": 13}
    found = {}
    for name, snapshots in (("curve", along_a_curve(Bowl())), ("noise", wandering(Bowl(), 8))):
        write_trajectory(tmp_path / name, snapshots)
        found[name] = judged(tmp_path / name, bowl, spec)
    assert states(found["curve"])["11"] == "holds"
    assert fired(found["noise"], found["curve"]) == {"11", "13"}
    (path,) = (check for check in found["noise"].results if check.number == "11")
    assert "as pure drift would" in path.text + path.remedy
