"""What the evaluator is compared with: a bare forward pass, eager or by the same engine, and the setting of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.core.plan import Engine, Plan, in_float32
from landscape.evaluation.engines.base import Target, arithmetic, autocast, wait
from landscape.evaluation.model_state import ModuleState, private_copy
from landscape.evaluation.running_model import layouts_of, make_forward, take_to_type
from landscape.evaluation.weights import MovingWeights, lay_out, targets_of
from landscape.model.parameters import State
from landscape.problem.batches import Batch, moved
from landscape.problem.samples import Rows, Samples, as_samples
from landscape.problem.supervised import Observe, Supervised
from landscape.problem.terms import Problem

EAGER = Engine()


def outputs_alone(model: nn.Module, batch: Batch) -> Tensor:
    """The forward pass of a supervised problem, and nothing else."""
    return model(batch[0])  # type: ignore[no-any-return]


def bare_observe(problem: Problem) -> tuple[Observe, bool]:
    """What a bare pass calls, and whether it is the model alone; an `observe` of one's own is not taken apart."""
    if isinstance(problem.observe, Supervised):
        return outputs_alone, True  # type: ignore[return-value]
    return problem.observe, False


def model_for(model: nn.Module, plan: Plan, device: torch.device) -> nn.Module:
    """A copy of the model on the device, in eval mode and in the plan's type."""
    copied = private_copy(model)[0].to(device)
    take_to_type(copied, plan)
    return copied.eval().requires_grad_(False)


def batches_for(samples: Samples | Batch, plan: Plan, device: torch.device) -> list[Batch]:
    """The samples on the device in the plan's batches and type; integers stay what they are."""
    dtype = torch.float64 if plan.precision == "float64" else torch.float32
    chosen = as_samples(samples)
    if isinstance(chosen, Rows):
        chosen = Rows(moved(chosen.rows, device, dtype))  # one allocation, of which the batches are views
    return [moved(chosen.batch(*edge), device, dtype) for edge in chosen.edges(plan.batch_size)]


class Bare:
    """`with torch.no_grad(): model(inputs)` over all batches: eager float32, default layout, the plan's threads.

    Unlike a landscape it may use kernels of a GPU whose sums are not in a fixed order.
    """

    def __init__(self, problem: Problem, samples: Samples | Batch, plan: Plan, device: torch.device) -> None:
        self._plan, self._device = in_float32(plan), device
        self.observe, _ = bare_observe(problem)
        self.model = model_for(problem.model, self._plan, device)
        self.batches = batches_for(samples, self._plan, device)

    def run(self, count: int) -> None:
        """`count` passes over all batches, to the end of the device's work."""
        free = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False)
        with arithmetic(self._plan, self._device), free, torch.no_grad():
            for _ in range(count):
                for batch in self.batches:
                    self.observe(self.model, batch)
            wait(self._device)


class SameEngine:
    """The forward pass as the plan's engine runs it, at weights that stay where they are."""

    def __init__(
        self,
        problem: Problem,
        samples: Samples | Batch,
        plan: Plan,
        device: torch.device,
        directions: Sequence[State],
    ) -> None:
        self._plan, self._device, engine = plan, device, plan.engine
        model = model_for(problem.model, plan, device)
        lay_out(model, layouts_of(engine))
        self._batches = batches_for(samples, plan, device)
        observe, _ = bare_observe(problem)
        with arithmetic(plan, device), torch.no_grad():
            unmoved = MovingWeights(model, {}, (), layouts_of(engine))
            target = _target(model, unmoved, observe, plan, device, self._batches)
            self._forward = make_forward(target, engine, remembering=False)
            self._forward.refresh(None)
            self._stacked = _stacked(model, directions, engine.points) if engine.stacks else {}

    def run(self, count: int) -> None:
        """`count` points; several at a time where the engine does so."""
        lowered = autocast(self._plan, self._device)
        with arithmetic(self._plan, self._device), torch.no_grad():
            for _ in range(max(1, count // self._plan.engine.points)):
                for index, batch in enumerate(self._batches):
                    with lowered:
                        self._pass(index, batch)
            wait(self._device)

    def _pass(self, index: int, batch: Batch) -> None:
        if self._plan.engine.stacks:
            self._forward.observe_points(self._stacked, batch)
        else:
            self._forward.observe(index, batch)


def _target(
    model: nn.Module, weights: MovingWeights, observe: Observe, plan: Plan, device: torch.device,
    batches: Sequence[Batch],
) -> Target:  # fmt: skip
    return Target(model, ModuleState(model, ()), weights, observe, plan, device, lambda: batches[0])


def _stacked(model: nn.Module, directions: Sequence[State], points: int) -> Mapping[str, Tensor]:
    moved = {name: each for name, each in targets_of(model).items() if any(name in one for one in directions)}
    return {name: torch.stack([each] * points) for name, each in moved.items()}


class Setting:
    """The weights of one point after the other, and nothing evaluated."""

    def __init__(
        self, problem: Problem, plan: Plan, device: torch.device, origin: State, directions: Sequence[State],
        points: NDArray[np.float64],
    ) -> None:  # fmt: skip
        self._plan, self._device = plan, device
        model, layouts = model_for(problem.model, plan, device), layouts_of(plan.engine)
        lay_out(model, layouts)
        with torch.no_grad():
            self.weights = MovingWeights(model, origin, directions, layouts)
            target = _target(model, self.weights, problem.observe, plan, device, ())
            self._forward = make_forward(target, plan.engine, remembering=False)
        self._points: list[list[float]] = points.tolist()

    def run(self, count: int) -> None:
        """Set the weights of `count` points, to the end of the device's work."""
        with arithmetic(self._plan, self._device), torch.no_grad():
            for k in range(count):
                point = self._points[k % len(self._points)]
                self.weights.set_point(point)
                self._forward.refresh(point)
            wait(self._device)
