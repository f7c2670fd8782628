"""What models call while derivatives are taken, in place of what has none: plain attention, other checkpoints."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointFunction, checkpoint

_LOCK = threading.Lock()
_in_place = list[Callable[..., Any]]()  # what stands for reentrant checkpoints, of all blocks of all threads


@contextlib.contextmanager
def differentiable_operations() -> Iterator[None]:
    """Within the block attention does not fuse, and every checkpoint is one of `use_reentrant=False`.

    Kernels of attention that fuse have no second derivative; the plain one has. A reentrant checkpoint computes
    gradients by a backward pass within the backward pass, which leaves them with the parameters. `torch.autograd.grad`
    asks for them elsewhere: it raises, or leaves out what no other way leads to, so that the gradient of a layer seems
    to be zero. The other kind of checkpoint has the same values, and takes as little memory.
    """
    with _reentrant_checkpoints_as(_not_reentrant), sdpa_kernel(SDPBackend.MATH):
        yield


@contextlib.contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """Within the block they are what they compute, as a graph has no backward pass in which to compute it again.

    An exported graph would have what torch does within such a checkpoint, for which gradients are turned off.
    """
    with _reentrant_checkpoints_as(lambda function, preserve, *arguments: function(*arguments)):
        yield


@contextlib.contextmanager
def _reentrant_checkpoints_as(call: Callable[..., Any]) -> Iterator[None]:
    with _LOCK:
        _in_place.append(call)
        # A class attribute before that of `Function`: the models have the function that calls it, not this one.
        CheckpointFunction.apply = staticmethod(call)  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _LOCK:
            _in_place.remove(call)
            if _in_place:
                CheckpointFunction.apply = staticmethod(_in_place[-1])  # type: ignore[method-assign]
            else:
                del CheckpointFunction.apply


def _not_reentrant(function: Callable[..., Any], preserve: bool, *arguments: Any) -> Any:
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=preserve)
