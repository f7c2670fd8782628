"""Data whose samples differ in shape, and the batches that collate functions make of them."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

COUNT = 23
WIDTH = 3


def sequences(count: int = COUNT, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Sequences [1…7, 3] in float64, which every order of additions rounds alike to float32 precision, and classes."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (count,), generator=generator).tolist()
    return [(torch.randn(n, WIDTH, generator=generator), torch.tensor(n % 2)) for n in lengths]


class Sequences(Dataset):
    """The sequences as a map-style data set; counts what is read."""

    def __init__(self, count: int = COUNT) -> None:
        self._items = sequences(count)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return self._items[index]


Packed = namedtuple("Packed", "tokens ends classes")


@dataclass(frozen=True)
class Joined:
    """Sequences one after the other, as graphs are joined: to which each token belongs."""

    tokens: Tensor
    of: Tensor
    classes: Tensor


class Moving:
    """A batch of a class of its own, which moves itself."""

    def __init__(self, tokens: Tensor, mask: Tensor, classes: Tensor) -> None:
        self.parts = {"tokens": tokens, "mask": mask}
        self.classes, self.device = classes, torch.device("cpu")

    def to(self, device: torch.device) -> Moving:
        self.parts = {name: part.to(device) for name, part in self.parts.items()}
        self.classes, self.device = self.classes.to(device), device
        return self


def padded(items: list[Any]) -> dict[str, Tensor]:
    """Padded to the longest, with a mask."""
    tokens = pad_sequence([tokens for tokens, _ in items], batch_first=True)
    mask = pad_sequence([torch.ones(len(tokens)) for tokens, _ in items], batch_first=True)
    return {"tokens": tokens, "mask": mask, "classes": torch.stack([label for _, label in items])}


def packed(items: list[Any]) -> Packed:
    """Packed one after the other, with where each ends."""
    ends = torch.tensor([len(tokens) for tokens, _ in items]).cumsum(0)
    return Packed(torch.cat([tokens for tokens, _ in items]), ends, torch.stack([label for _, label in items]))


def joined(items: list[Any]) -> Joined:
    """A dataclass that says to which sequence each token belongs."""
    of = torch.cat([torch.full((len(tokens),), k) for k, (tokens, _) in enumerate(items)])
    return Joined(torch.cat([tokens for tokens, _ in items]), of, torch.stack([label for _, label in items]))


def moving(items: list[Any]) -> Moving:
    """An object with a method `to`."""
    return Moving(**padded(items))


def jagged(items: list[Any]) -> tuple[Tensor, Tensor]:
    """A jagged nested tensor."""
    tokens = torch.nested.nested_tensor([tokens for tokens, _ in items], layout=torch.jagged)
    return tokens, torch.stack([label for _, label in items])


def as_items(items: list[Any]) -> list[Any]:
    """The items themselves."""
    return items


COLLATES = {each.__name__: each for each in (padded, packed, joined, moving, jagged, as_items)}


def sequences_of(batch: Any) -> tuple[list[Tensor], Tensor]:
    """The sequences of a batch of any of these kinds, and their classes."""
    if isinstance(batch, Moving):
        batch = {**batch.parts, "classes": batch.classes}
    if isinstance(batch, dict):
        lengths = batch["mask"].sum(1).long().tolist()
        return [row[:n] for row, n in zip(batch["tokens"], lengths, strict=True)], batch["classes"]
    if isinstance(batch, Packed):
        return list(batch.tokens.tensor_split(batch.ends[:-1])), batch.classes
    if isinstance(batch, Joined):
        return [batch.tokens[batch.of == k] for k in range(len(batch.classes))], batch.classes
    if isinstance(batch, tuple):
        return list(batch[0].unbind()), batch[1]
    return [tokens for tokens, _ in batch], torch.stack([label for _, label in batch])


class Reader(nn.Module):
    """A network over one sequence: the mean over its tokens of a layer, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.outer = nn.Linear(WIDTH, 5), nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(tokens)).mean(0))


def observe_sequences(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """One value per sequence, computed sequence by sequence."""
    tokens, classes = sequences_of(batch)
    outputs = torch.stack([model(each.to(model.outer.weight.dtype)) for each in tokens])
    return {
        "loss": nn.functional.cross_entropy(outputs, classes, reduction="none"),
        "accuracy": (outputs.argmax(1) == classes).double(),
    }
