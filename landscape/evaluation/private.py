"""A copy of the user's model that nothing but the evaluation touches."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from landscape.core.errors import JobError, one_line
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
    _refuse_shared(model, copied)
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


def _refuse_shared(model: nn.Module, copied: nn.Module) -> None:
    """Refuse a copy that is none: its weights would be moved, and with them those of the user's own model.

    Raises:
        JobError: a __deepcopy__ of the user's returns the model itself, or a model with the same trainable parameters.
    """
    own = {key: name for name, each in model.named_parameters() for key in _identities(each)}
    shared = [own[key] for each in copied.parameters() for key in _identities(each) if key in own]
    if copied is model or shared:
        what = "itself" if copied is model else f"one that has the same {shared[0]}"
        raise JobError(
            f"model: copy.deepcopy of {type(model).__name__} gives {what}, and what is moved must be a copy: let its "
            "__deepcopy__ copy its parameters"
        )


def _identities(parameter: nn.Parameter) -> list[tuple[str, int]]:
    """By what a parameter that is moved is known again: the object, and where its values lie, if that is known."""
    if not parameter.requires_grad or parameter.layout is not torch.strided or not parameter.numel():
        return []
    place = parameter.data_ptr()  # 0 for those without memory of their own: on `meta`, or distributed
    return [("object", id(parameter)), *([("memory", place)] if place else [])]
