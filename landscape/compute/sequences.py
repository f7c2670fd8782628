"""Sequences of tokens of different lengths, joined to one tensor per field; batches of them are padded when read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from landscape.problem.collated import Collated
from landscape.problem.language import Padding
from landscape.problem.samples import Samples


def are_sequences(samples: Samples) -> bool:
    """Whether samples are sequences of a language model, as tensors or dicts of tensors with the same fields."""
    if not isinstance(samples, Collated) or type(samples.collate) is not Padding:
        return False
    fields = _fields_of(samples.items[0])
    return all(fields is not None and _fields_of(item) == fields for item in samples.items)


def _fields_of(item: Any) -> tuple[str, ...] | None:
    """The names of an item's fields, `('',)` of a tensor by itself; None of anything else."""
    named = item if isinstance(item, Mapping) else {"": item}
    usable = all(isinstance(each, Tensor) and each.dim() == 1 for each in named.values())
    return tuple(map(str, named)) if usable else None


def described_sequences(samples: Samples) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the manifest says of them, and their tensors: the fields by number, each item behind the one before."""
    assert isinstance(samples, Collated)
    assert isinstance(samples.collate, Padding)
    fields = _fields_of(samples.items[0]) or ()
    items = [item if isinstance(item, Mapping) else {"": item} for item in samples.items]
    tensors = {str(place): torch.cat([item[name] for item in items]) for place, name in enumerate(fields)}
    tensors["lengths"] = torch.tensor([len(next(iter(item.values()))) for item in items])
    reader = samples.collate.reader
    return {"fields": list(fields), "vocabulary": reader.vocabulary, "takes_mask": reader.takes_mask}, tensors


def example_of_sequences(samples: Samples, count: int = 5) -> Any:
    """A batch of a few of them, repeated where there are fewer."""
    assert isinstance(samples, Collated)
    return samples.collate([samples.items[place % samples.length] for place in range(count)])
