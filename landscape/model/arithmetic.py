"""Pure arithmetic on states: norms, inner products, sums, flattening and digests. Inputs stay unchanged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.model.parameters import State


def norm(state: State) -> float:
    """Euclidean norm over all tensors, accumulated in float64.

    >>> norm({"weight": torch.tensor([[2.0, 0.0]]), "bias": torch.tensor([1.0, 2.0])})
    3.0
    """
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in state.values()))


def dot(first: State, second: State) -> float:
    """Inner product over all tensors of `first`, accumulated in float64; `second` holds them too."""
    return sum(float((tensor.double() * second[name].double()).sum()) for name, tensor in first.items())


def difference(first: State, second: State) -> dict[str, Tensor]:
    """first − second in float64, over the floating-point tensors of `second`."""
    return {
        name: first[name].double() - tensor.double() for name, tensor in second.items() if tensor.is_floating_point()
    }


def combine(origin: State, directions: Sequence[State], coordinates: Sequence[float]) -> dict[str, Tensor]:
    """The point θ = θ₀ + Σₖ cₖ·dₖ, in the type of θ₀; tensors that no direction names are those of θ₀.

    Args:
        origin: θ₀.
        directions: dₖ, one per axis.
        coordinates: cₖ, one per axis.

    >>> combine({"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 2.0])}], [0.5])["w"].tolist()
    [0.5, 1.0]
    """
    point = dict(origin)
    for coordinate, direction in zip(coordinates, directions, strict=True):
        for name, tensor in direction.items():
            point[name] = torch.add(point[name], tensor.to(point[name].dtype), alpha=coordinate)
    return point


def layout(state: State, names: Iterable[str]) -> list[dict[str, Any]]:
    """Where each tensor lies in the flattened vector: name, shape and offset, in elements."""
    places, offset = [], 0
    for name in names:
        places.append({"name": name, "shape": list(state[name].shape), "offset": offset})
        offset += state[name].numel()
    return places


def flatten(state: State, places: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The tensors one after the other as a float32 vector; zero where `state` lacks one.

    Args:
        places: what `layout` returned for them.
    """
    pieces = [
        state[place["name"]].reshape(-1).float().numpy()
        if place["name"] in state
        else np.zeros(int(np.prod(place["shape"], dtype=np.int64)), np.float32)
        for place in places
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def unflatten(vector: np.ndarray, places: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The inverse of `flatten`; tensors that are zero throughout are left out, as nothing moves them."""
    state = {}
    for place in places:
        size = int(np.prod(place["shape"], dtype=np.int64))
        piece = vector[place["offset"] : place["offset"] + size]
        if piece.any():
            state[place["name"]] = torch.from_numpy(np.array(piece, np.float32)).reshape(place["shape"])
    return state


def state_digest(state: State) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names, in hexadecimal."""
    hashed = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def direction_digest(state: State) -> str:
    """The digest of a direction as it is stored: in float32, tensors that are zero throughout left out."""
    return state_digest({name: tensor.float() for name, tensor in state.items() if bool(tensor.any())})
