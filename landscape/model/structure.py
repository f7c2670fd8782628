"""The structure of a batch: a tensor, or tuples, lists and dicts of tensors, as plain values that JSON can hold.

A tensor is `"tensor"`, and the others are `["tuple", …]`, `["list", …]` and `["dict", [key, …], …]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

TENSOR = "tensor"
DEEPEST = 16


def structure_of(value: Any) -> Any:
    """The structure of a value.

    Raises:
        TypeError: it holds something else, such as an object of a class.
    """
    if isinstance(value, Tensor):
        return TENSOR
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        return ["dict", *([key, structure_of(member)] for key, member in value.items())]
    if isinstance(value, (tuple, list)):
        return ["list" if isinstance(value, list) else "tuple", *map(structure_of, value)]
    raise TypeError(type(value).__name__)


def checked_structure(value: Any, deepest: int = DEEPEST) -> Any:
    """A structure that came from a file.

    Raises:
        ValueError: it is none.
    """
    if value == TENSOR:
        return value
    if deepest and isinstance(value, list) and value and value[0] in ("tuple", "list", "dict"):
        kind, *members = value
        if kind != "dict":
            return [kind, *(checked_structure(member, deepest - 1) for member in members)]
        if all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int)) for pair in members):
            return [kind, *([key, checked_structure(member, deepest - 1)] for key, member in members)]
    raise ValueError("a batch of a structure that is none")


def leaves_of(structure: Any, value: Any) -> list[Any]:
    """The tensors of a value of this structure, in its order; also of one that stands for values while it is traced."""
    if structure == TENSOR:
        return [value]
    kind, *members = structure
    if kind == "dict":
        return [leaf for key, member in members for leaf in leaves_of(member, value[key])]
    return [leaf for place, member in enumerate(members) for leaf in leaves_of(member, value[place])]


def filled(structure: Any, leaves: Iterator[Any]) -> Any:
    """A value of this structure, with these tensors in its order."""
    if structure == TENSOR:
        return next(leaves)
    kind, *members = structure
    if kind == "dict":
        return {key: filled(member, leaves) for key, member in members}
    return (list if kind == "list" else tuple)(filled(member, leaves) for member in members)


def count_of(structure: Any) -> int:
    """How many tensors a value of this structure holds."""
    if structure == TENSOR:
        return 1
    kind, *members = structure
    return sum(count_of(member[1] if kind == "dict" else member) for member in members)
