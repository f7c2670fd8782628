"""The base `eager`, which runs `observe(model, batch)` operation by operation, and the interface of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch import Tensor, nn

from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe


class Forward:
    """Operation by operation: the reference, and the class that every other base derives from.

    A base is a subclass in a file of this folder and a line with its rules in `landscape.core.plan.BASES`. That line
    names the hooks of rewrites which its methods call, and these alone decide which options go with it.

    Args:
        model: its tensors are set from outside, between calls.
        rewrites: installed in the model, by name; this object calls their hooks, and closes them.
    """

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        self.model, self._observe, self.rewrites = model, observe, dict(rewrites)
        self._collect_modes()

    @classmethod
    def check(cls, target: Target) -> None:
        """Raises JobError or ValueError where the engine cannot run."""

    def refresh(self, point: Sequence[float] | None) -> None:
        """To be called when the model's tensors were set: to this point, or to a whole set of weights (None)."""
        for rewrite in self.rewrites.values():
            rewrite.refresh(point)

    def forget(self) -> None:
        """To be called before calls for other samples, or for another row of points."""
        for rewrite in self.rewrites.values():
            rewrite.forget()

    def begin(self, index: int | None) -> None:
        """To be called before the call for batch number `index`; None: for weights that are no point."""
        for rewrite in self.rewrites.values():
            rewrite.begin(index)

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of batch number `index`; None where the weights are not a point of the plane."""
        self.begin(index)
        with self.active():
            return self._observe(self.model, batch)

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at stacked weights [points, …], where the base stacks points.

        Raises:
            NotImplementedError: it computes one point after the other.
        """
        raise NotImplementedError(f"{type(self).__name__} computes one point after the other")

    def _collect_modes(self) -> None:
        self._modes = [rewrite.mode for rewrite in self.rewrites.values() if rewrite.mode is not None]

    def active(self) -> AbstractContextManager[object]:
        """The modes of the rewrites, around one call."""
        if not self._modes:
            return nullcontext()
        modes = ExitStack()
        for mode in self._modes:
            modes.enter_context(mode)
        return modes

    def captures(self, index: int | None) -> bool:
        """Whether this call for the batch is the only one in which Python has a part; the next ones replay it."""
        return False

    def distrust_counters(self) -> None:
        """Go on without the rewrites that rely on torch's version counters, as user code writes past them."""
        for name in [name for name, each in self.rewrites.items() if each.trusts_counters]:
            self.rewrites.pop(name).close()
        self._collect_modes()

    def close(self) -> None:
        """Leave the model as it was."""
        while self.rewrites:
            self.rewrites.popitem()[1].close()


class ObservedModel(nn.Module):
    """`observe` as a module around the model, so that it is compiled or called with other weights as a whole."""

    def __init__(self, model: nn.Module, observe: Observe) -> None:
        super().__init__()
        self.model, self._observe = model, observe

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        """The observables of a batch at the model's weights."""
        return self._observe(self.model, batch)
