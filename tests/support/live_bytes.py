"""Counts the bytes of tensors while they live."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they live, beside tensors that exist before."""

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, object] = {tensor.untyped_storage().data_ptr(): None for tensor in before}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self._known or not size:
            return
        self._known[key] = weakref.finalize(storage, self._forget, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.now -= size
