"""A copy of the user's model that nothing but the evaluation touches."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from landscape.errors import JobError, one_line
from landscape.evaluation.containers import Slots
from landscape.problem.user_code import kept_alive


def private_copy(model: nn.Module) -> tuple[nn.Module, list[Any]]:
    """A deep copy of the model without its gradients' graph, and all objects that were copied for it."""
    memo: dict[int, Any] = {}
    try:
        with kept_alive():
            copied = copy.deepcopy(model, memo)
    except Exception as cause:
        raise JobError(
            f"model: {type(model).__name__} cannot be copied ({one_line(cause)}); return one that copy.deepcopy takes"
        ) from cause
    copies = dict(copied.named_modules())  # a __deepcopy__ of the user's may leave some out
    lost = [
        f"{type(each).__name__}.{slot}"
        for name, each in model.named_modules()
        if type(copies.get(name)) is type(each)
        for slot in Slots(each)
        if slot not in Slots(copies[name])
    ]
    if lost:
        raise JobError(f"model: {lost[0]} is in __slots__, which copies of a module lose; make it a plain attribute")
    return copied, [copy_of for original, copy_of in memo.items() if id(copy_of) != original]
