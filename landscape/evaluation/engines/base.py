"""The bases, each a way to run `observe(model, batch)`, and the interface of the rewrites.

Also two rewrites for any device: batch norms folded into convolutions, and channels last.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from landscape.core.devices import DEVICE_BYTES
from landscape.core.errors import JobError, quoted
from landscape.core.plan import Plan
from landscape.core.random_state import kept_draws
from landscape.evaluation.feed import Counts
from landscape.evaluation.model_rounding import ActivationRounding
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.weights import MovingWeights
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# The interface of a rewrite: whether it applies, its installation, its hooks, its removal.


@dataclass(frozen=True)
class RewriteTarget:
    """The model that rewrites are installed in, and the facts that they may use.

    Args:
        model: a private copy in eval mode on the device.
        state: the model's state beside its parameters and buffers.
        weights: the moved tensors of the model.
        plan: the arithmetic of the values.
        first_batch: returns the first batch of samples.
        resident: whether the batches stay in one place on the device.
        hides_writes: whether user code writes to the model past torch's version counters.
        counts: how many values `observe` returns for a batch; None: one for each row.
        same_shapes: whether the batches have few enough shapes to compile code for each.
        activations: rounds the inputs of layers; None without quantised activations.
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
        """Undo what user code has changed: the value of a point depends on the point alone."""
        self.state.restore()
        self.weights.restore()


class Rewrite(ABC):
    """A change to how a model is computed, which keeps its values to the bit or up to rounding.

    An instance is the change installed in one model. Its hooks are called when weights are set and batches begin, and
    it is closed when the engine or the batches change. Not every base calls every hook: the rewrite's line in
    `landscape.core.plan.OPTIONS` names the hooks it needs, and bases without them refuse it. To add a rewrite, write a
    subclass and that line.
    """

    layouts: ClassVar[Mapping[int, torch.memory_format]] = {}  # of parameters, by their number of dimensions
    traces: ClassVar[bool] = False  # whether it changes the graph of the model's operations
    remembers: ClassVar[bool] = False  # whether it keeps outputs from one point to another
    trusts_counters: ClassVar[bool] = False  # whether it is wrong when a write bypasses torch's version counters
    compiler_passes: ClassVar[tuple[Callable[[fx.GraphModule], None], ...]] = ()  # over the graph that is compiled

    mode: AbstractContextManager[object] | None = None  # active during every call of `observe`
    layers: frozenset[nn.Module] = frozenset()  # layers whose calls it replaces; other rewrites leave them alone

    @classmethod
    @abstractmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether it would change anything; any error counts as no."""

    @classmethod  # noqa: B027
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError if the plan rules it out, such as by its mode of batch normalisation."""

    @classmethod
    @abstractmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Change how the model is computed.

        Args:
            graph: the model's operations, to be changed in place; None if no rewrite of the engine traces.
            taken: layers that other rewrites have replaced, to be left alone.

        Raises:
            ValueError: nothing in this model can be changed.
        """

    def refresh(self, point: Sequence[float] | None) -> None:  # noqa: B027 - most have nothing to do
        """The weights were set: to this point, or (None) to a whole set of weights, which is no point."""

    def begin(self, batch: int | None) -> None:  # noqa: B027
        """The call that follows is for the batch with this number; None: for weights that are no point."""

    def forget(self) -> None:  # noqa: B027
        """The calls that follow are for other samples or another row of points."""

    def close(self) -> None:  # noqa: B027
        """Leave the model as it was."""


def applies(rewrite: type[Rewrite], target: RewriteTarget) -> bool:
    """Whether a rewrite would change anything; False if the question raises, as for untraceable control flow."""
    try:
        with kept_alive():
            return rewrite.applies(target)
    except Exception:
        return False


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def traced(model: nn.Module) -> fx.GraphModule:
    """The operations of a model as a graph, to be rewritten.

    Raises:
        ValueError: a module has hooks. What replaces a call of it would not call them.
        Exception: raised while tracing, such as for control flow that depends on the data.
    """
    ours = ActivationRounding.__module__
    for name, module in model.named_modules():
        hooks = (hook for kind in HOOKS for hook in getattr(module, kind).values())
        if any(getattr(hook, "__module__", None) != ours for hook in hooks):
            raise ValueError(
                f"{quoted(name or 'the model')} has hooks, which are not called where its call is replaced"
            )
    return fx.symbolic_trace(model)


def tidy(graph: fx.GraphModule) -> None:
    """Make the graph ready to be called after it was changed."""
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()
    graph.eval().requires_grad_(False)


# ----------------------------------------------------------------------------------------------------


class Forward:
    """Operation by operation: the reference, and the class that every other base derives from.

    A base is such a class and a line with its rules in `landscape.core.plan.BASES`. That line names the rewrite hooks
    that the class calls, and these alone decide which options the base can take.

    Args:
        model: its tensors are set from outside, between calls.
        rewrites: installed in the model, by name; this object calls their hooks, and closes them.
    """

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        self.model, self._observe, self.rewrites = model, observe, dict(rewrites)
        self._collect_modes()

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises JobError or ValueError if the engine cannot run."""

    def refresh(self, point: Sequence[float] | None) -> None:
        """Call this after the model's tensors were set: to this point, or (None) to a whole set of weights."""
        for rewrite in self.rewrites.values():
            rewrite.refresh(point)

    def forget(self) -> None:
        """Call this before other samples, or another row of points."""
        for rewrite in self.rewrites.values():
            rewrite.forget()

    def begin(self, index: int | None) -> None:
        """Call this before batch number `index`; None: for weights that are no point."""
        for rewrite in self.rewrites.values():
            rewrite.begin(index)

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of a batch; `index` is its number, or None if the weights are no point of the plane."""
        self.begin(index)
        with self.active():
            return self._observe(self.model, batch)

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at stacked weights [points, …].

        Raises:
            NotImplementedError: this base computes one point after the other.
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
        """Whether this call for the batch runs Python for the last time; later calls replay its kernels."""
        return False

    def distrust_counters(self) -> None:
        """Remove the rewrites that rely on torch's version counters, since user code bypasses the counters."""
        for name in [name for name, rewrite in self.rewrites.items() if rewrite.trusts_counters]:
            self.rewrites.pop(name).close()
        self._collect_modes()

    def close(self) -> None:
        """Leave the model as it was."""
        while self.rewrites:
            self.rewrites.popitem()[1].close()


class ObservedModel(nn.Module):
    """`observe` and its model as one module, which is compiled or called with other weights as a whole."""

    def __init__(self, model: nn.Module, observe: Observe) -> None:
        super().__init__()
        self.model, self._observe = model, observe

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        """The observables of a batch at the model's weights."""
        return self._observe(self.model, batch)


# ----------------------------------------------------------------------------------------------------
# The other bases: compiled, replayed as a graph of kernels, and for several points at once.


class Compiled(Forward):
    """By `torch.compile`; shapes are fixed, so every batch size is compiled once."""

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        passes = [change for rewrite in rewrites.values() for change in rewrite.compiler_passes]
        backend = partial(_inductor_after, passes) if passes else "inductor"
        self._compiled = torch.compile(ObservedModel(model, observe).eval(), dynamic=False, backend=backend)

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError if batches have many shapes, each of which would be compiled."""
        if not target.same_shapes:
            raise ValueError("engine: compile prepares code for each shape, and the batches have shapes of their own")

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of a batch, by the compiled code. No rewrite's `begin` is called."""
        return self._compiled(batch)


def _inductor_after(
    passes: Sequence[Callable[[fx.GraphModule], None]], graph: fx.GraphModule, inputs: list[Any]
) -> Any:
    from torch._inductor.compile_fx import compile_fx

    for change in passes:
        change(graph)
    return compile_fx(graph, inputs)


CAPTURE_WARM_UPS = 3


class Graphed(Forward):
    """A CUDA graph per batch: one launch instead of one per operation. Weights and samples keep their addresses.

    The next call for the same batch overwrites the returned tensors.
    """

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool: Any = None

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises JobError if samples stream to the device: a graph reads them from a fixed address."""
        if not target.resident:
            raise JobError(
                "engine: cudagraph replays batches that stay where they are, and the samples do not fit the device; "
                f"use another engine, fewer samples, or a larger {DEVICE_BYTES}"
            )

    def captures(self, index: int | None) -> bool:
        """Whether a point is computed and the batch has no graph yet."""
        return index is not None and index not in self._graphs

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of a batch by its graph, captured at its first call; eagerly if `index` is None."""
        if index is None:
            return super().observe(index, batch)
        if index not in self._graphs:
            self._graphs[index] = self._capture(batch)
        graph, values = self._graphs[index]
        graph.replay()
        return values

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Any]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UPS):
                super().observe(None, batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            values = super().observe(None, batch)
        self._pool = graph.pool()
        return graph, values


class Stacked(Forward):
    """Several points at once by `vmap` over their stacked moved weights. Whole sets of weights run one by one."""

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._observed = ObservedModel(model, observe)

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError if statistics are recomputed at every point, as stacked points would share them."""
        tracked = any(getattr(module, "running_mean", None) is not None for module in target.model.modules())
        if target.plan.statistics.recalibrated and tracked:
            raise ValueError(
                f"batch_norm: must not be {target.plan.batch_norm} under vmap, as the points computed at once would "
                "share their statistics"
            )

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at the stacked weights [points, …], all points at once."""
        with self.active():
            return vmap(lambda weights: self._at(weights, batch), randomness="same")(dict(stacked))

    def _at(self, weights: Mapping[str, Tensor], batch: Batch) -> Any:
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        return functional_call(self._observed, named, (batch,))


# ----------------------------------------------------------------------------------------------------
# Applying the arithmetic of a plan: threads, precision, deterministic kernels.


def autocast(plan: Plan, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """torch's autocast for a plan in bfloat16; otherwise nothing, as `arithmetic` turns off that of the caller."""
    if plan.precision != "bfloat16":
        return nullcontext()
    # autocast's cache lives for one block only, and must not be filled while a CUDA graph is captured.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextlib.contextmanager
def arithmetic(plan: Plan, device: torch.device) -> Iterator[None]:
    """Within the block, the plan's threads, precision and deterministic kernels, and no autocast of the caller's.

    Afterwards the process's own.
    """
    tf32 = plan.precision == "tf32"
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
    no_autocast = torch.autocast(device.type, torch.bfloat16, enabled=False)
    with kept_draws(), flags, no_autocast:
        try:
            if threads != plan.threads:
                torch.set_num_threads(plan.threads)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if threads != plan.threads:
                torch.set_num_threads(threads)


def wait(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ----------------------------------------------------------------------------------------------------
# Batch norms folded into the convolutions before them.

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Fold:
    """A convolution, the batch normalisation after it, and the convolution that replaces both.

    w′ = w·s, b′ = β + (b − μ)·s with s = γ/√(σ² + ε) per output channel; recomputed at every point, as all may move.
    """

    convolution: nn.Module
    norm: _BatchNorm
    folded: nn.Module

    def refresh(self) -> None:
        """Fold the model's current weights."""
        norm, mean, variance = self.norm, self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        # In float32 at least: the model may hold these in bfloat16, but a layer does not compute in bfloat16 either.
        mean, variance = at_least_float32(mean), at_least_float32(variance)
        scale = (variance + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight
        weight, bias = _weight(self.convolution), self.convolution.bias
        torch.mul(weight, scale.view(-1, *[1] * (weight.dim() - 1)), out=_weight(self.folded))
        shift = -mean * scale if bias is None else (bias - mean) * scale  # type: ignore[operator]
        self.folded.bias.copy_(shift if norm.bias is None else shift + norm.bias)  # type: ignore[operator]


class Folded(Rewrite):
    """Every batch norm that is the sole consumer of a convolution, folded into it."""

    traces = True

    def __init__(self, folds: Sequence[Fold]) -> None:
        self.folds = tuple(folds)

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether statistics are fixed and a batch norm is the sole consumer of a convolution."""
        return target.plan.statistics.fixed and bool(fold_norms(traced(target.model)))

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError if statistics are taken from the layers' inputs, which folded layers do not see."""
        # With batch statistics there are no running ones, so `install` finds nothing to fold.
        if target.plan.statistics.recalibrated:
            raise ValueError(
                f"batch_norm: must not be {target.plan.batch_norm} for folded layers, which compute no statistics"
            )

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Fold all batch norms of the graph that can be folded, except after taken layers."""
        folds = [] if graph is None else fold_norms(graph, taken)
        if not folds and not taken:
            raise ValueError("no convolution is followed by a batch normalisation of its own")
        return cls(folds)

    def refresh(self, point: Sequence[float] | None) -> None:
        """Fold the weights of this point."""
        for fold in self.folds:
            fold.refresh()


def fold_norms(model: fx.GraphModule, leave: frozenset[nn.Module] = frozenset()) -> list[Fold]:
    """Fold each batch norm that is the sole consumer of a convolution, except of the convolutions in `leave`."""
    return [_fold(model, *pair) for pair in _find_foldable(model, leave)]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, converted to float32 if its type is smaller."""
    return tensor if tensor.itemsize >= 4 else tensor.float()


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _find_foldable(model: fx.GraphModule, leave: frozenset[nn.Module]) -> list[tuple[fx.Node, fx.Node]]:
    """Pairs of calls: a convolution whose only reader is a batch normalisation with running statistics."""
    calls: dict[Any, int] = {}
    for node in model.graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    pairs = []
    for node in model.graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if (
            isinstance(before, fx.Node)
            and before.op == "call_module"
            and isinstance(convolution := model.get_submodule(str(before.target)), CONVOLUTIONS)
            and convolution not in leave
            and isinstance(norm := model.get_submodule(node.target), _BatchNorm)
            and norm.running_mean is not None
            and len(before.users) == calls[before.target] == calls[node.target] == 1
        ):
            pairs.append((before, node))
    return pairs


def _fold(model: fx.GraphModule, convolution: fx.Node, norm: fx.Node) -> Fold:
    before, after = model.get_submodule(str(convolution.target)), model.get_submodule(str(norm.target))
    assert isinstance(after, _BatchNorm)
    folded = copy.deepcopy(before)
    weight = _weight(before)
    empty = torch.empty_like(weight, dtype=at_least_float32(weight[:0]).dtype, memory_format=torch.preserve_format)
    folded.weight = nn.Parameter(empty, requires_grad=False)
    folded.bias = nn.Parameter(empty.new_zeros(weight.shape[0]), requires_grad=False)
    model.set_submodule(str(convolution.target), folded)
    norm.replace_all_uses_with(convolution)
    model.graph.erase_node(norm)
    return Fold(before, after, folded)


# ----------------------------------------------------------------------------------------------------
# Convolution weights, and so activations, with the channel as their innermost dimension.


class ChannelsLast(Rewrite):
    """Lays out convolution weights of two and three dimensions with their input channel innermost.

    The code that sets the weights reads `layouts`.
    """

    layouts: ClassVar = {4: torch.channels_last, 5: torch.channels_last_3d}

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether a parameter has four or five dimensions."""
        return any(parameter.dim() in cls.layouts for parameter in target.model.parameters())

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Install nothing in the model."""
        return cls()
