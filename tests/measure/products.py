"""How much longer a Hessian product takes than a gradient: ResNet-20 on CIFAR-10. Run it on a quiet machine.

    LANDSCAPE_CIFAR10=FILE LANDSCAPE_WEIGHTS=FILE python tests/measure/products.py [ROUNDS]

Prints the seconds that one core computes the value, the gradient and the product of two blocks of samples, each the
median of rounds that take turns, and their ratios; curvlinops' product beside them where it is installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from landscape.core.plan import Plan
from landscape.evaluation.derivatives import Differentiation
from landscape.evaluation.layers import loss_factors
from landscape.model.parameters import state_of
from landscape.problem.selection import select_samples
from landscape.recipes.cifar10 import problem

SAMPLES, BATCH = 256, 128


def seconds_of(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def curvlinops_product(model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> Callable[[], object] | None:
    try:
        from curvlinops import HessianLinearOperator
    except ImportError:
        return None
    parameters = [each for each in model.parameters() if each.requires_grad]
    batches = [tuple(part[k : k + BATCH] for part in data) for k in range(0, SAMPLES, BATCH)]
    operator = HessianLinearOperator(
        model.eval(), torch.nn.CrossEntropyLoss(), parameters, batches, check_deterministic=False
    )
    vector = torch.randn(operator.shape[1])
    return lambda: operator @ vector


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    found = problem()
    samples = select_samples(found.data, SAMPLES, 0).samples
    inputs, targets = samples.batch(0, SAMPLES)
    plan = Plan(BATCH, 1, "cpu")
    derivatives = Differentiation(found.model, samples, found.observe, plan, torch.device("cpu"), state_of(found.model))
    blocks = range(derivatives.blocks)
    factors = loss_factors([derivatives.totals(block) for block in blocks], found.observe)
    vector = torch.randn(derivatives.size, dtype=torch.float64)
    vectors = [vector / vector.norm()]
    acts: dict[str, Callable[[], object]] = {
        "value": lambda: [derivatives.totals(block) for block in blocks],
        "gradient": lambda: [derivatives.gradient(block, factors) for block in blocks],
        "product": lambda: [derivatives.products(block, factors, vectors) for block in blocks],
    }
    peer = curvlinops_product(found.model, (inputs, targets))
    if peer is not None:
        acts["curvlinops"] = peer
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for k in range(rounds + 1):
        for name, act in acts.items():
            seconds = seconds_of(act)
            if k:  # the first round fills caches
                taken[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for name, median in medians.items():
        print(f"{name:12s} {median:8.3f} s  {median / medians['gradient']:6.2f} gradients")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
