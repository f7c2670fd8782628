"""What masks do to values: which are infinite by a mask, and not by a fault, and which are next to -Inf by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.model.layer_statistics import Statistics, statistics_of

SIGN_CHANGING = ("neg", "mul", "div", "sub", "rsub", "abs")  # which make Inf of a mask's -Inf
MASKING = ("add", "mul", "sub")  # by which a mask of finite numbers is made, and added to scores
# A mask's number, such as -1e9 or the lowest of a type, is below the one, and what it leaves of scores so near to it.
MASKED, NEAR = -1e4, 1e-2


def is_watched(value: Any) -> bool:
    """Whether it is a tensor whose values can be looked at."""
    if not isinstance(value, Tensor) or value.is_meta or value._is_zerotensor():
        return False  # reading a derivative that is zero, which has no memory, would end the process
    return value.is_floating_point() or value.is_complex()


def values_given(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """What an operation is about to be given: copies of the tensors that it writes into, such as that of `exp_`."""
    values = [*arguments, *named.values()]
    if not function._schema.is_mutable:
        return values
    all_of_them = function._schema.arguments
    written = {each.name for each in all_of_them if each.alias_info is not None and each.alias_info.is_write}
    names = [*(each.name for each in all_of_them[: len(arguments)]), *named]
    return [
        value.clone() if name in written and is_watched(value) else value
        for name, value in zip(names, values, strict=True)
    ]


def origin_of_infinite(name: str, tensor: Tensor, arguments: Sequence[Any]) -> tuple[bool, bool]:
    """Whether an operation made values that are not finite of ones that are; whether infinite ones only stayed so."""
    if tensor.layout is not torch.strided or bool(torch.isfinite(tensor).all()):
        return False, False
    given = [each for argument in arguments for each in _flat(argument)]
    if bool(torch.isnan(tensor).any()):
        return not any(_any(torch.isnan, each) for each in given), False
    ways = (torch.isinf,) if name in SIGN_CHANGING or tensor.is_complex() else (torch.isposinf, torch.isneginf)
    born = any(_any(way, tensor) and not any(_any(way, each) for each in given) for way in ways)
    return born, not born


def _any(way: Callable[[Tensor], Tensor], value: Tensor | float) -> bool:
    return bool(way(torch.as_tensor(value)).any())


def _flat(argument: Any) -> list[Any]:
    """The numbers and the tensors of an argument that may be infinite."""
    members = argument if isinstance(argument, (list, tuple)) else [argument]
    return [each for each in members if isinstance(each, float) or (is_watched(each) and each.layout is torch.strided)]


def beside_mask(operation: str, tensor: Tensor, known: Statistics) -> Statistics:
    """The statistics of an operation's values that no mask has set to a number far below the others.

    >>> scores = torch.tensor([0.5, -1.5, -1e9, -1e9])
    >>> beside_mask("add", scores, statistics_of(scores)).magnitude
    1.0
    """
    if operation not in MASKING or not known.low <= MASKED or tensor.layout is not torch.strided or tensor.is_complex():
        return known
    hidden = tensor <= known.low / 2
    rest, lowest = tensor[~hidden], tensor[hidden].double()
    if lowest.numel() < 2 or not rest.numel() or not bool((lowest <= known.low * (1 - NEAR)).all()):
        return known
    return statistics_of(rest)
