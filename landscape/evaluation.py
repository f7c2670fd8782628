"""Evaluate points: θ(α, β) = θ₀ + α·d₁ + β·d₂, the observables there, their mean and standard error."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.errors import JobError, one_line
from landscape.parameters import State, persistent_buffers
from landscape.problem import Observe, check_observed
from landscape.samples import Batch, batch_length, map_tensors, split_batches, tensors_of
from landscape.spec import BatchNorm, Precision

Floats = NDArray[np.float64]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a landscape: with the job, all that decides its bits. Recorded, and reused on resume."""

    batch_size: int
    threads: int
    device: Literal["cpu", "cuda"]
    precision: Precision = "float32"
    batch_norm: BatchNorm = "eval"
    seed: int = 0
    engine: str = "eager"


@dataclass(frozen=True)
class Values:
    """Observables at P points: mean and standard error, float64 [P] each, by name; and the seconds they took."""

    mean: Mapping[str, Floats]
    stderr: Mapping[str, Floats]
    seconds: float = 0.0

    def arrays(self) -> dict[str, Floats]:
        """As the store names them: `loss`, `loss_stderr`, …"""
        return {
            name: values
            for key in self.mean
            for name, values in ((key, self.mean[key]), (f"{key}_stderr", self.stderr[key]))
        }


class Evaluator:
    """The model of a problem, its samples on the device, and the means to set weights and observe.

    Args:
        model: is copied; the caller's is never touched.
        samples: one batch that holds all chosen samples.
        plan: the arithmetic, see `Plan`.
        device: where to compute, such as `cpu` or `cuda:0`.
        on_point: is called before each point, for signs of life; what it raises ends the evaluation.
    """

    def __init__(
        self, model: nn.Module, samples: Batch, observe: Observe, plan: Plan, device: torch.device,
        on_point: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plan, self.device, self._observe, self._on_point = plan, device, observe, on_point
        self._dtype = torch.float64 if plan.precision == "float64" else torch.float32
        self._model = private_copy(model).to(device)
        # `Module.to(dtype)` would drop the imaginary part of complex weights; these two leave them alone.
        self._model.double() if self._dtype is torch.float64 else self._model.float()
        self._model.eval().requires_grad_(False)
        self._norms = [module for module in self._model.modules() if isinstance(module, _NormBase)]
        if plan.batch_norm == "batch":
            _use_batch_statistics(self._norms)
        self._samples = map_tensors(lambda tensor: _to(tensor, device, self._dtype), samples)
        self._use_batches(plan.batch_size)
        self._checked = False

    def load(self, origin: State, directions: Sequence[State]) -> None:
        """Set θ₀ and the axes; coordinates given later are relative to them."""
        targets = {**dict(self._model.named_parameters()), **persistent_buffers(self._model)}
        self._origin = {
            name: _to(tensor, self.device, self._dtype) for name, tensor in origin.items() if name in targets
        }
        self._targets = [targets[name] for name in self._origin]
        self._directions = [
            [(targets[name], _to(tensor, self.device, self._dtype)) for name, tensor in each.items() if name in targets]
            for each in directions
        ]

    def evaluate(self, points: Floats) -> Values:
        """The observables at `points` [P, axes]."""
        return self._gather([partial(self._set_point, point) for point in points.tolist()])

    def evaluate_states(self, states: Sequence[State]) -> Values:
        """The observables at whole sets of weights, such as the snapshots of a trajectory."""
        return self._gather([partial(self._set_state, state) for state in states])

    def within_memory(self, compute: Callable[[], Result]) -> Result:
        """Call `compute`; where the memory does not suffice, again with half the batch, as often as it takes.

        Each call starts from the planned batch size. `batch_size` tells afterwards what was used: the values are
        the same up to rounding only.
        """
        if self.batch_size != self.plan.batch_size:
            self._use_batches(self.plan.batch_size)
        while True:
            try:
                return compute()
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if self.batch_size == 1 or not is_out_of_memory(error):
                    raise
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._use_batches(self.batch_size // 2)

    def _use_batches(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._batches = split_batches(self._samples, batch_size)

    def _set_point(self, point: Sequence[float]) -> None:
        # Always from the origin: walking from point to point would add up rounding.
        if self._targets:
            torch._foreach_copy_(self._targets, list(self._origin.values()))
        for coordinate, moved in zip(point, self._directions, strict=True):
            if moved:
                tensors, directions = zip(*moved, strict=True)
                torch._foreach_add_(list(tensors), list(directions), alpha=coordinate)

    def _set_state(self, state: State) -> None:
        for target, name in zip(self._targets, self._origin, strict=True):
            target.copy_(state[name])

    def _gather(self, setters: Sequence[Callable[[], None]]) -> Values:
        """Set the weights of each point and observe; one transfer from the device for all points."""
        start = time.perf_counter()
        names: list[str] = []
        rows: list[Tensor] = []
        with arithmetic(self.plan, self.device), torch.no_grad():
            for set_weights in setters:
                self._on_point()
                set_weights()
                names, row = self._observe_point()
                rows.append(row)
            table = torch.stack(rows).cpu().numpy() if rows else np.zeros((0, 0))
        mean = {name: np.ascontiguousarray(table[:, 2 * k]) for k, name in enumerate(names)}
        stderr = {name: np.ascontiguousarray(table[:, 2 * k + 1]) for k, name in enumerate(names)}
        return Values(mean, stderr, time.perf_counter() - start)

    def _observe_point(self) -> tuple[list[str], Tensor]:
        # Common random numbers: a stochastic `observe` draws the same ones at every point, in every order.
        torch.manual_seed(self.plan.seed)
        if self.plan.batch_norm == "recalibrate":
            self._recalibrate()
        pieces = [self._observe_batch(batch) for batch in self._batches]
        names = list(pieces[0])
        samples = torch.stack([torch.cat([piece[name] for piece in pieces]) for name in names])
        return names, mean_and_stderr(samples).reshape(-1)

    def _observe_batch(self, batch: Batch) -> dict[str, Tensor]:
        versions = [] if self._checked else [tensor._version for tensor in tensors_of(batch)]
        count = batch_length(batch)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.precision == "bfloat16"):
            values = self._observe(self._model, batch)
        if not self._checked and [tensor._version for tensor in tensors_of(batch)] != versions:
            raise JobError(
                "observe: must not change its batch in place, as every point sees the same samples; clone it first"
            )
        found = check_observed(values, count)
        self._checked = True
        return {name: value.detach().to(self.device, torch.float64) for name, value in found.items()}

    def _recalibrate(self) -> None:
        """Running statistics anew from the samples, as the mean over batches; everything else stays in eval mode."""
        momenta = [module.momentum for module in self._norms]
        for module in self._norms:
            module.reset_running_stats()
            module.train()
        for count, batch in enumerate(self._batches, 1):
            for module in self._norms:
                # A cumulative mean; what torch does for momentum None it does for batch normalisation only.
                module.momentum = 1 / count
            self._observe_batch(batch)
        for module, momentum in zip(self._norms, momenta, strict=True):
            module.momentum = momentum
            module.eval()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device's or the host's memory does not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's allocator on the CPU


def mean_and_stderr(samples: Tensor) -> Tensor:
    """Mean and standard error of the mean of float64 [K, N], as [K, 2].

    m = Σx/N, SE = √(Σ(x−m)²/(N−1)) / √N. NaN in, NaN out; the standard error of one sample is NaN.
    """
    count = samples.shape[1]
    mean = samples.mean(1)
    # Two passes: the difference of large sums would lose the small spread near a minimum.
    spread = (samples - mean[:, None]).square().sum(1) / (count - 1) if count > 1 else torch.full_like(mean, torch.nan)
    return torch.stack([mean, (spread / count).sqrt()], dim=1)


@contextlib.contextmanager
def arithmetic(plan: Plan, device: torch.device) -> Iterator[None]:
    """The plan's threads and precision and deterministic kernels; the process is left as it was found."""
    tf32 = plan.precision == "tf32"
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32),
    ):
        try:
            if threads != plan.threads:
                torch.set_num_threads(plan.threads)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if threads != plan.threads:
                torch.set_num_threads(threads)


def private_copy(model: nn.Module) -> nn.Module:
    """A deep copy of the model without its gradients' graph."""
    try:
        return copy.deepcopy(model)
    except Exception as cause:
        raise JobError(
            f"model: {type(model).__name__} cannot be copied ({cause}); return one that copy.deepcopy takes"
        ) from cause


def _to(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """On the device, floating-point tensors in the plan's type; integers stay what they are."""
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


def _use_batch_statistics(norms: Sequence[Any]) -> None:
    """Make normalisation layers use each batch's own statistics, and keep none, in eval mode as well."""
    for module in norms:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None


def default_plan(
    num_samples: int, device: str, precision: Precision, batch_norm: BatchNorm, seed: int,
    batch_size: int | None, threads: int | None,
) -> Plan:  # fmt: skip
    """The plan where the job leaves it open: a function of the job and the kind of device, not of the machine."""
    preferred = 2048 if device == "cuda" else 256
    kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    return Plan(min(batch_size or preferred, num_samples), threads or 1, kind, precision, batch_norm, seed)


def device_here() -> torch.device:
    """The first GPU of this machine, else its CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def pick_device(wanted: str) -> torch.device:
    """`auto` is the first GPU where there is one, else the CPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise JobError("device: cuda is asked for, but torch sees no GPU here; use device: cpu or auto")
    return torch.device("cpu") if wanted == "cpu" else device_here()


def observe_names(
    model: nn.Module, observe: Observe, samples: Batch, precision: Precision, device: torch.device
) -> tuple[str, ...]:
    """The names that `observe` returns, `loss` first, from a first look at two samples.

    Raises:
        JobError: it raises, or returns something else than one value per sample.
    """
    plan = default_plan(2, device.type, precision, "eval", 0, None, None)
    few = map_tensors(lambda tensor: tensor[:2], samples)
    evaluator = Evaluator(model, few, observe, plan, device)
    evaluator.load({}, ())
    try:
        names = evaluator.evaluate(np.zeros((1, 0))).mean
    except JobError:
        raise
    except Exception as cause:
        raise JobError(f"observe: raised {one_line(cause)} on the first {batch_length(few)} samples") from cause
    return ordered_names(names)


def ordered_names(names: Iterable[str]) -> tuple[str, ...]:
    """The observables as everything lists them: `loss`, then the others by name."""
    return ("loss", *sorted(name for name in names if name != "loss"))
