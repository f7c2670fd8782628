"""Activations below the first moved layer, computed once per batch and reused at every point.

A module that holds no moved tensor and gets the same input at every point gives the same output at every point. Which
ones these are is learnt by looking: no trace, so any control flow will do. The bits are those of computing it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from landscape.core.devices import free_bytes
from landscape.core.random_state import noticed_draws
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.evaluation.model_state import ModuleState

SHARE_OF_MEMORY = 0.25  # of what is free, for activations that are kept
TRIAL = 0  # the batch on which it is learnt what stays the same


@dataclass(frozen=True)
class _Record:
    """One call of a module: its inputs and output, and the versions that tell whether they were written to since."""

    inputs: Any
    output: Any
    versions: tuple[int, ...]

    @property
    def intact(self) -> bool:
        return self.versions == _versions((self.inputs, self.output))


class Reuse(Rewrite):
    """Wraps the topmost modules of `model` that hold none of the `moved` tensors, and keeps their outputs.

    Args:
        limit: bytes of activations kept at most; default: a share of the memory that is free on the device.
    """

    remembers = True
    trusts_counters = True

    def __init__(self, model: nn.Module, moved: Iterable[Tensor], device: torch.device, limit: int | None = None):
        self._left = int(SHARE_OF_MEMORY * free_bytes(device)) if limit is None else limit
        self._batch: int | None = None
        self._calls: Counter[nn.Module] = Counter()
        self._records: dict[tuple[nn.Module, int, int], _Record] = {}
        self._originals: dict[nn.Module, Callable[..., Any]] = {}
        self._seen: dict[tuple[nn.Module, int, int], tuple[Any, ...]] = {}
        self._stable: set[nn.Module] = set()
        self._with_own_forward: set[nn.Module] = set()
        if any(isinstance(each, torch.jit.ScriptModule) or hasattr(each, "_orig_mod") for each in model.modules()):
            return  # scripted and compiled modules: their calls cannot be taken over
        for module in _topmost_unmoved(model, {id(each) for each in moved}):
            self._wrap(module)

    @classmethod
    def applies(cls, target: Target) -> bool:
        """Whether something moves, statistics and batches are fixed, and writes to the model can be seen."""
        # Kept inputs would hold streamed batches in the memory of the device.
        fixed = target.plan.statistics.fixed and target.resident
        return fixed and bool(target.weights.moved) and not target.hides_writes

    @classmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Wrap the topmost modules that hold nothing that moves."""
        return cls(target.model, target.weights.moved_tensors, target.device)

    def begin(self, batch: int | None) -> None:
        """The calls that follow are for this batch; None: for weights that are no point, computed as they are."""
        self._batch = batch
        self._calls.clear()

    @property
    def modules(self) -> int:
        """How many modules are reused."""
        return len(self._stable)

    def close(self) -> None:
        """Leave the model as it was."""
        for module in list(self._originals):
            self._forget(module)

    def _wrap(self, module: nn.Module) -> None:
        if "forward" in vars(module):
            self._with_own_forward.add(module)
        forward = self._originals[module] = module.forward

        def recalled(*args: Any, **kwargs: Any) -> Any:
            return self._call(module, forward, args, kwargs)

        module.forward = recalled

    def _call(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # With gradients on, an output of before would lead to the input of before.
        if self._batch is None or torch.is_grad_enabled() or module not in self._originals:
            return forward(*args, **kwargs)
        key = (module, self._batch, self._calls[module])
        self._calls[module] += 1
        known, given = self._records.get(key), (args, kwargs)
        if known is not None:
            if known.intact and same(known.inputs, given) and self._is_stable(module, forward, known):
                return known.output
            self._forget(module)
            return forward(*args, **kwargs)
        if module not in self._stable and not self._is_promising(key, given):
            return forward(*args, **kwargs)
        return self._remember(key, forward, given)

    def _is_promising(self, key: tuple[nn.Module, int, int], given: Any) -> bool:
        """Whether the input has the sums of that of the point before; outputs are kept from then on, not sooner."""
        if key[1] != TRIAL:
            return False
        now = _sums(given)
        before = self._seen.setdefault(key, now)
        if before is now:
            return False
        if before != now:
            self._forget(key[0])
        return before == now

    def _is_stable(self, module: nn.Module, forward: Callable[..., Any], known: _Record) -> bool:
        """Whether computing it at another point gives the same output; it may use weights that it does not hold."""
        if module not in self._stable:
            args, kwargs = known.inputs
            if not same(forward(*args, **kwargs), known.output):
                return False
            self._stable.add(module)
        return True

    def _remember(self, key: tuple[nn.Module, int, int], forward: Callable[..., Any], given: Any) -> Any:
        module, held = key[0], (*key[0].parameters(), *key[0].buffers())
        before, state = _versions((given, held)), ModuleState(module, ())
        with noticed_draws() as draws:
            output = forward(*given[0], **given[1])
        pure = before == _versions((given, held)) and not draws.happened and not state.changed()
        size = sum(each.nbytes for each in _tensors(output))
        if not pure or size > self._left or not _comparable(output):
            self._forget(module)
            return output
        self._left -= size
        self._records[key] = _Record(given, output, _versions((given, output)))
        return output

    def _forget(self, module: nn.Module) -> None:
        """Stop reusing a module: its input moves, it writes in place, it draws, or memory does not suffice."""
        original = self._originals.pop(module)
        if module in self._with_own_forward:  # the user has set it, as to share another module's
            module.forward = original
        else:
            del module.forward  # superposition looks for this attribute, and leaves layers alone that have it
        self._stable.discard(module)
        for key in [key for key in self._records if key[0] is module]:
            self._left += sum(each.nbytes for each in _tensors(self._records.pop(key).output))


def _topmost_unmoved(model: nn.Module, moved: set[int]) -> Iterator[nn.Module]:
    for child in model.children():
        if any(id(each) in moved for each in (*child.parameters(), *child.buffers())):
            yield from _topmost_unmoved(child, moved)
        else:
            yield child


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for member in value.values() for tensor in _tensors(member)]
    return [tensor for member in value for tensor in _tensors(member)] if isinstance(value, (tuple, list)) else []


def _versions(value: Any) -> tuple[int, ...]:
    return tuple(each._version for each in _tensors(value))


def _sums(value: Any) -> tuple[Any, ...]:
    """Shape, type and sum of every tensor; NaN equals nothing, itself included."""
    return tuple((each.shape, each.dtype, each.sum(dtype=_exact(each)).item()) for each in _tensors(value))


def _exact(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _comparable(value: Any) -> bool:
    """Whether the value is made of tensors and plain containers alone."""
    if isinstance(value, (tuple, list)):
        return all(map(_comparable, value))
    if isinstance(value, dict):
        return all(map(_comparable, value.values()))
    return value is None or isinstance(value, (Tensor, int, float, str, bool))


def same(one: Any, other: Any) -> bool:
    """Whether two values hold the same bits in the same layout; tensors, plain containers and numbers do."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return isinstance(one, (int, float, str, bool)) and one == other
