"""What torch differentiates twice: operations exchanged while derivatives are taken, and those that it gets wrong."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from landscape.core.errors import NotRetried, one_line

# ----------------------------------------------------------------------------------------------------
# Operations without derivatives are replaced while derivatives are taken: plain attention, other checkpoints.

_LOCK = threading.Lock()
_in_place = list[Callable[..., Any]]()  # replacements of reentrant checkpoints, of all open blocks of all threads


@contextlib.contextmanager
def differentiable_operations() -> Iterator[None]:
    """Within the block attention is not fused, every checkpoint has `use_reentrant=False`, and DTensors lead back.

    Fused attention kernels have no second derivative; plain attention has one. A reentrant checkpoint runs a backward
    pass of its own and leaves its gradients in the parameters' `.grad`. `torch.autograd.grad` does not look there: it
    raises, or the gradient of a layer seems to be zero. The other kind of checkpoint gives the same values, and takes
    as little memory. For tensors that are cut over processes see `_back_to_local`.
    """
    with _reentrant_checkpoints_as(_not_reentrant), sdpa_kernel(SDPBackend.MATH), _dtensors_that_lead_back():
        yield


@contextlib.contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """Within the block a reentrant checkpoint only calls its function, for models that are exported as a graph.

    Torch turns gradients off within such a checkpoint, and the exported graph would hold that.
    """
    with _reentrant_checkpoints_as(lambda function, preserve, *arguments: function(*arguments)):
        yield


@contextlib.contextmanager
def _reentrant_checkpoints_as(call: Callable[..., Any]) -> Iterator[None]:
    with _LOCK:
        _in_place.append(call)
        # Shadows `Function.apply`: models may have imported `checkpoint` itself, which looks `apply` up at every call.
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


# Torch's own gradient of the function that makes DTensors, then those in place as further blocks were opened.
_replaced = list[Callable[..., Any]]()


@contextlib.contextmanager
def _dtensors_that_lead_back() -> Iterator[None]:
    module = sys.modules.get("torch.distributed.tensor._api")
    if module is None:  # no process of this job has DTensors
        yield
        return
    function = module._FromTorchTensor
    with _LOCK:
        _replaced.append(function.backward)
        function.backward = staticmethod(_back_to_local)
    try:
        yield
    finally:
        with _LOCK:
            function.backward = staticmethod(_replaced.pop())


def _back_to_local(context: Any, gradient: Any) -> tuple[Any, ...]:
    """The gradient of a tensor of which a DTensor was made, with a graph.

    torch (2.13) sums the parts of this gradient outside of any graph where they are of several processes, as in every
    residual block under tensor parallel: the second derivative then lacks what flows there, without an error. This sums
    them by the operation that torch itself differentiates.
    """
    nothing = (None,) * 6
    if gradient is None:
        return (None, *nothing)
    mesh, placements = context.forward_input_device_mesh, context.grad_placements
    if placements is None:
        replicated = torch.distributed.tensor.Replicate()
        forward = context.forward_input_placements
        placements = tuple(replicated if placement.is_partial() else placement for placement in forward)
    if any(placement.is_partial() for placement in placements):
        if torch.is_grad_enabled():
            raise NoSecondDerivative("a part of a gradient is passed on as a summand (grad_placements)")
        found: tuple[Any, ...] = _replaced[0](context, gradient)
        return found
    if gradient.placements != placements:
        gradient = gradient.redistribute(mesh, placements)
    return (gradient.to_local(grad_placements=placements), *nothing)


# ----------------------------------------------------------------------------------------------------
# Whether a model's loss can be differentiated twice.


class NoSecondDerivative(NotRetried):
    """The model has an operation whose gradient torch cannot differentiate; differences of gradients can be taken."""


# Decorated functions share this code.
_ONCE_DIFFERENTIABLE = once_differentiable(lambda context: None).__code__
# Operations of torch whose second derivative is wrong, by `gradgradcheck` of torch 2.13: that of weight normalisation
# is off in the direction of the weights, as if g·v/‖v‖ had another derivative there.
_WRONG = {"WeightNormInterfaceBackward0": "weight normalisation"}


def refuse_wrong_derivatives(loss: Tensor, *, over_processes: bool = False) -> None:
    """Refuse a graph with an operation whose second derivative torch computes wrongly, without an error.

    These are some of torch's own operations, and user functions whose gradient is marked as not differentiable: where
    only the inputs, and not the incoming gradient, have a graph, torch treats such a gradient as a constant.

    Args:
        over_processes: whether the model is cut over processes. Then any function but those of DTensors is refused: one
            that exchanges gradients between processes, as those of transformers do, has no graph there.

    Raises:
        NoSecondDerivative: the graph holds such an operation.
    """
    seen: set[Any] = set()
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = type(node).__name__  # not node.name(): a user's function may have an attribute of that name
        if name in _WRONG:
            raise NoSecondDerivative(f"torch's second derivative of {_WRONG[name]} is wrong")
        nodes += [following for following, _ in node.next_functions]
        function = getattr(node, "_forward_cls", None)
        if over_processes and function is not None and not function.__module__.startswith("torch.distributed.tensor."):
            raise NoSecondDerivative(f"{name} may exchange gradients between processes without a graph")
        backward = getattr(function, "backward", None)
        if getattr(backward, "__code__", None) is _ONCE_DIFFERENTIABLE:
            raise NoSecondDerivative(f"{name} is marked with once_differentiable")


@contextlib.contextmanager
def second_derivatives() -> Iterator[None]:
    """Within the block torch's error of an operation without a second derivative becomes a `NoSecondDerivative`."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if "derivative" in text or "double backward" in text or "once_differentiable" in text:
            raise NoSecondDerivative(one_line(error)) from error
        raise
