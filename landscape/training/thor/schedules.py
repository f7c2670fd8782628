"""The learning rates and dampings that THOR's published trainings of ResNet-50 on ImageNet ran with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def thor_learning_rate(
    epoch: float, lr_init: float, decay: float, total: float, halved_from: float | None = 39
) -> float:
    """lr_init·(1 − epoch/total)^decay, halved from epoch `halved_from` on and once more an epoch later.

    >>> [round(thor_learning_rate(epoch, 0.05803, 4.0839, 53), 6) for epoch in (0, 20, 39, 40, 53)]
    [0.05803, 0.008382, 0.000126, 4.7e-05, 0.0]

    Args:
        epoch: epochs done, with fractions; beyond `total` the rate is 0.
    """
    rate = float(lr_init * max(1 - epoch / total, 0.0) ** decay)
    if halved_from is not None:
        rate *= 0.5 ** ((epoch >= halved_from) + (epoch >= halved_from + 1))
    return rate


def thor_damping(epoch: float, init: float, rate: float) -> float:
    """init·rate^(epoch/10).

    >>> [round(thor_damping(epoch, 0.03, 0.50036), 6) for epoch in (0, 10, 40)]
    [0.03, 0.015011, 0.00188]
    """
    return float(init * rate ** (epoch / 10))


@dataclass(frozen=True)
class Schedule:
    """Learning rate and damping over a training, by `thor_learning_rate` and `thor_damping`.

        optimizer = THOR(model, lr=schedule.lr_init, damping=schedule.damping_at(steps_per_epoch))
        scheduler = LambdaLR(optimizer, schedule.factor_at(steps_per_epoch))  # scheduler.step() after every step

    Attributes:
        lr_init, decay, total: of the learning rate.
        damping_init, rate: of the damping.
        epochs: after which the training ends.
        halved_from: the epoch from which on the learning rate is halved; None: never.
    """

    lr_init: float
    decay: float
    total: float
    damping_init: float
    rate: float
    epochs: int
    halved_from: float | None = 39

    def learning_rate(self, epoch: float) -> float:
        """The learning rate after some epochs."""
        return thor_learning_rate(epoch, self.lr_init, self.decay, self.total, self.halved_from)

    def damping(self, epoch: float) -> float:
        """The damping after some epochs."""
        return thor_damping(epoch, self.damping_init, self.rate)

    def factor_at(self, steps_per_epoch: int) -> Callable[[int], float]:
        """What `torch.optim.lr_scheduler.LambdaLR` takes, stepped after every step: the rate over `lr_init`."""
        return lambda step: self.learning_rate(step / steps_per_epoch) / self.lr_init

    def damping_at(self, steps_per_epoch: int) -> Callable[[int], float]:
        """What THOR takes as `damping`: the damping after some steps."""
        return lambda step: self.damping(step / steps_per_epoch)


# ResNet-50 on ImageNet, batches of 32 on each of 8 cards: 5,004 steps an epoch, frequency 834, momentum 0.9, weight
# decay 5e-4, label smoothing 0.1.
SCHEDULES = {
    "ascend-8": Schedule(0.05803, 4.0839, 53, 0.03, 0.50036, 45),
    "gpu-8": Schedule(0.05672, 4.9687, 50, 0.02345, 0.5467, 40),
}
