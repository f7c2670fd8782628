"""A loaded model with an engine: set to a point, and observed batch by batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.core.errors import JobError
from landscape.core.plan import Engine, Plan
from landscape.evaluation.counts import checked_observables
from landscape.evaluation.engines.arithmetic import autocast
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.evaluation.loaded import LoadedModel
from landscape.evaluation.table import make_forward, possible_options
from landscape.evaluation.unchanged import SamplesChanged, marks
from landscape.evaluation.values import Observed
from landscape.model.parameters import State
from landscape.problem.batches import Batch, exchanged, is_strided
from landscape.problem.user_code import kept_alive

log = logging.getLogger("landscape")


class RunningModel:
    """A loaded model, its weights placed, run by the engine of a plan; to be closed before another one takes its place.

    Args:
        loaded: the model; what is learnt of the user's code is kept there.
        target: the same model with its weights and batches, for an engine to be installed in.

    Raises:
        JobError, ValueError: the engine cannot run this model here, see `make_forward`.
    """

    def __init__(self, loaded: LoadedModel, target: Target) -> None:
        self._loaded, self._target = loaded, target
        target.restore()
        with kept_alive():
            self._forward = make_forward(target, target.plan.engine)

    @property
    def plan(self) -> Plan:
        """The arithmetic, the engine among it."""
        return self._target.plan

    @property
    def target(self) -> Target:
        """What the engine was installed in."""
        return self._target

    @property
    def rewrites(self) -> dict[str, Rewrite]:
        """What the engine has installed in the model, by name."""
        return self._forward.rewrites

    def close(self) -> None:
        """Take the engine out of the model, which keeps its weights."""
        self._forward.close()

    # -- weights ----------------------------------------------------------------------------------------------

    def set_point(self, point: Sequence[float]) -> None:
        """Set the weights of the point with these coordinates."""
        self._target.state.restore()
        self._target.weights.set_point(point)
        self._forward.refresh(point)

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's; `leave_states` comes after the last one."""
        self._target.state.restore()
        self._target.weights.set_state(state)
        self._forward.refresh(None)

    def leave_states(self) -> None:
        """Put back the tensors that a snapshot sets and a point does not."""
        self._target.weights.restore()

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The moved tensors at several points, the points in their first dimension, for `observe_stacked`."""
        self._target.restore()
        return self._target.weights.stacked(points)

    # -- ranges of activations --------------------------------------------------------------------------------

    @property
    def lacks_ranges(self) -> bool:
        """Whether activations are rounded, and their ranges are not known yet."""
        activations = self._loaded.activations
        return activations is not None and not activations.knows_ranges

    @contextlib.contextmanager
    def taking_ranges(self) -> Iterator[None]:
        """Go on at the origin, eagerly and with nothing rounded, and take the ranges from what is observed there."""
        activations, target = self._loaded.activations, self._target
        assert activations is not None
        self._forward.close()
        target.restore()
        try:
            with kept_alive():
                self._forward = make_forward(target, Engine(), remembering=False)
            target.weights.set_unrounded_origin()
            with activations.watching():
                yield
        finally:
            self._forward.close()
            target.restore()
            with kept_alive():
                self._forward = make_forward(target, self.plan.engine)

    # -- batches ----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop outputs that are kept of a batch, as other samples or another row of points follow."""
        self._forward.forget()

    def observe(self, index: int | None, batch: Batch) -> Observed:
        """The observables of batch number `index`; None where the weights are not a point of the landscape.

        Raises:
            SamplesChanged: user code has written to the batch.
            JobError: what `observe` returns is not one value per sample, or a graph of kernels would lose something.
        """
        tensors: list[Tensor] = []

        def met(tensor: Tensor) -> Tensor:
            if is_strided(tensor):
                tensors.append(tensor)
            return tensor

        # Copies of all but the tensors, so that what user code removes from a batch is there at the next point.
        fresh = exchanged(met, batch)
        before = marks(tensors)
        with kept_alive(), self._autocast(), self._captured_whole(index):
            values = self._forward.observe(index, fresh)
        if marks(tensors) != before:
            raise SamplesChanged
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.requires_grad_(False).grad = None
        observed = self._checked(values, batch)
        # Copied, as observe may write its next values to the same memory.
        device = self._target.device
        return {name: each.detach().to(device, torch.float64, copy=True) for name, each in observed.items()}

    def observe_stacked(self, stacked: dict[str, Tensor], batch: Batch) -> Observed:
        """The observables of a batch at stacked weights, float64 [points, samples] each."""
        with kept_alive(), self._autocast():
            values = self._forward.observe_points(stacked, exchanged(_itself, batch))
        self._refuse_changes("vmap computes several points at once")
        first = self._checked({name: value[0] for name, value in values.items()}, batch)
        return {name: values[name].to(self._target.device, torch.float64) for name in first}

    def _checked(self, values: Any, batch: Batch) -> dict[str, Tensor]:
        """What `observe` returned for a batch, checked, in the order that is always the same."""
        return checked_observables(values, batch, self._target.observe, self._target.counts, self._loaded)

    def recalibrate(self, batches: Iterable[tuple[int, Batch]]) -> None:
        """Compute running statistics anew from the samples, as the mean over batches."""
        for batch in self._loaded.recalibrating(batches):
            self.observe(None, batch)

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        return autocast(self._target.plan, self._target.device)

    # -- what user code changes -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _captured_whole(self, index: int | None) -> Iterator[None]:
        """Refuse to capture kernels where the values also depend on Python, or on memory from before the point."""
        if not self._forward.captures(index):
            yield
            return
        self._target.restore()
        yield
        self._refuse_changes("cudagraph replays kernels alone")

    def _refuse_changes(self, engine: str) -> None:
        state, weights = self._target.state, self._target.weights
        if state.changed() or weights.changed:
            what = ", ".join(state.names_changed()[:3]) or "its tensors"
            raise JobError(f"engine: {engine}, and the model changes {what} when it is called; use another engine")

    def hides_writes(self) -> bool:
        """Whether user code has written to the model past torch's counters, so that it was not put back so far.

        From now on it is put back at every point; the values before are to be computed again.
        """
        self._target.restore()
        names = [*self._target.weights.unnoticed(), *self._target.state.unnoticed()]
        if not names:
            return False
        log.info("model: %s changes while it is observed, and is put back before every point", ", ".join(names))
        self._target.restore()
        self._loaded.hides_writes = True
        self._forward.distrust_counters()
        return True

    def possible_options(self) -> tuple[str, ...]:
        """The options of an engine that would change anything for this model."""
        self._forward.begin(None)  # rewrites must not take the calls that follow for a batch of a point
        return possible_options(self._target)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
