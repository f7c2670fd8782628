"""Products with the Gauss-Newton matrix, where a model's outputs and their criterion are apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from landscape.evaluation.second_derivatives import second_derivatives
from landscape.problem.batches import Batch
from landscape.problem.supervised import Supervised


def gauss_newton_products(
    observe: Supervised,
    model: nn.Module,
    batch: Batch,
    factor: float,
    parameters: Sequence[Tensor],
    vectors: Sequence[Sequence[Tensor]],
) -> list[list[Tensor]]:
    """JᵀH_ℓJ·v of factor·Σᵢ ℓᵢ(z), z the outputs, J = ∂z/∂θ and H_ℓ = ∂²/∂z² of the criterion (Schraudolph 2002).

    J·v is the derivative of Jᵀu by u, so that three gradients suffice, and no forward mode.

    Args:
        parameters: θ, tensors that require gradients.
        vectors: v, a tensor per parameter each.

    Raises:
        NoSecondDerivative: an operation has no second derivative.
    """
    outputs = observe.outputs(model, batch)
    at = outputs.detach().requires_grad_()
    loss = factor * observe.losses(at, batch).double().sum()
    (slope,) = torch.autograd.grad(loss, at, create_graph=True)
    weights = torch.zeros_like(outputs, requires_grad=True)
    with second_derivatives():
        pulled = torch.autograd.grad(
            outputs, parameters, weights, create_graph=True, allow_unused=True, materialize_grads=True
        )
    rows = [k for k, each in enumerate(pulled) if each.requires_grad]
    found = []
    for vector in vectors:
        with second_derivatives():
            (pushed,) = torch.autograd.grad(
                [pulled[k] for k in rows], weights, [vector[k] for k in rows], retain_graph=True
            )
        curved = torch.zeros_like(at)
        if slope.requires_grad:  # else the criterion is linear
            (curved,) = torch.autograd.grad(slope, at, pushed, retain_graph=True)
        product = torch.autograd.grad(
            outputs, parameters, curved, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found.append([each.detach() for each in product])
    return found
