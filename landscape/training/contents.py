"""What a checkpoint can hold: tensors, numbers, text, and lists and mappings of these; and the digest of that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError, shown

ALLOWED = "tensors, numbers, text, None, and lists, tuples and dicts of these"


def plain(name: str, value: Any) -> Any:
    """`value` as `torch.load(weights_only=True)` reads it back, with its tensors on the CPU.

    Tensors that share their memory still do.

    Args:
        name: how an error names it.

    Raises:
        JobError: it holds something else; names where.
    """
    match value:
        case Tensor():
            return _tensor(name, value)
        case np.generic():
            return plain(name, value.item())
        case bool() | None:
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return {_key(name, key): plain(f"{name}[{shown(key, 60)}]", each) for key, each in value.items()}
        case list():
            return [plain(f"{name}[{k}]", each) for k, each in enumerate(value)]
        case tuple():
            return tuple(plain(f"{name}[{k}]", each) for k, each in enumerate(value))
    raise JobError(f"keep: {name} must be of {ALLOWED}, not {type(value).__name__}; convert it, or leave it out")


def _tensor(name: str, value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise JobError(f"keep: {name} must be a dense tensor with data; convert it, or leave it out")
    tensor = value.detach().as_subclass(Tensor).cpu()
    # A view would take the whole of what it is a view of along into the file.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _key(name: str, key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, (str, int, float)):
        return key
    raise JobError(f"keep: {name} must have keys that are text or numbers, not {shown(key)}; convert them")


def digest_of(value: Any) -> str:
    """SHA-256 of what `plain` gives, in hexadecimal: of types, structure and every bit of the tensors."""
    algorithm = hashlib.sha256()

    def add(value: Any) -> None:
        match value:
            case Tensor():
                algorithm.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
                algorithm.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
            case dict():
                algorithm.update(f"dict {len(value)};".encode())
                for key, element in value.items():
                    add(key)
                    add(element)
            case list() | tuple():
                algorithm.update(f"{type(value).__name__} {len(value)};".encode())
                for element in value:
                    add(element)
            case _:
                text = f"{type(value).__name__} {value!r}".encode()
                algorithm.update(f"{len(text)};".encode() + text)

    add(value)
    return algorithm.hexdigest()
