"""One section per tool: the same plane through its public interface, used as its own documentation says.

An adapter does once what its user does once (models, batches, the metric) and returns the call that is timed. Imports
are inside, so that a tool that is not installed is a reason in the table and no more.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from subjects import Batches, Lattice, Points, Subject
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from landscape import Job, Problem
from landscape.compute.plans import make_evaluator, tune_landscape, tuning_scope
from landscape.compute.prepare import prepare


@dataclass(frozen=True)
class Surface:
    """Losses at the points that the tool really visits, which are not always those it was asked for."""

    points: Points
    losses: list[float]


@dataclass(frozen=True)
class Prepared:
    """The call to time, what is worth recording about it, and where it can: the losses at any points."""

    compute: Callable[[], Surface | None]
    notes: Mapping[str, Any] = field(default_factory=dict)
    losses_at: Callable[[Points], list[float]] | None = None


Adapter = Callable[[Subject, Lattice, int | None], Prepared]


@dataclass(frozen=True)
class Contender:
    """A row of the table.

    Args:
        tuned: it gets the batch size that is quickest for it; else its own, or all samples at once.
        documented: used as its documentation says; else a best case that its code allows.
        noisy_maximum: its largest value is not the loss.
    """

    name: str
    adapter: Adapter
    kind: str  # reference | peer | ours
    tuned: bool = True
    documented: bool = True
    noisy_maximum: bool = False
    remark: str = ""


# --- the bare forward pass, without any landscape -------------------------------------------------------------------


def bare(
    subject: Subject, lattice: Lattice, batch_size: int | None, *, bfloat16: bool = False, compiled: bool = False
) -> Prepared:
    """The forward passes of as many points, weights left alone: what no tool that calls the model can beat."""
    model = torch.compile(copy.deepcopy(subject.model), dynamic=False) if compiled else subject.model
    batches = subject.batches(batch_size or len(subject.targets))

    def compute() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            for _ in lattice.points:
                for inputs, targets in batches:
                    nn.functional.cross_entropy(model(inputs), targets).item()

    return Prepared(compute)


def bare_bfloat16(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
    return bare(subject, lattice, batch_size, bfloat16=True)


def bare_compiled(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
    """What a user could hand to any of the tools; none of them says so, and compiling takes tens of seconds."""
    return bare(subject, lattice, batch_size, compiled=True)


# --- loss-landscapes 3.0.6 ------------------------------------------------------------------------------------------


def loss_landscapes(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
    """`planar_interpolation` between three models, `Loss` over all samples as the metric: README section 2.

    `random_plane` draws its own directions. For smaller batches, which the documentation does not show but which are
    quicker, a `MetricPipeline` has one `Loss` each, averaged here. The grid is walked in place: even rows lie one step
    further along the second direction than odd ones.
    """
    import loss_landscapes as library
    from loss_landscapes.metrics import Loss, MetricPipeline

    side = lattice.side
    first, last = lattice.at(0), lattice.at(side)
    start, end_one, end_two = (subject.moved(*at) for at in ((first, first), (last, first), (first, last)))
    batches = subject.batches(batch_size or len(subject.targets))
    losses = [Loss(nn.CrossEntropyLoss(), inputs, targets) for inputs, targets in batches]
    metric = losses[0] if len(losses) == 1 else MetricPipeline(losses)
    weights = _shares(batches)
    visited = [(row, column + (row % 2 == 0)) for row in range(side) for column in range(side)]
    points = [(lattice.at(row), lattice.at(column)) for row, column in visited]

    def compute() -> Surface:
        grid = library.planar_interpolation(start, end_one, end_two, metric, steps=side, deepcopy_model=True)
        return Surface(points, (grid.reshape(side * side, -1) @ weights).tolist())

    return Prepared(compute)


def _shares(batches: Batches) -> np.ndarray:
    counts = np.array([len(targets) for _, targets in batches], float)
    return counts / counts.sum()


# --- Landscaper 1.3.1 -----------------------------------------------------------------------------------------------


def landscaper(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
    """`LossLandscape.compute` with the documented scalar function over a list of batches: quick start, CNN notebook.

    `distance` is chosen so that its steps are the lattice's; the coordinates it reports are others (`linspace`), the
    points it visits are these. It adds noise to the largest value, so that one is not compared.
    """
    from landscaper import LossLandscape

    model, data = copy.deepcopy(subject.model), subject.batches(batch_size or len(subject.targets))
    directions = [[axis[name].clone() for name, _ in model.named_parameters()] for axis in subject.axes]
    criterion = nn.CrossEntropyLoss()

    def scalar_function(model: nn.Module, data: Batches) -> float:
        total, count = 0.0, 0
        for sample, label in data:
            output = model.forward(sample)
            total += criterion(output, label) * len(label)  # as documented, but for a last batch that is smaller
            count += len(label)
        return total / count

    def compute() -> Surface:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            landscape = LossLandscape.compute(
                model, data, directions, scalar_function,
                steps=lattice.side, distance=lattice.step * lattice.side / 2, dim=2, device="cpu",
            )  # fmt: skip
        return Surface(lattice.points, landscape.loss.reshape(-1).tolist())

    return Prepared(compute)


# --- loss-landscape-3d 0.1.3 ----------------------------------------------------------------------------------------


def loss_landscape_3d(
    subject: Subject, lattice: Lattice, batch_size: int | None, *, ready_batches: bool = False
) -> Prepared:
    """`LossLandscapeCalculator.calculate` over a `DataLoader`: README, "Random Plane Visualizer".

    One departure: the README passes `center_state=model.state_dict()`, whose tensors are the model's own, so the
    centre moves with every point. Here it is a copy, as the tool's own `TrajectoryTracker` makes; no slower.
    """
    from loss_landscape_3d import LossLandscapeCalculator

    size = batch_size or len(subject.targets)
    loader = DataLoader(TensorDataset(subject.inputs, subject.targets), batch_size=size)
    model = copy.deepcopy(subject.model)
    center = {name: each.detach().clone() for name, each in model.state_dict().items()}
    coordinates = np.array(lattice.coordinates)
    calculator = LossLandscapeCalculator(
        model, subject.batches(size) if ready_batches else loader, nn.CrossEntropyLoss()
    )

    def compute() -> Surface:
        grid = calculator.calculate(coordinates, coordinates, *subject.axes, center_state=center)
        return Surface(lattice.points, grid.reshape(-1).tolist())

    return Prepared(compute)


def loss_landscape_3d_from_list(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
    """The same over a list of ready batches, which is not documented, but the code takes it: its best case."""
    return loss_landscape_3d(subject, lattice, batch_size, ready_batches=True)


# --- this project ---------------------------------------------------------------------------------------------------


def ours(workspace: Path, precision: str, points: int) -> Adapter:
    """`prepare`, `tune_landscape`, `evaluate`, all by default; accuracy and standard errors come along.

    The engine is chosen as by a run of so many points; one of none does not search.
    """

    def adapter(subject: Subject, lattice: Lattice, batch_size: int | None) -> Prepared:
        files = []
        for number, axis in enumerate(subject.axes):
            files.append(str(workspace / f"{subject.name}-{number}.safetensors"))
            save_file(axis, files[-1])
        directions = [{"kind": "file", "path": file} for file in files]
        plane = {"name": "plane", "size": max(3, lattice.side), "directions": directions}
        job = Job(
            run=str(workspace / "run"), problem=lambda: _problem(subject), num_samples=len(subject.targets),
            batch_size=batch_size, precision=precision, device="cpu", landscapes=[plane],
        )  # fmt: skip
        prepared = prepare(job)
        scope = replace(tuning_scope(prepared)[0], points=points)
        landscape, _ = tune_landscape(prepared, prepared.landscapes[0], scope, lambda: None)
        evaluator = make_evaluator(prepared, landscape)

        def losses_at(points: Points) -> list[float]:
            return evaluator.evaluate(np.array(points)).mean["loss"].tolist()

        def compute() -> Surface:
            return Surface(lattice.points, losses_at(lattice.points))

        return Prepared(compute, {"plan": landscape.plan.record()}, losses_at)

    return adapter


def _problem(subject: Subject) -> Problem:
    data = (subject.inputs, subject.targets)
    return Problem.supervised(subject.model, data, nn.functional.cross_entropy, ("accuracy",))


COMPILED = Contender("bare forward, compiled", bare_compiled, "reference", remark="float32, torch.compile")


def contenders(workspace: Path, *, searches: bool = True) -> list[Contender]:
    """The rows of the table, in its order."""
    points, remark = (40**2, "all by default") if searches else (0, "all by default, nothing searched for")
    return [
        Contender("bare forward", bare, "reference", remark="float32, eager, no weights set"),
        Contender("bare forward, bfloat16", bare_bfloat16, "reference", remark="autocast, eager, no weights set"),
        Contender("loss-landscapes 3.0.6", loss_landscapes, "peer", tuned=False, remark="one Loss, as documented"),
        Contender(
            "loss-landscapes, batches", loss_landscapes, "peer", documented=False, remark="MetricPipeline: best case"
        ),
        Contender("Landscaper 1.3.1", landscaper, "peer", noisy_maximum=True, remark="batches, as documented"),
        Contender("loss-landscape-3d 0.1.3", loss_landscape_3d, "peer", remark="DataLoader, as documented"),
        Contender(
            "loss-landscape-3d, list",
            loss_landscape_3d_from_list,
            "peer",
            documented=False,
            remark="ready batches: best case",
        ),
        Contender("this, float32", ours(workspace, "float32", points), "ours", tuned=False, remark=remark),
        Contender("this, bfloat16", ours(workspace, "bfloat16", points), "ours", tuned=False, remark=remark),
    ]
