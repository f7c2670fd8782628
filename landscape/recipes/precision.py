"""Training in half precision: the forward pass under autocast, the loss scaled up so that small gradients are kept."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from landscape.training.thor.optimizer import THOR

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger("landscape")


def outputs_of(network: nn.Module, inputs: Tensor, precision: str) -> Tensor:
    """The network's outputs, with products in this precision; weights, gradients and losses stay as they are."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return network(inputs)  # type: ignore[no-any-return]
    with torch.autocast(inputs.device.type, dtype):
        return network(inputs).float()  # type: ignore[no-any-return]


class ScaledSteps:
    """Backward passes of a loss times `scale`, and steps by its gradients over `scale`.

    Float16 holds no gradient below 6·10⁻⁸; times 128 it does. A step of which a gradient is not finite is left out, as
    THOR does by itself. Ranks agree, since gradients are averaged before.

    Args:
        scale: the same throughout; 1 leaves loss, gradients and steps alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        self._optimizer, self._scale, self._skipped = optimizer, scale, 0

    def step(self, loss: Tensor) -> None:
        """Take the step of this loss."""
        self._optimizer.zero_grad()
        (loss if self._scale == 1 else loss * self._scale).backward()  # type: ignore[no-untyped-call]
        if self._scale == 1 or isinstance(self._optimizer, THOR) or self._unscaled():
            self._optimizer.step()

    def _unscaled(self) -> bool:
        """Divide the gradients by the scale; whether they are finite."""
        groups = self._optimizer.param_groups
        gradients = [each.grad for group in groups for each in group["params"] if each.grad is not None]
        finite = bool(nn.utils.get_total_norm(gradients).isfinite())
        if finite:
            for gradient in gradients:
                gradient.div_(self._scale)
        else:
            self._skipped += 1
            if self._skipped == 1 or self._skipped % 100 == 0:
                log.warning(
                    "%d steps left out, as a gradient was not finite; a smaller loss_scale may help", self._skipped
                )
        return finite
