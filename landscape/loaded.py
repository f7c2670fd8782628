"""The model of a problem on a device, run by an engine: set to a point, and observed batch by batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.arithmetic import Plan, arithmetic
from landscape.engine import OPTIONS, Engine
from landscape.errors import JobError
from landscape.forward import Forward, Stacked, make_forward
from landscape.memory import DEVICE_BYTES
from landscape.moving import MovingWeights, lay_out
from landscape.parameters import State
from landscape.pooling import PoolingByMaxima
from landscape.problem import Observe, check_observed
from landscape.reuse import Reuse
from landscape.samples import Batch, batch_length, map_tensors, tensors_of
from landscape.superposition import Layer, Superposition, layers_of_same_input
from landscape.traced import Traced

Observed = dict[str, Tensor]  # per observable, float64 [samples]


class LoadedModel:
    """A private copy of the model, its moved tensors in one buffer, and the engine that runs it.

    Args:
        model: is copied; the caller's is never touched.
        plan: the arithmetic; another engine may be set before `load`.
    """

    def __init__(self, model: nn.Module, observe: Observe, plan: Plan, device: torch.device) -> None:
        self.plan, self._device, self._observe = plan, device, observe
        self.dtype = torch.float64 if plan.precision == "float64" else torch.float32
        self.model = private_copy(model).to(device)
        # `Module.to(dtype)` would drop the imaginary part of complex weights; these two leave them alone.
        self.model.double() if self.dtype is torch.float64 else self.model.float()
        self.model.eval().requires_grad_(False)
        self._norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        if plan.batch_norm == "batch":
            _use_batch_statistics(self._norms)
        self._checked = False
        self._names: tuple[str, ...] | None = None  # of the observables, once seen
        self.reuse: Reuse | None = None
        self.superposed: Superposition | None = None
        self._forward: Forward | None = None

    def load(self, origin: State, directions: Sequence[State]) -> None:
        """Set θ₀ and the axes, in the layout of the plan's engine; `set_batches` comes next."""
        self._axes, engine = len(directions), Engine.parse(self.plan.engine)
        lay_out(self.model, channels_last=engine.channels_last)
        self.weights = MovingWeights(self.model, origin, directions, channels_last=engine.channels_last)

    def set_batches(self, first_batch: Callable[[], Batch], *, resident: bool) -> None:
        """Begin anew what depends on the batches: graphs of them, what is remembered of them.

        Args:
            first_batch: brings the first of them, where there is something to look at.
            resident: whether they stay where they are.
        """
        for remembered in (self.reuse, self.superposed):
            if remembered is not None:
                remembered.close()
        self.reuse = self.superposed = self._forward = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        engine = Engine.parse(self.plan.engine)
        if engine.base == "cudagraph" and not resident:
            raise JobError(
                "engine: cudagraph replays batches that stay where they are, and the samples do not fit the device; "
                f"use another engine, fewer samples, or a larger {DEVICE_BYTES}"
            )
        if engine.superposed:
            self.superposed = Superposition(self.weights, self._superposable(first_batch()))
        eager = engine.base == "eager" and not engine.rewritten and self.plan.batch_norm == "eval"
        # What is remembered of streamed batches would hold on to them.
        if eager and resident and self.weights.moved:
            self.reuse = Reuse(self.model, self.weights.moved_tensors, self._device)
        self._forward = make_forward(engine, self.model, self._observe, self.reuse, self.superposed)

    @property
    def forward(self) -> Forward:
        assert self._forward is not None, "load comes before evaluate"
        return self._forward

    # -- points and batches -----------------------------------------------------------------------------------

    def set_point(self, point: Sequence[float]) -> None:
        self.weights.set_point(point)
        self.forward.refresh()
        if self.superposed is not None:
            self.superposed.begin(point)

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's; `weights.restore` comes after the last one."""
        self.weights.set_state(state)
        self.forward.refresh()

    def observe(self, index: int | None, batch: Batch) -> Observed:
        """The observables of batch number `index`; None where the weights are not a point of the landscape."""
        versions = [] if self._checked else [tensor._version for tensor in tensors_of(batch)]
        with self._autocast():
            values = self.forward.observe(index, batch)
        if not self._checked and [tensor._version for tensor in tensors_of(batch)] != versions:
            raise JobError(
                "observe: must not change its batch in place, as every point sees the same samples; clone it first"
            )
        found = check_observed(values, batch_length(batch), self._names)
        self._checked, self._names = True, tuple(found)
        return {name: value.detach().to(self._device, torch.float64) for name, value in found.items()}

    def observe_stacked(self, stacked: dict[str, Tensor], batch: Batch) -> Observed:
        """The observables of a batch at stacked weights, float64 [points, samples] each."""
        assert isinstance(self._forward, Stacked)
        with self._autocast():
            values = self._forward.observe_points(stacked, batch)
        first = check_observed({name: value[0] for name, value in values.items()}, batch_length(batch), self._names)
        self._names = tuple(first)
        return {name: values[name].to(self._device, torch.float64) for name in first}

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        # Its cache holds for one block only, and must not be filled while a CUDA graph is captured.
        enabled = self.plan.precision == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def recalibrate(self, batches: Iterable[tuple[int, Batch]]) -> None:
        """Running statistics anew from the samples, as the mean over batches; everything else stays in eval mode."""
        momenta = [module.momentum for module in self._norms]
        for module in self._norms:
            module.reset_running_stats()
            module.train()
        for index, batch in batches:
            for module in self._norms:
                # A cumulative mean; what torch does for momentum None it does for batch normalisation only.
                module.momentum = 1 / (index + 1)
            self.observe(None, batch)
        for module, momentum in zip(self._norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()

    # -- what could be done -----------------------------------------------------------------------------------

    def possible_options(self, batch: Batch) -> tuple[str, ...]:
        """The options of an engine that change anything for this model."""
        in_eval = self.plan.batch_norm == "eval"
        if self.reuse is not None:
            self.reuse.begin(None)  # what follows is no batch of a point
        folds = in_eval and _holds(lambda: bool(Traced(self.model, folded=True)))
        fuses = in_eval and self._device.type == "cpu"
        possible: dict[str, Callable[[], bool]] = {
            "channels_last": lambda: any(each.dim() in (4, 5) for each in self.model.parameters()),
            "maxima": lambda: self._device.type == "cpu" and self._pools(batch),
            "folded": lambda: folds,
            # Between a convolution and its ReLU there may be a batch normalisation.
            "fused": lambda: fuses and bool(Traced(self.model, folded=folds, fused=True)),
            "superposed": lambda: bool(self._superposable(batch)),
        }
        return tuple(name for name in OPTIONS if _holds(possible[name]))

    def _pools(self, batch: Batch) -> bool:
        pooling = PoolingByMaxima()
        with torch.no_grad(), pooling:
            self._observe(self.model, batch)
        return pooling.met

    def _superposable(self, batch: Batch) -> list[Layer]:
        if self.plan.batch_norm == "recalibrate":
            raise ValueError("batch_norm: recalibrate goes over all samples twice at every point")
        few = map_tensors(lambda tensor: tensor[:2], batch)

        def observe_at(coordinate: float) -> None:
            self.weights.set_point([coordinate] * self._axes)
            with self._autocast():
                self._observe(self.model, few)
            if self.weights.changed:
                raise ValueError("observe changes the model's buffers, batch after batch of a point")

        with arithmetic(self.plan, self._device), torch.no_grad():
            points = [partial(observe_at, coordinate) for coordinate in (0.0, 1.0)]
            return layers_of_same_input(self.model, self.weights.moved_tensors, points)


def _holds(question: Callable[[], bool]) -> bool:
    """What raises cannot be done: control flow that is not to be traced, nothing to rewrite."""
    try:
        return question()
    except Exception:
        return False


def private_copy(model: nn.Module) -> nn.Module:
    """A deep copy of the model without its gradients' graph."""
    try:
        return copy.deepcopy(model)
    except Exception as cause:
        raise JobError(
            f"model: {type(model).__name__} cannot be copied ({cause}); return one that copy.deepcopy takes"
        ) from cause


def _use_batch_statistics(norms: Sequence[Any]) -> None:
    """Make normalisation layers use each batch's own statistics, and keep none, in eval mode as well."""
    for module in norms:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
