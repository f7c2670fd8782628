"""What becomes of -Inf that a logarithm makes of zeros: it is a mask where all of it is taken up, and else a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from landscape.model.masks import is_watched

LOGARITHMS = ("log", "log2", "log10")


def is_log_of_zeros(operation: str, tensor: Tensor) -> bool:
    """Whether all of an operation's values that are not finite are -Inf of a logarithm, as of the zeros of a mask."""
    return operation in LOGARITHMS and bool((torch.isfinite(tensor) | torch.isneginf(tensor)).all())


@dataclass
class _Held:
    """A memory with -Inf: of which layers, and whether an operation was given it since."""

    layers: frozenset[str]
    used: bool = False


class LogMasks:
    """Follows -Inf of logarithms from operation to operation, through one pass of a network.

    A softmax takes it up: what comes of it is finite. It is a fault where NaN or +Inf comes of it, and where the pass
    ends with it.

    Attributes:
        guilty: the layers whose -Inf was a fault.
    """

    def __init__(self) -> None:
        self.guilty = set[str]()
        self._held = dict[int, _Held]()  # by the address of the memory, which views share

    def made(self, layer: str, tensor: Tensor) -> None:
        """A layer made -Inf of zeros by a logarithm."""
        self._held[_address(tensor)] = _Held(frozenset((layer,)))

    def computed(self, arguments: Sequence[Any], given: Sequence[Any], output: Any) -> None:
        """An operation was carried out.

        Args:
            given: the arguments as they were before it, which may have written into some.
        """
        if not self._held:
            return
        pairs = zip(_tensors(arguments), _tensors(given), strict=True)
        known = [(self._held.get(_address(each)), before) for each, before in pairs]
        memories = [held for held, before in known if held is not None and _has(torch.isneginf, before)]
        if not memories:
            return
        layers = frozenset[str]().union(*(memory.layers for memory in memories))
        for memory in memories:
            memory.used = True
        wrong = [each for each in _tensors(given) if _has(torch.isnan, each) or _has(torch.isposinf, each)]
        for tensor in _tensors([output]):
            if not wrong and (_has(torch.isnan, tensor) or _has(torch.isposinf, tensor)):
                self.guilty |= layers
            elif _has(torch.isneginf, tensor):
                self._held[_address(tensor)] = _Held(layers)

    def end(self) -> None:
        """The pass has ended: what nothing has taken up since is what it gave."""
        for memory in self._held.values():
            self.guilty |= frozenset() if memory.used else memory.layers
        self._held = {}


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    flat = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    return [each for each in flat if is_watched(each) and each.layout is torch.strided and not each.is_complex()]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _has(way: Any, tensor: Tensor) -> bool:
    return bool(way(tensor).any())
