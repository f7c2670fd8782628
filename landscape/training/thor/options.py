"""What the options of the optimiser may be."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Protocol

from torch import Tensor

from landscape.core.errors import JobError, nearest, shown
from landscape.core.validation import check_whole, is_number
from landscape.training.thor.rules import RULES


class Scaler(Protocol):
    """A `torch.amp.GradScaler`."""

    def get_scale(self) -> float: ...


def check_options(
    refresh: str,
    frequency: int,
    growth: float,
    longest: int | None,
    split_dim: int,
    average: float,
    first_order: float,
    clip: float | None,
    loss_scale: float | Scaler,
) -> None:
    if refresh not in RULES:
        raise JobError(f"refresh: unknown {shown(refresh)}; {nearest(refresh, RULES)}")
    for name, value in (("frequency", frequency), ("split_dim", split_dim), ("longest", longest)):
        if value is not None:
            check_whole(name, value, 1)
    for name, number in (
        ("growth", growth), ("average", average), ("first_order", first_order), ("clip", clip),
    ):  # fmt: skip
        if number is not None or name != "clip":
            _number(name, number)
    if not (isinstance(loss_scale, int | float) or hasattr(loss_scale, "get_scale")):
        raise JobError(f"loss_scale: must be a number or a GradScaler, not {shown(loss_scale)}")
    if growth < 1 or not math.isfinite(growth):
        raise JobError(f"growth: must be at least 1, and finite, not {growth:g}")
    if growth > 1 and longest is None:
        raise JobError("longest: must be given with growth, the steps of an epoch for example")
    if not 0 <= average < 1:
        raise JobError(f"average: must be from 0 to below 1, not {average:g}")
    if not (first_order > 0 and math.isfinite(first_order)):
        raise JobError(f"first_order: must be above 0, and finite, not {first_order:g}")
    if clip is not None and not clip > 0:
        raise JobError(f"clip: must be above 0, not {clip:g}")
    if isinstance(loss_scale, int | float) and not (is_number(loss_scale) and loss_scale > 0):
        raise JobError(f"loss_scale: must be above 0, and finite, not {shown(loss_scale)}")


def check_group(group: dict[str, Any]) -> None:
    lr, damping, momentum, decay = (
        _number(name, group[name]) for name in ("lr", "damping", "momentum", "weight_decay")
    )
    for name, value, fits, rule in (
        ("lr", lr, lr >= 0, "at least 0"),
        ("damping", damping, damping > 0, "above 0"),
        ("momentum", momentum, 0 <= momentum < 1, "from 0 to below 1"),
        ("weight_decay", decay, decay >= 0, "at least 0"),
    ):
        if not (fits and math.isfinite(value)):
            raise JobError(f"{name}: must be {rule}, and finite, not {value:g}")


def _number(name: str, value: Any) -> float:
    """A number, or a tensor of one element."""
    if isinstance(value, bool) or not (isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)):
        raise JobError(f"{name}: must be a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:  # a whole number above all floats
        raise JobError(f"{name}: must be finite, not {shown(value)}") from None
