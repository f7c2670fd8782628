"""A loaded model with an engine: set to a point, and observed batch by batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.errors import JobError
from landscape.core.plan import BASES, OPTIONS, Engine, OriginIn, Plan, Precision
from landscape.core.quantisation import Quantisation
from landscape.evaluation.engines.base import Forward, Rewrite, RewriteTarget, applies, autocast, tidy, traced
from landscape.evaluation.engines.reuse import Reuse
from landscape.evaluation.feed import Counts, SamplesChanged, marks
from landscape.evaluation.model_rounding import ActivationRounding, WeightRounding
from landscape.evaluation.model_state import ModuleState, private_copy
from landscape.evaluation.reduction import Observed
from landscape.evaluation.weights import MovingWeights, set_layouts
from landscape.model.parameters import State, on_meta
from landscape.model.shards import gathering_modules, is_sharded, refuse_other_type, whole_tensor
from landscape.problem.batches import Batch, batch_length, exchange_tensors, is_strided
from landscape.problem.supervised import Combination, Observe, check_observed, check_terms
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# The class of each base and each option of an engine, and how they are combined.


def _implementation(text: str) -> type:
    """The class `FILE:CLASS` of `landscape/evaluation/engines`."""
    file, _, name = text.partition(":")
    found: type = getattr(import_module(f"landscape.evaluation.engines.{file}"), name)
    return found


# In the order in which they are installed.
REWRITES: dict[str, type[Rewrite]] = {
    name: _implementation(option.implementation)
    for name, option in sorted(OPTIONS.items(), key=lambda item: item[1].turn)
}
# Installed without being requested, if they apply and the base calls the modules: they change no bit.
ALWAYS: dict[str, type[Rewrite]] = {"reuse": Reuse}


def class_of(base: str) -> type[Forward]:
    """The class of a base, by its name in `landscape.core.plan.BASES`."""
    return _implementation(BASES[base].implementation)


def layouts_of(engine: Engine) -> dict[int, torch.memory_format]:
    """The memory formats of parameters that the engine asks for, by their number of dimensions."""
    return {
        dimensions: layout
        for name, rewrite in REWRITES.items()
        if name in engine.options
        for dimensions, layout in rewrite.layouts.items()
    }


def possible_options(target: RewriteTarget) -> tuple[str, ...]:
    """The names of the options that would change how this model is computed, in the order of `OPTIONS`."""
    suiting = (name for name, option in OPTIONS.items() if option.suits.allows(target.plan.quantise))
    return tuple(name for name in suiting if applies(REWRITES[name], target))


def refuse_unrounded(engine: Engine, quantise: Quantisation | None) -> None:
    """Raises ValueError if an option of the engine does not suit the quantisation."""
    for name in engine.against(quantise):
        raise ValueError(f"must do without {name} {OPTIONS[name].suits.against}, not {engine}")


def make_forward(target: RewriteTarget, engine: Engine, *, remembering: bool = True) -> Forward:
    """Install an engine in a model.

    Args:
        remembering: whether to install rewrites that keep outputs from point to point.

    Raises:
        ValueError: a rewrite finds nothing to change, or this base does not support it.
        JobError: the engine needs something that this machine or these samples do not have.
        Exception: raised while tracing the model, such as for control flow that depends on the data.
    """
    engine.refuse_combination()
    refuse_unrounded(engine, target.plan.quantise)
    base, calls_modules = class_of(engine.base), "calls" in BASES[engine.base].hooks
    base.check(target)
    rewrites: dict[str, Rewrite] = {}
    taken: frozenset[nn.Module] = frozenset()
    graph: fx.GraphModule | None = None
    with ExitStack() as undoing:
        for name, rewrite in REWRITES.items():
            if name not in engine.options or (rewrite.remembers and not remembering):
                continue
            rewrite.check(target)
            if rewrite.traces and graph is None:
                graph = traced(target.model)
            rewrites[name] = rewrite.install(target, graph, taken)
            undoing.callback(rewrites[name].close)
            taken |= rewrites[name].layers
        if graph is not None:
            tidy(graph)
        for name, rewrite in ALWAYS.items() if calls_modules and graph is None and remembering else ():
            if rewrite.applies(target):
                rewrites[name] = rewrite.install(target, None, taken)
                undoing.callback(rewrites[name].close)
        forward = base(target.model if graph is None else graph, target.observe, rewrites)
        undoing.pop_all()
    return forward


# ----------------------------------------------------------------------------------------------------
# A private copy of the user's model on a device, ready to receive weights.


def type_of(precision: Precision) -> torch.dtype:
    """The type in which weights and samples are held, apart from weights in bfloat16."""
    return torch.float64 if precision == "float64" else torch.float32


class LoadedModel:
    """A private copy of the model in eval mode, in the plan's type and with its mode of batch normalisation.

    Args:
        model: is copied; the caller's is never touched.
        plan: its engine may change later, see `place`.

    Attributes:
        names: the observables, in their order, after the first batch.
        hides_writes: whether user code is known to bypass torch's version counters when it writes to the model.
        activations: rounds the inputs of layers; None if the plan does not quantise them.
    """

    def __init__(self, model: nn.Module, plan: Plan, device: torch.device) -> None:
        self.dtype = type_of(plan.precision)
        self.is_sharded = is_sharded(model)
        self.model, objects = _sharded(model, plan, device) if self.is_sharded else _copied(model, plan, device)
        quantise = plan.quantise
        self._rounding = WeightRounding.of(self.model, quantise)
        self.activations = ActivationRounding(self.model, quantise.bits) if quantise and quantise.activations else None
        self.model.eval()
        if not self.is_sharded:  # else it is the user's own, of which parameters move that require gradients
            self.model.requires_grad_(False)
        self._norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        if plan.statistics.of_each_batch:
            _use_batch_statistics(self._norms)
        # What a sharded model keeps beside its weights is that of its parallel wrappers, which change it themselves.
        self.state = ModuleState(nn.Module() if self.is_sharded else self.model, objects)
        self.names: tuple[str, ...] | None = None
        self.hides_writes = False

    def place(
        self, origin: State, directions: Sequence[State], engine: Engine, origin_in: OriginIn | None = None
    ) -> MovingWeights:
        """Set θ₀ and the axes, in the memory formats of an engine."""
        self.state.restore()
        if self.activations is not None:
            self.activations.forget()
        layouts = layouts_of(engine)
        if not self.is_sharded:
            set_layouts(self.model, layouts)
        return MovingWeights(self.model, origin, directions, layouts, self._rounding, origin_in)

    def recalibrating(self, batches: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """The batches; after the model has observed all, its running statistics are means over the batches.

        Everything else stays in eval mode.
        """
        momenta = [module.momentum for module in self._norms]
        for module in self._norms:
            module.reset_running_stats()
            module.train()
        for index, batch in batches:
            for module in self._norms:
                # A cumulative mean; torch computes it for momentum None too, but in batch normalisation only.
                module.momentum = 1 / (index + 1)
            yield batch
        for module, momentum in zip(self._norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()


def _copied(model: nn.Module, plan: Plan, device: torch.device) -> tuple[nn.Module, list[Any]]:
    """A private copy of the model on the device in the plan's type, and the objects that were copied for it."""
    copied, objects = private_copy(model)
    if on_meta(copied):
        take_to_type(copied, plan)  # before there are any numbers
        give_memory(copied, device)
    copied = copied.to(device)
    take_to_type(copied, plan)
    return copied, objects


def _sharded(model: nn.Module, plan: Plan, device: torch.device) -> tuple[nn.Module, list[Any]]:
    """The model itself, which belongs to this process and its group: a copy would not know the other processes.

    Raises:
        JobError: the plan would convert or round its weights.
    """
    refuse_other_type(model, type_of(plan.precision), rounds=plan.rounds_weights)
    if plan.quantise is not None:
        raise JobError("quantise: a model over several processes is not rounded; leave it out")
    if gathering_modules(model):
        # As `Module.to_empty`, which would also drop the numbers of buffers that no file holds.
        apply: Any = model._apply
        apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    else:
        give_memory(model, device)
    return model, []


def take_to_type(model: nn.Module, plan: Plan) -> None:
    """Convert the model's real floating-point tensors, in place, to the type that the plan holds them in.

    That is float64 or float32; if the plan rounds weights to bfloat16, bfloat16 tensors stay bfloat16.
    """
    # `Module.to(dtype)` would drop the imaginary part of complex weights; these methods do not. They are called as
    # torch's own: transformers overrides them to refuse a model that was read from a quantised file, although its
    # weights are plain numbers.
    if plan.precision == "float64":
        nn.Module.double(model)
    elif not plan.rounds_weights:
        nn.Module.float(model)
    else:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.dtype is not torch.bfloat16:
                tensor.data = tensor.data.float()


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Give tensors on the meta device memory on a real one, in place; tied parameters stay tied.

    Their numbers are undefined until weights are set.
    """
    real: dict[Tensor, Tensor] = {}
    for module in model.modules():
        both: tuple[dict[str, Any], ...] = module._parameters, module._buffers
        for members in both:
            for name, tensor in members.items():
                if tensor is not None and tensor.is_meta:
                    if tensor not in real:
                        real[tensor] = torch.empty_like(tensor, device=device)
                        if isinstance(tensor, nn.Parameter):
                            real[tensor] = nn.Parameter(real[tensor], tensor.requires_grad)
                    members[name] = real[tensor]


def _use_batch_statistics(norms: Sequence[Any]) -> None:
    """Make normalisation layers use each batch's own statistics, also in eval mode, and keep none."""
    for module in norms:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None


# ----------------------------------------------------------------------------------------------------
# What `observe` returns, checked.


def check_observables(
    values: Any, batch: Batch, observe: Observe, counts: Counts | None, loaded: LoadedModel
) -> dict[str, Tensor]:
    """The checked observables of a batch, in a fixed order; the names of the first batch are remembered.

    Args:
        counts: numbers of values per batch; None if a batch has a value for each row.
        loaded: the model, which keeps the names of the first batch.

    Raises:
        JobError: `values` has not one value per sample, or other names than before.
    """
    if isinstance(observe, Combination):
        return check_terms(values, observe.factors)
    count = batch_length(batch) if counts is None else counts.expected(batch, values)
    observed = check_observed(values, count, loaded.names)
    loaded.names = tuple(observed)
    if counts is not None:
        counts.note(len(observed["loss"]))
    return observed


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")


class RunningModel:
    """A loaded model with its weights, run by the engine of a plan; close it before starting another one.

    Args:
        loaded: the model, which also keeps what is known of the user's code.
        target: the same model with its weights and batches, in which the engine is installed.

    Raises:
        JobError, ValueError: the engine cannot run this model here, see `make_forward`.
    """

    def __init__(self, loaded: LoadedModel, target: RewriteTarget) -> None:
        self._loaded, self._target = loaded, target
        if loaded.is_sharded and target.plan.engine != Engine():
            raise JobError(
                f"engine: a model over several processes runs as eager, not {target.plan.engine}; leave it out"
            )
        target.restore()
        with kept_alive():
            self._forward = make_forward(target, target.plan.engine, remembering=not loaded.is_sharded)

    @property
    def plan(self) -> Plan:
        """The arithmetic, including the engine."""
        return self._target.plan

    @property
    def target(self) -> RewriteTarget:
        """The target that the engine was installed in."""
        return self._target

    @property
    def rewrites(self) -> dict[str, Rewrite]:
        """The rewrites that the engine has installed in the model, by name."""
        return self._forward.rewrites

    def close(self) -> None:
        """Remove the engine from the model, which keeps its weights."""
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
        """Restore the tensors that a snapshot sets and a point does not."""
        self._target.weights.restore()

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The moved tensors at several points, stacked along the first dimension, for `observe_stacked`."""
        self._target.restore()
        return self._target.weights.stacked(points)

    # -- ranges of activations --------------------------------------------------------------------------------

    @property
    def lacks_ranges(self) -> bool:
        """Whether activations are rounded and their ranges are not known yet."""
        activations = self._loaded.activations
        return activations is not None and not activations.knows_ranges

    @contextlib.contextmanager
    def taking_ranges(self) -> Iterator[None]:
        """Within the block, run eagerly at the unrounded origin, and measure the ranges of activations."""
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
        """Drop kept outputs: other samples or another row of points follow."""
        self._forward.forget()

    def observe(self, index: int | None, batch: Batch) -> Observed:
        """The observables of a batch; `index` is its number, or None if the weights are no point of the landscape.

        Raises:
            SamplesChanged: user code has written to the batch.
            JobError: `observe` does not return one value per sample, or a CUDA graph would lose something.
        """
        tensors: list[Tensor] = []

        def met(tensor: Tensor) -> Tensor:
            if is_strided(tensor):
                tensors.append(tensor)
            return tensor

        # Containers are copied, tensors are not: an entry that user code removes is there again at the next point.
        fresh = exchange_tensors(met, batch)
        before = marks(tensors)
        with kept_alive(), self._autocast(), self._captured_whole(index):
            values = self._forward.observe(index, fresh)
        if marks(tensors) != before:
            raise SamplesChanged
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.requires_grad_(False).grad = None
        if self._loaded.is_sharded:
            values = {name: whole_tensor(value) for name, value in values.items()}
        observed = self._checked(values, batch)
        # Copied, since `observe` may write its next values to the same memory.
        device = self._target.device
        return {name: values.detach().to(device, torch.float64, copy=True) for name, values in observed.items()}

    def observe_stacked(self, stacked: dict[str, Tensor], batch: Batch) -> Observed:
        """The observables of a batch at stacked weights, float64 [points, samples] each."""
        with kept_alive(), self._autocast():
            values = self._forward.observe_points(stacked, exchange_tensors(_itself, batch))
        self._refuse_changes("vmap computes several points at once")
        first = self._checked({name: value[0] for name, value in values.items()}, batch)
        return {name: values[name].to(self._target.device, torch.float64) for name in first}

    def _checked(self, values: Any, batch: Batch) -> dict[str, Tensor]:
        """The checked observables of a batch, in a fixed order."""
        return check_observables(values, batch, self._target.observe, self._target.counts, self._loaded)

    def recalibrate(self, batches: Iterable[tuple[int, Batch]]) -> None:
        """Recompute running statistics from the samples, as means over the batches."""
        for batch in self._loaded.recalibrating(batches):
            self.observe(None, batch)

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        return autocast(self._target.plan, self._target.device)

    # -- what user code changes -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _captured_whole(self, index: int | None) -> Iterator[None]:
        """Refuse to capture kernels if the values also depend on Python, or on memory from before the point."""
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
        """Whether user code has bypassed torch's counters, so that its writes to the model were not undone.

        From now on they are undone at every point; earlier values must be computed again.
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
        """The engine options that would change something for this model."""
        self._forward.begin(None)  # the calls that follow are no batch of a point
        return possible_options(self._target)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
