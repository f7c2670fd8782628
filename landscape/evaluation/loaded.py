"""The model of a problem on a device, run by an engine: set to a point, and observed batch by batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.errors import JobError
from landscape.evaluation.arithmetic import arithmetic
from landscape.evaluation.checksum import checksums
from landscape.evaluation.engines.forward import Forward, Graphed, Stacked, make_forward
from landscape.evaluation.engines.pooling import PoolingByMaxima
from landscape.evaluation.engines.reuse import Reuse
from landscape.evaluation.engines.superposition import Layer, Superposition, layers_of_same_input
from landscape.evaluation.engines.traced import Traced
from landscape.evaluation.module_state import ModuleState, private_copy
from landscape.evaluation.moving import MovingWeights, lay_out
from landscape.memory import DEVICE_BYTES
from landscape.parameters import State
from landscape.plan import OPTIONS, Plan
from landscape.problem.batches import Batch, batch_length, map_tensors, tensors_of
from landscape.problem.observables import Observe, check_observed
from landscape.problem.user_code import kept_alive

Observed = dict[str, Tensor]  # per observable, float64 [samples]

log = logging.getLogger("landscape")


class SamplesChanged(JobError):
    """User code has written to the samples: no value that is computed from here on in this process would be right."""

    def __init__(self) -> None:
        super().__init__(
            "observe: must not change its batch in place, as every point sees the same samples; clone it first"
        )


class LoadedModel:
    """A private copy of the model, its moved tensors in one buffer, and the engine that runs it.

    Args:
        model: is copied; the caller's is never touched.
        plan: the arithmetic; another engine may be set before `load`.
    """

    def __init__(self, model: nn.Module, observe: Observe, plan: Plan, device: torch.device) -> None:
        self.plan, self._device, self._observe = plan, device, observe
        self.dtype = torch.float64 if plan.precision == "float64" else torch.float32
        copied, objects = private_copy(model)
        self.model = copied.to(device)
        # `Module.to(dtype)` would drop the imaginary part of complex weights; these two leave them alone.
        self.model.double() if self.dtype is torch.float64 else self.model.float()
        self.model.eval().requires_grad_(False)
        self._norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        if plan.batch_norm == "batch":
            _use_batch_statistics(self._norms)
        self._state = ModuleState(self.model, objects)
        self._hides = False  # whether something is written to past torch's version counters
        self._names: tuple[str, ...] | None = None  # of the observables, once seen
        self.reuse: Reuse | None = None
        self.superposed: Superposition | None = None
        self._forward: Forward | None = None

    def load(self, origin: State, directions: Sequence[State]) -> None:
        """Set θ₀ and the axes, in the layout of the plan's engine; `set_batches` comes next."""
        self._state.restore()
        self._axes, engine = len(directions), self.plan.engine
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
        engine = self.plan.engine
        if engine.base == "cudagraph" and not resident:
            raise JobError(
                "engine: cudagraph replays batches that stay where they are, and the samples do not fit the device; "
                f"use another engine, fewer samples, or a larger {DEVICE_BYTES}"
            )
        if engine.superposed:
            self.superposed = Superposition(self.weights, self._superposable(first_batch()))
        self._begin()
        eager = engine.base == "eager" and not engine.rewritten and self.plan.batch_norm == "eval"
        # What is remembered of streamed batches would hold on to them.
        if eager and resident and self.weights.moved and not self._hides:
            self.reuse = Reuse(self.model, self.weights.moved_tensors, self._device)
        with kept_alive():
            self._forward = make_forward(engine, self.model, self._observe, self.reuse, self.superposed)

    @property
    def forward(self) -> Forward:
        assert self._forward is not None, "load comes before evaluate"
        return self._forward

    # -- points and batches -----------------------------------------------------------------------------------

    def set_point(self, point: Sequence[float]) -> None:
        self._state.restore()
        self.weights.set_point(point)
        self.forward.refresh()
        if self.superposed is not None:
            self.superposed.begin(point)

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's; `weights.restore` comes after the last one."""
        self._state.restore()
        self.weights.set_state(state)
        self.forward.refresh()

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The moved tensors at several points, for `observe_stacked`."""
        self._begin()
        return self.weights.stacked(points)

    def _begin(self) -> None:
        """Put back what user code has changed: the value of a point depends on the point alone."""
        self._state.restore()
        self.weights.restore()

    def hides_writes(self) -> bool:
        """Whether user code has written to the model past torch's counters, so that it was not put back so far.

        It is from now on, at every point; what was computed before is to be computed again.
        """
        self._begin()
        names = [*self.weights.unnoticed(), *self._state.unnoticed()]
        if not names:
            return False
        log.info("model: %s changes while it is observed, and is put back before every point", ", ".join(names))
        self._begin()
        self._hides = True
        if self.reuse is not None:
            self.reuse.close()
            self.reuse = self.forward.reuse = None
        return True

    def observe(self, index: int | None, batch: Batch) -> Observed:
        """The observables of batch number `index`; None where the weights are not a point of the landscape."""
        tensors = tensors_of(batch)
        before = _marks(tensors)
        with kept_alive(), self._autocast(), self._captured_whole(index):
            # Its own tuples, lists and dicts: what is taken out of a batch is there again at the next point.
            values = self.forward.observe(index, map_tensors(_itself, batch))
        if _marks(tensors) != before:
            raise SamplesChanged
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.requires_grad_(False).grad = None
        found = check_observed(values, batch_length(batch), self._names)
        self._names = tuple(found)
        # Copied, as observe may write its next values to the same memory.
        return {name: each.detach().to(self._device, torch.float64, copy=True) for name, each in found.items()}

    @contextlib.contextmanager
    def _captured_whole(self, index: int | None) -> Iterator[None]:
        """Refuse a graph of kernels where Python, or memory from before the point, has a part in the values."""
        forward = self.forward
        if not isinstance(forward, Graphed) or not forward.captures(index):
            yield
            return
        self._begin()
        yield
        self._refuse_state("cudagraph replays kernels alone")

    def _refuse_state(self, engine: str) -> None:
        if self._state.changed() or self.weights.changed:
            what = ", ".join(self._state.names_changed()[:3]) or "its tensors"
            raise JobError(f"engine: {engine}, and the model changes {what} when it is called; use another engine")

    def observe_stacked(self, stacked: dict[str, Tensor], batch: Batch) -> Observed:
        """The observables of a batch at stacked weights, float64 [points, samples] each."""
        assert isinstance(self._forward, Stacked)
        with kept_alive(), self._autocast():
            values = self._forward.observe_points(stacked, map_tensors(_itself, batch))
        self._refuse_state("vmap computes several points at once")
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
            self._observe(self.model, map_tensors(_itself, batch))
        return pooling.met

    def _superposable(self, batch: Batch) -> list[Layer]:
        if self.plan.batch_norm == "recalibrate":
            raise ValueError("batch_norm: recalibrate goes over all samples twice at every point")
        few = map_tensors(lambda tensor: tensor[:2], batch)

        def observe_at(coordinate: float) -> None:
            self._state.restore()
            self.weights.set_point([coordinate] * self._axes)
            before = checksums(self.weights.moved_tensors)
            with self._autocast():
                self._observe(self.model, few)
            written = before != checksums(self.weights.moved_tensors)
            if written or self.weights.changed or self._state.changed():
                raise ValueError("observe changes what the model holds, batch after batch of a point")

        with kept_alive(), arithmetic(self.plan, self._device), torch.no_grad():
            points = [partial(observe_at, coordinate) for coordinate in (0.0, 1.0)]
            return layers_of_same_input(self.model, self.weights.moved_tensors, points)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _marks(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """What changes when a tensor is written to, or made another one."""
    return [(each._version, each.data_ptr(), each.shape, each.stride()) for each in tensors]


def _holds(question: Callable[[], bool]) -> bool:
    """What raises cannot be done: control flow that is not to be traced, nothing to rewrite."""
    try:
        with kept_alive():
            return question()
    except Exception:
        return False


def _use_batch_statistics(norms: Sequence[Any]) -> None:
    """Make normalisation layers use each batch's own statistics, and keep none, in eval mode as well."""
    for module in norms:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
