"""Whether what a model computes can be differentiated twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.autograd.function import once_differentiable

from landscape.core.errors import NotRetried, one_line


class NoSecondDerivative(NotRetried):
    """The model has an operation whose gradient torch cannot differentiate; differences of gradients can be taken."""


# Decorated functions share this code.
_ONCE_DIFFERENTIABLE = once_differentiable(lambda context: None).__code__
# Operations of torch whose second derivative is wrong, as `gradgradcheck` says of torch 2.13: that of weight
# normalisation is off in the direction of the weights, as if g·v/‖v‖ had another derivative there.
_WRONG = {"WeightNormInterfaceBackward0": "weight normalisation"}


def refuse_wrong_derivatives(loss: Tensor) -> None:
    """Refuse a graph with an operation whose second derivative torch takes in silence, and takes wrongly.

    These are some operations of torch, and functions of the user's whose gradient is marked as not differentiable:
    where only the inputs, and not the incoming gradient, have a graph, torch takes such a gradient for a constant.

    Raises:
        NoSecondDerivative: there is one.
    """
    seen: set[Any] = set()
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = type(node).__name__  # not node.name(), which a function of the user's may have as its own attribute
        if name in _WRONG:
            raise NoSecondDerivative(f"torch's second derivative of {_WRONG[name]} is wrong")
        nodes += [following for following, _ in node.next_functions]
        backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
        if getattr(backward, "__code__", None) is _ONCE_DIFFERENTIABLE:
            raise NoSecondDerivative(f"{name} is marked with once_differentiable")


@contextlib.contextmanager
def second_derivatives() -> Iterator[None]:
    """Say of an operation without a second derivative that it is one.

    Raises:
        NoSecondDerivative: torch says that it has none.
    """
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if "derivative" in text or "double backward" in text or "once_differentiable" in text:
            raise NoSecondDerivative(one_line(error)) from error
        raise
