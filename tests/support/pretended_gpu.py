"""The forward pass of the evaluator on a GPU that is not there: shapes, types and devices, without numbers.

`python pretended_gpu.py PROBLEM:PRECISION:BATCH_NORM:ENGINE …` computes the points of a plane with fake tensors that
`torch.empty(device="cuda")` made, and prints a line for each argument: OK, or the error. It runs in an interpreter of
its own: it exchanges functions of torch, and some operations abort the process.

The model, its samples, the engine with its rewrites, the walk over points and batches and the reduction are the real
ones. What needs numbers is not: weights stay unset, and the comparisons by which rewrites learn what they may keep find
that everything is the same. These comparisons are made at the first points. From then on nothing may be copied to the
host, as the loop over points would wait for the GPU there.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from landscape import Problem
from landscape.bench.problems import synthetic_problem
from landscape.core.plan import Engine, Plan
from landscape.evaluation.engines.base import RewriteTarget
from landscape.evaluation.evaluation_order import walk_of
from landscape.evaluation.feed import batching_of
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.reduction import Reduction, terms_of
from landscape.evaluation.running_model import LoadedModel, RunningModel, give_memory, layouts_of
from landscape.evaluation.weights import set_layouts
from landscape.problem.batches import as_samples, map_tensors, moved
from landscape.recipes.gpt import GPT

GPU = torch.device("cuda:0")
SAMPLES, BATCH = 6, 3
POINTS = [[first / 4, last / 4] for first in range(3) for last in range(4)]


class HostCopyError(RuntimeError):
    """The loop over points reads a number on the host."""


class NoHostCopies(TorchDispatchMode):
    """Raises HostCopyError where tensors of a GPU make tensors of the host, or numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = (tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor))
        to_host = (
            value.device.type == "cpu" if isinstance(value, Tensor) else isinstance(value, (bool, int, float))
            for value in tree_leaves(result)
        )  # fmt: skip
        if any(tensor.is_cuda for tensor in given) and any(to_host):
            raise HostCopyError(f"{func} copies to the host")
        return result


# ----------------------------------------------------------------------------------------------------
# Functions of torch that need a GPU, or numbers.


class Numbers:
    """What is read on the host of tensors without numbers: always the same, or an error.

    Attributes:
        value: every number; NaN equals nothing, so that no module's input looks the same at two points.
        same: shapes, apart from the first dimension, of tensors that are equal: the samples.
    """

    forbidden, value = False, np.nan
    same: frozenset[torch.Size] = frozenset()

    @classmethod
    @contextlib.contextmanager
    def forbid(cls) -> Iterator[None]:
        """Within the block, reading raises HostCopyError."""
        cls.forbidden = True
        try:
            with NoHostCopies():
                yield
        finally:
            cls.forbidden = False

    @classmethod
    def read(cls, tensor: Tensor) -> Any:
        """One number."""
        if cls.forbidden:
            raise HostCopyError("a number is read on the host")
        return cls.value

    @classmethod
    def checksums(cls, tensor: Tensor) -> list[Any]:
        """Zeros in the tensor's shape: what is written to shows by torch's counters alone."""
        cls.read(tensor)
        return np.zeros(tuple(tensor.shape)).tolist()  # type: ignore[no-any-return]

    @classmethod
    def are_equal(cls, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors are the same samples."""
        cls.read(one)
        return one.shape == other.shape and one.shape[1:] in cls.same


class StillState:
    """The state of a random generator, which never changes."""

    def numpy(self) -> Any:
        """Nothing."""
        return np.zeros(0)


def indexed(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` by operations, as indexing itself asks the GPU which device is current."""
    entries = index if isinstance(index, tuple) else (index,)
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    place, chosen, tensors = 0, tensor, list[Tensor | None]()
    for entry in entries:
        if entry is Ellipsis:
            place += tensor.dim() - named
        elif isinstance(entry, int):
            chosen = chosen.select(place, entry)
        elif entry is None:
            chosen, place = chosen.unsqueeze(place), place + 1
        elif isinstance(entry, slice):
            chosen = torch.ops.aten.slice(chosen, place, entry.start, entry.stop, entry.step or 1)
            place += 1
        else:
            tensors += [*[None] * (place - len(tensors)), entry]
            place += 1
    return torch.ops.aten.index(chosen, tensors) if tensors else chosen


def pretend() -> None:
    """Exchange what asks for a GPU or for numbers. The compiler's last step, code for a GPU, is left out."""
    by_index, copied, compiled, contiguous = Tensor.__getitem__, Tensor.copy_, torch.compile, Tensor.contiguous

    def laid_out(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        if not tensor.is_cuda or tensor.is_contiguous(memory_format=memory_format):
            return contiguous(tensor, memory_format=memory_format)
        return torch.ops.aten.clone(tensor, memory_format=memory_format)  # type: ignore[no-any-return]

    def copy_nothing(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if tensor.is_cuda else copied(tensor, *args, **kwargs)

    def compile_without_code(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **{**kwargs, "backend": "aot_eager"})

    exchanged: list[tuple[Any, str, Any]] = [
        (Tensor, "data_ptr", lambda tensor: StorageWeakRef(tensor.untyped_storage()).cdata + tensor.storage_offset()),
        (Tensor, "__getitem__", lambda self, index: (indexed if self.is_cuda else by_index)(self, index)),
        (Tensor, "copy_", copy_nothing),
        (Tensor, "contiguous", laid_out),
        (Tensor, "item", lambda self: Numbers.read(self)),
        (Tensor, "tolist", lambda self: Numbers.checksums(self)),
        (Tensor, "__float__", lambda self: Numbers.read(self)),
        (Tensor, "__bool__", lambda self: bool(Numbers.read(self))),
        (torch, "equal", Numbers.are_equal),
        (torch, "compile", compile_without_code),
        (torch, "get_rng_state", lambda *_: StillState()),
        (torch, "set_rng_state", lambda *_: None),
        (torch.cuda, "mem_get_info", lambda *_: (80 << 30, 80 << 30)),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
    ]
    for owner, name, function in exchanged:
        setattr(owner, name, function)


# ----------------------------------------------------------------------------------------------------


class UnsetWeights:
    """Stands for `MovingWeights`: setting tensors without numbers changes nothing."""

    changed = False

    def __init__(self, model: nn.Module, moved: Sequence[str]) -> None:
        # A loaded model's own parameters require no gradients any more.
        self._targets = {name: dict(model.named_parameters())[name] for name in moved}
        self.axes = 2
        self.moved, self.moved_tensors = list(self._targets), list(self._targets.values())

    def set_point(self, point: Sequence[float]) -> None:
        """Set nothing."""

    def restore(self) -> None:
        """Restore nothing."""

    def parts(self, tensor: Tensor | None) -> list[Tensor | None]:
        """The parts of a tensor in θ₀ and in both directions."""
        return [None if tensor is None else torch.empty_like(tensor) for _ in range(1 + self.axes)]

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The tensors at several points."""
        return {name: tensor.new_empty((len(points), *tensor.shape)) for name, tensor in self._targets.items()}


def language_model(dtype: torch.dtype = torch.float32) -> Problem:
    return Problem.causal_lm(GPT(width=32, depth=2).to(dtype), torch.randint(0, 256, (SAMPLES, 12)))


def partly_frozen() -> Problem:
    """LeNet-5 of which the last layer moves, so that the outputs of the others are kept."""
    problem = synthetic_problem("lenet", SAMPLES)
    problem.model.requires_grad_(False)
    *_, last = problem.model.children()
    last.requires_grad_(True)
    return problem


def reading(read: Callable[[Tensor], Any]) -> Problem:
    """A problem whose `observe` reads its losses on the host."""
    problem = synthetic_problem("mlp", SAMPLES)
    within = problem.observe

    def observe(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        values = within(model, batch)
        read(values["loss"])
        return values

    return Problem(problem.model, problem.data, observe)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "language": language_model,
    "language-bfloat16": lambda: language_model(torch.bfloat16),
    "frozen": partly_frozen,
    "reads-item": lambda: reading(lambda loss: loss.mean().item()),
    "reads-copy": lambda: reading(lambda loss: loss.to("cpu", non_blocking=True)),
    "reads-truth": lambda: reading(lambda loss: bool((loss > 0).all())),
}


def compute_points(problem: Problem, plan: Plan) -> None:
    """Compute the points twice: the second time, nothing may be copied to the host.

    Raises:
        HostCopyError: something is.
        AssertionError: an observable is not where it belongs, or has another type or shape.
    """
    chosen = as_samples(problem.data).few(SAMPLES)
    moved_names = [name for name, parameter in problem.model.named_parameters() if parameter.requires_grad]
    Numbers.value = np.nan if len(moved_names) == len([*problem.model.parameters()]) else 0.0
    edges = batching_of(SAMPLES, plan, BATCH)
    loaded = LoadedModel(copy.deepcopy(problem.model).to("meta"), plan, torch.device("meta"))
    set_layouts(loaded.model, layouts_of(plan.engine))
    on_host = [moved(chosen.batch(*edge), torch.device("cpu"), loaded.dtype) for edge in edges.edges]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        give_memory(loaded.model, GPU)
        batches = [
            map_tensors(lambda rows: torch.empty(rows.shape, dtype=rows.dtype, device=GPU), batch) for batch in on_host
        ]
        Numbers.same = frozenset(tensor.shape[1:] for batch in batches for tensor in tree_leaves(batch))
        state = ModuleState(loaded.model, ())
        weights: Any = UnsetWeights(loaded.model, moved_names)
        running = RunningModel(
            loaded, RewriteTarget(loaded.model, state, weights, problem.observe, plan, GPU, lambda: batches[0])
        )
        walk = walk_of(plan.engine)(running, lambda: iter(enumerate(batches)), SAMPLES, edges.begins, lambda: None)

        def compute() -> None:
            reduction = Reduction(edges, None, terms_of(problem.observe))
            for pieces in walk.points(POINTS):
                reduction.add(pieces)
                for piece in pieces:
                    for values in piece.values():
                        assert values.device == GPU
                        assert values.dtype is torch.float64
                        assert values.shape == (BATCH,)

        compute()
        with Numbers.forbid():
            compute()
        running.close()


def main(*cases: str) -> None:
    """Compute the points of each case, and print how it ended."""
    named = dict(PROBLEMS)
    for case in cases:
        name = case.partition(":")[0]
        named.setdefault(name, partial(synthetic_problem, name, SAMPLES))
    problems = {case: named[case.partition(":")[0]]() for case in cases}
    pretend()
    for case, problem in problems.items():
        _, precision, batch_norm, engine = case.split(":", 3)
        plan: dict[str, Any] = {"precision": precision, "batch_norm": batch_norm, "engine": Engine.parse(engine)}
        try:
            compute_points(problem, Plan(BATCH, 1, "cuda", bfloat16_weights=precision == "bfloat16", **plan))
            print(f"{case} OK", flush=True)
        except Exception as error:
            print(f"{case} {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
