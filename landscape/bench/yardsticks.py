"""What the evaluator is compared with: a bare forward pass, eager or by the same engine, and the setting of weights."""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from landscape.core.grid import Floats
from landscape.core.plan import Engine, Plan, Precision, in_float32
from landscape.evaluation.engines.base import RewriteTarget, arithmetic, autocast, wait
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.model_state import ModuleState, private_copy
from landscape.evaluation.running_model import layouts_of, make_forward, take_to_type
from landscape.evaluation.weights import MovingWeights, set_layouts
from landscape.model.parameters import State, targets_of
from landscape.problem.batches import Batch, Samples, TensorSamples, as_samples, dense_tensors_in, moved, tensor_bytes
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
    if isinstance(chosen, TensorSamples):
        chosen = TensorSamples(moved(chosen.rows, device, dtype))  # one allocation, of which the batches are views
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
        set_layouts(model, layouts_of(engine))
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
) -> RewriteTarget:  # fmt: skip
    return RewriteTarget(model, ModuleState(model, ()), weights, observe, plan, device, lambda: batches[0])


def _stacked(model: nn.Module, directions: Sequence[State], points: int) -> Mapping[str, Tensor]:
    moved = {name: each for name, each in targets_of(model).items() if any(name in one for one in directions)}
    return {name: torch.stack([each] * points) for name, each in moved.items()}


class SettingWeights:
    """The weights of one point after the other, and nothing evaluated."""

    def __init__(
        self, problem: Problem, plan: Plan, device: torch.device, origin: State, directions: Sequence[State],
        points: Floats,
    ) -> None:  # fmt: skip
        self._plan, self._device = plan, device
        model, layouts = model_for(problem.model, plan, device), layouts_of(plan.engine)
        set_layouts(model, layouts)
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


# ----------------------------------------------------------------------------------------------------
# Times that can be compared on a machine that others use too: all are timed in every round, and ratios are per round.
#
# Load that comes and goes with the minutes then slows all of them in the same round, and leaves their ratios alone.

WARM_UPS = 2  # in the second pass an evaluator learns which outputs stay the same
MOST_PASSES = 2000

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Contestant:
    """What is timed: `run(count)` does its work for `count` points and returns when the device is done."""

    key: str
    run: Callable[[int], None]
    step: int = 1  # the counts that suit it are multiples of this


def race(
    contestants: Sequence[Contestant], rounds: int, slice_seconds: float,
    report: Callable[[str], None] = lambda text: None,
) -> list[Seconds]:  # fmt: skip
    """Seconds per point of every contestant, once per round, each timed over about `slice_seconds`.

    The order is reversed in every second round, so that none is always timed after the same one.
    """
    counts = {each.key: _count(each, slice_seconds) for each in contestants}
    timed: list[Seconds] = []
    for k in range(rounds):
        order = contestants if k % 2 == 0 else list(reversed(contestants))
        timed.append({contestant.key: _seconds(contestant, counts[contestant.key]) for contestant in order})
        report(f"round {k + 1} of {rounds}")
    return timed


def _count(contestant: Contestant, slice_seconds: float) -> int:
    for _ in range(WARM_UPS):
        contestant.run(contestant.step)
    alone = _seconds(contestant, contestant.step)
    wanted = math.ceil(slice_seconds / max(alone, 1e-9) / contestant.step)
    return contestant.step * max(1, min(MOST_PASSES, wanted))


def _seconds(contestant: Contestant, count: int) -> float:
    start = time.perf_counter()
    contestant.run(count)
    return (time.perf_counter() - start) / count


def typical(rounds: Sequence[Seconds], key: str) -> float:
    """The median over the rounds of a contestant's seconds per point."""
    return statistics.median(each[key] for each in rounds)


def quotient(rounds: Sequence[Seconds], above: str, below: str) -> dict[str, float]:
    """The ratio of two contestants' seconds: taken within each round, then the median, lowest and highest."""
    ratios = [each[above] / each[below] for each in rounds]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


# ----------------------------------------------------------------------------------------------------
# What this device can do at best, measured beside the rest: multiply matrices, move bytes.

CPU_EDGE, CPU_BYTES = 1024, 1 << 27
CUDA_EDGE, CUDA_BYTES = 8192, 1 << 31


@dataclass(frozen=True)
class Ceiling:
    """A contestant, and how much one run of it does: floating-point operations, or bytes read and written."""

    contestant: Contestant
    work: float


def matmul_ceiling(key: str, plan: Plan, device: torch.device) -> Ceiling:
    """Square matrices in the plan's precision and threads: 2n³ operations."""
    edge = CUDA_EDGE if device.type == "cuda" else CPU_EDGE
    left, right, out = (torch.randn(edge, edge, device=device).to(_dtype(plan.precision)) for _ in range(3))

    def run(count: int) -> None:
        with arithmetic(plan, device), torch.no_grad():
            for _ in range(count):
                torch.mm(left, right, out=out)
            wait(device)

    return Ceiling(Contestant(key, run), 2.0 * edge**3)


def copy_ceiling(key: str, plan: Plan, device: torch.device) -> Ceiling:
    """A copy larger than any cache: every byte is read once and written once."""
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)

    def run(count: int) -> None:
        with arithmetic(plan, device):
            for _ in range(count):
                target.copy_(source)
            wait(device)

    return Ceiling(Contestant(key, run), 2.0 * size)


def _dtype(precision: Precision) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)


def work_of(bare: Bare) -> dict[str, float | None]:
    """Of one point: floating-point operations as torch counts them, and the bytes that must be read at the least.

    The bytes are the weights and the samples once each, in float32; activations that leave the cache come on top.
    """
    weights = sum(each.nbytes for each in (*bare.model.parameters(), *bare.model.buffers()))
    samples = sum(each.nbytes for batch in bare.batches for each in dense_tensors_in(batch))
    return {"flops": _flops(bare), "bytes": float(weights + samples)}


def _flops(bare: Bare) -> float | None:
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            bare.observe(bare.model, bare.batches[0])
    except Exception:
        return None  # an operation that the counter has no formula for and fails at
    share = sum(map(tensor_bytes, bare.batches)) / max(1, tensor_bytes(bare.batches[0]))
    return counter.get_total_flops() * share or None


def distance(work: Mapping[str, float | None], seconds: float, flops: float, bandwidth: float) -> dict[str, Any]:
    """How far a pass of `seconds` is from the ceilings: its share of each, and of the slower of the two bounds."""
    compute = (work["flops"] or 0.0) / flops
    memory = (work["bytes"] or 0.0) / bandwidth
    return {
        "flops_per_second": (work["flops"] or 0.0) / seconds, "share_of_flops": compute / seconds,
        "share_of_bandwidth": memory / seconds, "share_of_bound": max(compute, memory) / seconds,
        "bound": "flops" if compute >= memory else "bandwidth",
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# How much memory an evaluation takes beyond the model, its directions and the samples.
#
# On a GPU the figures are those of torch's allocator. On a CPU the resident size of the process is too noisy, so every
# storage that an operation returns is counted while it lives. Neither sees what a kernel allocates and frees inside.


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, the bytes of all storages made in it that are still alive, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(each) for each in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in given and id(storage) not in self._known:
                self._count(storage)
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: Any) -> None:
        key = id(storage)
        # torch keeps one Python object per storage for as long as the storage lives.
        self._known[key] = (weakref.ref(storage, lambda gone: self._freed(key)), storage.nbytes())
        self.live += storage.nbytes()

    def _freed(self, key: int) -> None:
        self.live -= self._known.pop(key)[1]


def _storages(values: Any) -> list[Any]:
    return [each.untyped_storage() for each in tree_leaves(values) if isinstance(each, Tensor)]


@dataclass
class Peak:
    """The most bytes that were allocated above what was there before, and what is left of them at the end."""

    bytes: int = 0
    kept: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """The bytes that the `with` block allocates on the device; the yielded `Peak` holds them after the block."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        peak.kept = torch.cuda.memory_allocated(device) - before
    else:
        with LiveStorages() as storages:
            yield peak
        peak.bytes, peak.kept = storages.peak, storages.live


def memory_of(
    evaluator: Evaluator, bare: Bare, model: nn.Module, directions: Sequence[State], points: Floats
) -> dict[str, Any]:
    """Bytes an evaluation takes above model and directions, over those of one bare batch.

    A fresh evaluator is measured, a twin of `evaluator` that shares its samples. Its first points are reported apart
    from the later ones, as it learns at them which outputs stay the same. The bytes include what is kept between
    points, which is also reported by itself: the origin's weights and those that a row shares.
    """
    device, size = evaluator.device, 8 if evaluator.plan.precision == "float64" else 4
    with peak_of(device) as one_batch, torch.no_grad():
        bare.observe(bare.model, bare.batches[0])
    with peak_of(device) as whole:
        fresh = evaluator.twin(evaluator.plan)
        fresh.evaluate(points)
    with peak_of(device) as later:
        fresh.evaluate(points)
    weights = size * sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    axes = size * sum(each.numel() for direction in directions for each in direction.values())
    above, kept = (max(0, each - weights - axes) for each in (whole.bytes, whole.kept))
    return {
        "engine": str(evaluator.plan.engine), "batch_size": evaluator.plan.batch_size,
        "how": "allocator" if device.type == "cuda" else "live storages",
        "first_bytes": above, "evaluation_bytes": kept + later.bytes, "kept_bytes": kept,
        "bare_batch_bytes": one_batch.bytes, "first_ratio": above / max(1, one_batch.bytes),
        "ratio": (kept + later.bytes) / max(1, one_batch.bytes), "model_bytes": weights, "direction_bytes": axes,
    }  # fmt: skip
