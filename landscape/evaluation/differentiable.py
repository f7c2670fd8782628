"""What models call while derivatives are taken, in place of what has none: plain attention, other checkpoints."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointFunction, checkpoint

_LOCK = threading.Lock()
_within = [0]  # how many blocks of all threads are entered


@contextlib.contextmanager
def differentiable_operations() -> Iterator[None]:
    """Within the block attention does not fuse, and every checkpoint is one of `use_reentrant=False`.

    Kernels of attention that fuse have no second derivative; the plain one has. A reentrant checkpoint computes
    gradients by a backward pass within the backward pass, which leaves them with the parameters. `torch.autograd.grad`
    asks for them elsewhere: it raises, or leaves out what no other way leads to, so that the gradient of a layer seems
    to be zero. The other kind of checkpoint has the same values, and takes as little memory.
    """
    with _LOCK:
        _within[0] += 1
        # A class attribute before that of `Function`: the models have the function that calls it, not this one.
        CheckpointFunction.apply = staticmethod(_not_reentrant)  # type: ignore[method-assign]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        with _LOCK:
            _within[0] -= 1
            if not _within[0]:
                del CheckpointFunction.apply


def _not_reentrant(function: Callable[..., Any], preserve: bool, *arguments: Any) -> Any:
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=preserve)
