"""By what the sums of losses are multiplied, so that they make the mean loss, or the sum of the means of its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landscape.problem.supervised import Combination, Observe


def loss_factors(totals: Sequence[Mapping[str, float]], observe: Observe) -> dict[str, float]:
    """f = λ / Σ wᵢ of the loss or of each of its terms, from the totals of all blocks in their order.

    >>> loss_factors([{"loss": 3.0}, {"loss": 1.0}], lambda model, batch: {})
    {'loss': 0.25}
    """
    sums: dict[str, float] = {}
    for block in totals:
        for name, total in block.items():
            sums[name] = sums.get(name, 0.0) + total
    weights = observe.factors if isinstance(observe, Combination) else dict.fromkeys(sums, 1.0)
    return {name: weights[name] / total for name, total in sums.items()}
