"""The interface of a rewrite of a model: whether it applies, how it is installed, its hooks, how it is taken out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import fx, nn

from landscape.core.plan import Plan
from landscape.evaluation.counts import Counts
from landscape.evaluation.engines.activations import ActivationRounding
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.weights import MovingWeights
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe
from landscape.problem.user_code import kept_alive


@dataclass(frozen=True)
class Target:
    """The model that rewrites are installed in, and what they may look at.

    Args:
        model: a private copy in eval mode on the device.
        state: what the model holds beside its tensors.
        weights: the moved tensors of the model.
        plan: the arithmetic of the values.
        first_batch: returns the first batch of samples.
        resident: whether the batches stay on the device, where they are.
        hides_writes: whether user code writes to the model past torch's version counters.
        counts: how many values `observe` returns for a batch; None: one for each row.
        same_shapes: whether the batches have so few shapes that code can be compiled for each.
        activations: what rounds the inputs of layers; None where nothing does.
    """

    model: nn.Module
    state: ModuleState
    weights: MovingWeights
    observe: Observe
    plan: Plan
    device: torch.device
    first_batch: Callable[[], Batch]
    resident: bool = True
    hides_writes: bool = False
    counts: Counts | None = None
    same_shapes: bool = True
    activations: ActivationRounding | None = None

    def restore(self) -> None:
        """Put back what user code has changed: the value of a point depends on the point alone."""
        self.state.restore()
        self.weights.restore()


class Rewrite(ABC):
    """A change to how a model is computed, which keeps its values to the bit or up to rounding.

    An object of it is the change installed in one model. Its hooks are called when weights are set and batches begin,
    and it is closed when the engine or the batches change. Not every base calls every hook: what a rewrite needs stands
    in its line of `landscape.core.plan.OPTIONS`, and on other bases it is refused. To add one: a file with a subclass,
    a line in `table.REWRITES`, and that line.
    """

    layouts: ClassVar[Mapping[int, torch.memory_format]] = {}  # of parameters, by their number of dimensions
    traces: ClassVar[bool] = False  # whether it changes the graph of the model's operations
    remembers: ClassVar[bool] = False  # whether it keeps outputs from one point to another
    trusts_counters: ClassVar[bool] = False  # whether it is wrong where writes pass torch's version counters
    compiler_passes: ClassVar[tuple[Callable[[fx.GraphModule], None], ...]] = ()  # of the graph that a compiler gets

    mode: AbstractContextManager[object] | None = None  # is active during every call of `observe`
    layers: frozenset[nn.Module] = frozenset()  # whose calls it has taken over; other rewrites leave them alone

    @classmethod
    @abstractmethod
    def applies(cls, target: Target) -> bool:
        """Whether it would change anything; it may raise any error, which counts as no."""

    @classmethod  # noqa: B027
    def check(cls, target: Target) -> None:
        """Raises ValueError where the plan rules it out, such as by its mode of batch normalisation."""

    @classmethod
    @abstractmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Change how the model is computed.

        Args:
            graph: of the model's operations, to be changed in place, where a rewrite of the engine traces.
            taken: layers that other rewrites have taken over, to be left as they are.

        Raises:
            ValueError: there is nothing in this model that it could change.
        """

    def refresh(self, point: Sequence[float] | None) -> None:  # noqa: B027 - most have nothing to do
        """The weights were set anew: to this point, or to a whole set of weights, which is no point."""

    def begin(self, batch: int | None) -> None:  # noqa: B027
        """The call that follows is for the batch with this number; None: for weights that are no point."""

    def forget(self) -> None:  # noqa: B027
        """The calls that follow are for other samples or another row of points."""

    def close(self) -> None:  # noqa: B027
        """Leave the model as it was."""


def applies(rewrite: type[Rewrite], target: Target) -> bool:
    """Whether a rewrite would change anything; not where asking raises, as for control flow that cannot be traced."""
    try:
        with kept_alive():
            return rewrite.applies(target)
    except Exception:
        return False


def tidy(graph: fx.GraphModule) -> None:
    """Make the graph ready to be called after it was changed."""
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()
    graph.eval().requires_grad_(False)
