"""The engine and the batches that a job takes without measuring: a table of rules on what the model computes.

A rule says where a rewrite is taken: by the types and shapes of layers, the device and the batch. So the same job has
the same default on every machine. A rule is here only if it was faster in every measurement on the models of
`landscape bench`, with kernels for AVX-512 and for AVX2; its figures are the lowest and the highest median of
`tests/measure/default_engine.py`, see `docs/bench.md`. No rule is known for a GPU or for other precisions than float32:
there the default is plain `eager`, in batches of `default_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from landscape.core.plan import OPTIONS, Engine, Plan
from landscape.evaluation.engines.base import RewriteTarget, applies, arithmetic
from landscape.evaluation.engines.reuse import LAYERS, find_superposable
from landscape.evaluation.running_model import REWRITES
from landscape.evaluation.tuning.choices import Candidate
from landscape.problem.batches import first_of
from landscape.problem.supervised import Supervised
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# What one sample costs, seen in two passes over a few of them.

COUNTED = (2, 4)  # samples; what grows from one pass to the other is the cost of samples, the rest that of weights


@dataclass(frozen=True)
class SampleCost:
    """What the model computes for one sample, and what a rule may ask beside it.

    Args:
        plan: the arithmetic, with the planned batch size.
        samples: of a point.
        layers: the types of the modules without modules of their own.
        is_supervised: whether `observe` is the one of `Problem.supervised`, which calls the model once.
        window: the edge of the largest window of max-pooling in two dimensions; 0: there is none.
        parameters: how many numbers a point sets.
        multiply_adds: by torch's formulas; operations without one count as nothing.
        of_convolutions: the share of these in convolutions.
        superposable: the share in the moved layers whose input is the same at every point.
        per_output: their multiply-adds for each number that they return.
        largest_output: bytes of the largest tensor that an operation returns.
        large_output: of the largest but one.
    """

    plan: Plan
    samples: int
    layers: frozenset[type[nn.Module]]
    is_supervised: bool
    window: int
    parameters: int
    multiply_adds: float
    of_convolutions: float
    superposable: float
    per_output: float
    largest_output: float
    large_output: float


MAX_POOLING = (torch.ops.aten.max_pool2d, torch.ops.aten.max_pool2d_with_indices)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, counts multiply-adds, those in convolutions, and the bytes that every operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.multiply_adds = self.of_convolutions = 0.0
        self.window = 0
        self.outputs: list[int] = []
        self.of_layers: dict[nn.Module, tuple[float, float]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler, for a second, to keep this method out of compiled code."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            flops = count(*args, **(kwargs or {}), out_val=result)
            self.multiply_adds += flops / 2
            if func.overloadpacket is torch.ops.aten.convolution:
                self.of_convolutions += flops / 2
        if func.overloadpacket in MAX_POOLING:
            self.window = max(self.window, *args[1])
        if not func.is_view:
            leaves = tree_leaves(result)
            self.outputs.append(max((leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor)), default=0))
        return result

    def see(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """The forward hook of a layer: its multiply-adds, and the numbers that it returns."""
        weight = layer.weight
        assert isinstance(weight, Tensor)
        before, numbers = self.of_layers.get(layer, (0.0, 0.0))
        self.of_layers[layer] = before + output.numel() * weight[0].numel(), numbers + output.numel()


def cost_of_sample(target: RewriteTarget, samples: int) -> SampleCost:
    """Count what the model computes at the origin; the state is restored.

    Raises:
        Exception: whatever user code raises there, and what an operation's formula does.
    """
    few, many = (_count(target, count) for count in COUNTED)
    added = COUNTED[1] - COUNTED[0]
    multiply_adds = (many.multiply_adds - few.multiply_adds) / added
    of_convolutions = (many.of_convolutions - few.of_convolutions) / added
    outputs = sorted((b - a) / added for a, b in zip(few.outputs, many.outputs, strict=False))
    superposed, numbers = _superposable(target, many)
    return SampleCost(
        target.plan, samples, _leaves(target.model), isinstance(target.observe, Supervised), many.window,
        target.weights.parameters, multiply_adds, of_convolutions / max(1.0, multiply_adds),
        superposed / max(1.0, COUNTED[1] * multiply_adds), superposed / max(1.0, numbers),
        max(outputs, default=0.0), max(outputs[-2:-1], default=0.0),
    )  # fmt: skip


def _count(target: RewriteTarget, count: int) -> _Counter:
    counter, weights, fast = _Counter(), target.weights, torch.backends.mha.get_fastpath_enabled()
    target.state.restore()  # which also removes hooks
    weights.set_point([0.0] * weights.axes)
    layers = [layer for layer in target.model.modules() if type(layer) in LAYERS]
    try:
        hooks = [layer.register_forward_hook(counter.see) for layer in layers]
        torch.backends.mha.set_fastpath_enabled(False)  # there is no formula for its one operation
        with kept_alive(), arithmetic(target.plan, target.device), torch.no_grad():
            few = first_of(target.first_batch(), count)
            with counter:
                target.observe(target.model, few)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
        target.restore()
    return counter


def _superposable(target: RewriteTarget, counter: _Counter) -> tuple[float, float]:
    """Multiply-adds of the layers that can be sums, and the numbers that they return; 3-D convolutions are none."""
    none = 0.0, 0.0
    largest = max((count for count, _ in counter.of_layers.values()), default=0.0)
    if not largest or largest < SHARE / 2 * counter.multiply_adds:
        return none  # without asking, as that takes further passes
    try:
        layers = [layer for layer in find_superposable(target) if not isinstance(layer, nn.Conv3d)]
    except Exception:  # there are none, or user code forbids it
        return none
    counts = [counter.of_layers.get(layer, none) for layer in layers]
    return sum(count for count, _ in counts), sum(numbers for _, numbers in counts)


def _leaves(model: nn.Module) -> frozenset[type[nn.Module]]:
    return frozenset(type(module) for module in model.modules() if not any(module.children()))


# ----------------------------------------------------------------------------------------------------
# The rules of the rewrites.


@dataclass(frozen=True)
class Rule:
    """A rewrite, and where it is taken without a trial.

    Args:
        option: its name in `landscape.core.plan.OPTIONS`; it is taken only where it would change something.
        where: whether it is taken with this cost of a sample, and with the options that earlier rules have taken.
    """

    option: str
    where: Callable[[SampleCost, Engine], bool]


def _normalises(cost: SampleCost, engine: Engine) -> bool:
    """Whether there are batch norms."""
    return any(issubclass(kind, _BatchNorm) for kind in cost.layers)


def _convolves(cost: SampleCost, engine: Engine) -> bool:
    """Whether convolutions are most of the cost."""
    return cost.of_convolutions >= 0.5


def _takes_channels_last(cost: SampleCost, engine: Engine) -> bool:
    """With a few plain convolutions and nothing else, copies between the layouts may cost more than the kernels gain.

    After a superposed layer they do so with AVX-512.
    """
    others = engine.options or cost.window or _normalises(cost, engine)
    return _convolves(cost, engine) and not engine.shares_rows and bool(others)


def _takes_maxima(cost: SampleCost, engine: Engine) -> bool:
    """With channels last, torch's own kernel is as fast for windows of more than two by two."""
    return 0 < cost.window <= (2 if "channels_last" in engine.options else math.inf)


SHARE, PER_OUTPUT = 0.2, 25  # of the multiply-adds; multiply-adds for each number that is returned

# Beside each rule, how many times as fast the engine is with it as without it: with AVX-512; with AVX2.
RULES = (
    # 1.15 to 1.44; 1.13 to 1.35
    Rule("folded", _normalises),
    # 1.00 to 1.29; 1.04 to 1.15
    Rule("fused", _convolves),
    # 1.18 to 1.55; 1.24 to 1.38. Smaller layers are lost in the passes over their outputs, and in weights that are set
    # once more for every batch.
    Rule("superposed", lambda cost, engine: cost.superposable >= SHARE and cost.per_output >= PER_OUTPUT),
    # 1.28 to 1.72; 1.07 to 1.47
    Rule("channels_last", _takes_channels_last),
    # 1.03 to 3.54; 1.01 to 3.0
    Rule("maxima", _takes_maxima),
)

# ----------------------------------------------------------------------------------------------------
# Several points at once, where a kernel takes less time than its start.

SMALL_MODEL, SMALL_BATCH = 100_000, 1 << 20  # parameters; multiply-adds of one batch
STACKED, STACKED_OUTPUT = 32, 64 << 20  # points; bytes that an operation may return for all of them
# The first stack of a process makes torch import sympy, which takes 0.3 s; a point gains 0.1 to 0.3 ms.
FEWEST_STACKED = 2_000  # points of a job
# Layers that `vmap` computes for all points as one product of matrices, and layers without weights.
STACKABLE = (nn.Linear, nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.LayerNorm)


def _stacks(cost: SampleCost) -> bool:
    """Measured: one by one takes 1.4 to 3.3 times as long, with 16 and 2,048 samples.

    With one thread only: several cut a stack of points into parts, at whose ends some functions round differently.
    """
    plain = all(kind in STACKABLE or kind.__module__ == nn.ReLU.__module__ for kind in cost.layers)
    rows = min(cost.plan.batch_size, cost.samples)
    fits = cost.multiply_adds * rows <= SMALL_BATCH and STACKED * rows * cost.largest_output <= STACKED_OUTPUT
    return cost.is_supervised and plain and fits and cost.parameters < SMALL_MODEL and cost.plan.threads == 1


# ----------------------------------------------------------------------------------------------------
# The batch, by the bytes of the largest outputs; a single one may be larger than the others.

LARGE_OUTPUT, LARGEST_OUTPUT = 8 << 20, 32 << 20  # bytes
FEWEST, MOST = 8, 2048  # samples


def batch_for(cost: SampleCost) -> int:
    """The largest power of two between FEWEST and MOST with which the outputs keep to these limits.

    They are more than a core's cache: smaller batches cost more in kernels' starts than they save, larger ones in pages
    of memory that are new for every output.
    """
    fitting = min(LARGE_OUTPUT / max(1.0, cost.large_output), LARGEST_OUTPUT / max(1.0, cost.largest_output))
    return min(MOST, max(FEWEST, 1 << int(math.log2(max(1.0, fitting)))))


# ----------------------------------------------------------------------------------------------------


def default_candidate(
    target: RewriteTarget,
    samples: int,
    points: int,
    *,
    has_rows: bool = True,
    may_choose_batch_size: bool = True,
    same_moved: bool = True,
) -> Candidate:
    """The engine and the batch size that the rules give.

    Args:
        target: the model, run as plain `eager`.
        samples: of a point.
        points: of the whole job.
        has_rows: whether batches are rows of tensors, which can be cut anywhere.
        may_choose_batch_size: whether the job leaves the batch size open.
        same_moved: whether all landscapes of the job move the weights of the same layers; else no layer is superposed,
            since all are computed by one engine.
    """
    plan = target.plan
    planned = Candidate(plan.engine, plan.batch_size)
    has_rules = plan.device == "cpu" and plan.precision == "float32"
    if not has_rules or plan.engine != Engine() or min(plan.batch_size, samples) < COUNTED[1] or not has_rows:
        return planned
    try:
        cost = cost_of_sample(target, samples)
    except Exception:  # of user code; if it is no accident, the first point reports it
        return planned
    size = plan.batch_size
    # The losses of another function may depend on the other samples of a batch.
    if may_choose_batch_size and plan.statistics.fixed and cost.is_supervised:
        size = min(batch_for(cost), samples)
    cost = replace(cost, plan=replace(plan, batch_size=size))
    # Growing blocks are evaluated at scattered points, which share no row and fill no stack.
    alone = plan.reduction == "growing" or not same_moved
    if not alone and plan.statistics.fixed and plan.quantise is None and points >= FEWEST_STACKED and _stacks(cost):
        return Candidate(Engine("vmap", points=STACKED), size)
    engine = Engine()
    for rule in RULES:
        option = OPTIONS[rule.option]
        takes = rule.where(cost, engine) and option.suits.allows(plan.quantise) and not (alone and option.shares_rows)
        if takes and applies(REWRITES[rule.option], target):
            engine = engine.adding(rule.option)
    return Candidate(engine, size)
