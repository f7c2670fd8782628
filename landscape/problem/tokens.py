"""Token ids as data: their forms, the padding of sequences of different lengths, and which tokens are predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from landscape.core.errors import JobError, shown

STREAMED = 16  # sequences of an iterable data set that are padded to one batch
IGNORED = -100  # a label that does not count, as in torch and transformers
FIELDS = ("input_ids", "attention_mask", "labels", "position_ids", "token_type_ids")
FILLED = {"labels": IGNORED}  # what padding holds in a field; 0 in all others
NO_TARGET = "every sequence needs a token that is predicted: the second one or a later one, neither masked nor labelled"


@dataclass(frozen=True)
class Reader:
    """What the model can read.

    Args:
        vocabulary: token ids must be below it; None where it is not known.
        takes_mask: whether the model is told which tokens are padding.
    """

    vocabulary: int | None = None
    takes_mask: bool = True

    def check(self, rows: Mapping[str, Tensor], place: str) -> None:
        """Refuse sequences, [N, T] in every field, that the model cannot read or that predict nothing.

        Raises:
            JobError: names the sequence by its number in words, of which `place` is the pattern.
        """
        check_tokens(rows["input_ids"], self.vocabulary, place.format(0) if len(rows["input_ids"]) == 1 else "")
        mask = rows.get("attention_mask")
        if mask is not None and not self.takes_mask and (rising := (mask[:, 1:] > mask[:, :-1]).any(1)).any():
            raise JobError(
                f"attention_mask: {place.format(_first(rising))} is padded on the left, which a model that takes no "
                "attention_mask would read as text; pad on the right"
            )
        counted = next_tokens(rows["input_ids"], mask, rows.get("labels"))[1].any(1)
        if not counted.all():
            number, length = _first(~counted), rows["input_ids"].shape[1]
            raise JobError(f"tokens: {place.format(number)} has {length} tokens and predicts none; {NO_TARGET}")


def _first(flags: Tensor) -> int:
    return int(flags.nonzero()[0])


def language_data(tokens: Any, reader: Reader) -> tuple[Any, bool]:
    """The data of a language model in a form that samples are chosen from.

    Args:
        tokens: as `Problem.causal_lm` has it.

    Returns:
        Rectangles [N, T] by field, a `DataLoader` that pads, or the user's own loader or iterable as it is; and whether
        no id outside of the vocabulary can come from it.

    Raises:
        JobError: the tokens are no token ids, or a sequence has none that is predicted.
    """
    if isinstance(tokens, (str, bytes)):
        raise JobError(
            f"tokens: must be token ids, not text {shown(tokens)}; let the model's tokenizer encode it first"
        )
    if isinstance(tokens, (Tensor, np.ndarray)) and tokens.ndim == 2:
        tokens = {"input_ids": tokens}
    if isinstance(tokens, Mapping):
        _check_fields(tokens)
        if all(isinstance(value, (Tensor, np.ndarray)) and value.ndim == 2 for value in tokens.values()):
            return _rectangle(tokens, reader), True
        tokens = _rows_of(tokens)
    if isinstance(tokens, (list, tuple)):
        pad = Padding(reader)
        for number, sequence in enumerate(tokens):
            pad.sequence(sequence, f"sequence {number}")
    if isinstance(tokens, IterableDataset):
        return DataLoader(tokens, batch_size=STREAMED, collate_fn=Padding(reader)), reader.vocabulary is not None
    is_sized = hasattr(tokens, "__getitem__") and hasattr(tokens, "__len__") and not isinstance(tokens, DataLoader)
    if isinstance(tokens, (Tensor, np.ndarray)) or (is_sized and len(tokens) == 0):
        size = tuple(tokens.shape) if hasattr(tokens, "shape") else "none"
        raise JobError(f"tokens: must be sequences [N, T] with N >= 1, not {size}; give token ids, a row per sequence")
    if is_sized:
        return DataLoader(tokens, collate_fn=Padding(reader)), reader.vocabulary is not None
    return tokens, False


@dataclass(frozen=True)
class Padding:
    """The collate function of sequences of different lengths: padded on the right, with a mask."""

    reader: Reader = field(default_factory=Reader)

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """Sequences, each token ids [T] or a dict of `input_ids` and further fields [T], as one batch [N, longest].

        Raises:
            JobError: an item is no sequence of token ids of the vocabulary, or has no token that is predicted.
        """
        rows = [self.sequence(item, f"sequence {place} of a batch") for place, item in enumerate(items)]
        names = [name for name in FIELDS if name in rows[0]]
        if any(set(row) != set(names) for row in rows):
            raise JobError(f"tokens: all sequences must have the fields {names} of the first one; complete them")
        return {
            name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=FILLED.get(name, 0))
            for name in names
        }

    def sequence(self, item: Any, place: str) -> dict[str, Tensor]:
        """The fields of one sequence, int64 [T] each, its mask among them.

        Raises:
            JobError: says what is wrong with it, and names its place.
        """
        fields = item if isinstance(item, Mapping) else {"input_ids": item[0] if _is_wrapped(item) else item}
        # A data set keeps the columns that its tokens were made of, such as the text: they are left out.
        _check_fields({name: fields[name] for name in FIELDS if name in fields} if "input_ids" in fields else fields)
        row = {name: _ids(fields[name], f"{place}: {name}", 1) for name in FIELDS if name in fields}
        row.setdefault("attention_mask", torch.ones_like(row["input_ids"]))
        lengths = {name: len(ids) for name, ids in row.items()}
        if len(set(lengths.values())) > 1:
            raise JobError(f"tokens: {place}: all fields must have one length, not {lengths}")
        self.reader.check({name: ids[None] for name, ids in row.items()}, place)
        return row


def next_tokens(tokens: Tensor, mask: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The token that follows each, and whether its prediction counts.

    A prediction counts where both tokens are unmasked and the label of the second is not -100.

    Args:
        tokens, mask, labels: [N, T] each; without labels the tokens themselves are predicted.

    Returns:
        Targets, 0 where none counts, and flags: [N, T] each; nothing follows a last token.

    >>> next_tokens(torch.tensor([[5, 6, 7, 0]]), torch.tensor([[1, 1, 1, 0]]), None)
    (tensor([[6, 7, 0, 0]]), tensor([[ True,  True, False, False]]))
    """
    following = torch.nn.functional.pad((tokens if labels is None else labels)[:, 1:], (0, 1), value=IGNORED)
    counted = following != IGNORED
    if mask is not None:
        counted = counted & (mask != 0) & torch.nn.functional.pad(mask[:, 1:] != 0, (0, 1), value=False)
    return torch.where(counted, following, 0), counted


def check_tokens(ids: Tensor, vocabulary: int | None, place: str = "") -> None:
    """Refuse ids that are not in the vocabulary.

    Raises:
        JobError: names the id, the vocabulary and, where it is given, the place.
    """
    if not ids.numel():
        return
    least, most = (int(bound) for bound in ids.aminmax())
    if least < 0 or (vocabulary is not None and most >= vocabulary):
        rule = "0 or more" if vocabulary is None else f"0 to {vocabulary - 1}, the vocabulary of the model"
        raise JobError(
            f"tokens: {place + ': ' if place else ''}ids must be {rule}, not {least if least < 0 else most}; "
            "encode the text with the model's own tokenizer"
        )


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse a dict without token ids, or with fields that no language model takes.

    Raises:
        JobError: names the field.
    """
    if "input_ids" not in fields:
        raise JobError(f"tokens: must have the field 'input_ids', not only {shown(list(fields))}")
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise JobError(
            f"tokens: unknown field {shown(unknown[0])}; known: {', '.join(FIELDS)}; leave it out, or write an "
            "observe(model, batch) of your own"
        )


def _rectangle(fields: Mapping[str, Any], reader: Reader) -> dict[str, Tensor]:
    rows = {name: _ids(fields[name], name, 2) for name in FIELDS if name in fields}
    ids = rows["input_ids"]
    shapes = {name: tuple(row.shape) for name, row in rows.items()}
    if len(set(shapes.values())) > 1:
        raise JobError(f"tokens: all fields must have the shape of input_ids, not {shapes}")
    if not ids.shape[0]:
        raise JobError(f"tokens: must be sequences [N, T] with N >= 1, not {tuple(ids.shape)}")
    reader.check(rows, f"sequence {{}} of {len(ids)}")
    return rows


def _rows_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fields that are lists of sequences, as a list of sequences with fields."""
    for name, value in fields.items():
        if not hasattr(value, "__len__"):
            raise JobError(f"tokens: {name} must be sequences [N, T], not {shown(value)}")
    lengths = {name: len(value) for name, value in fields.items()}
    if len(set(lengths.values())) > 1:
        raise JobError(f"tokens: all fields must have one number of sequences, not {lengths}")
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def _is_wrapped(item: Any) -> bool:
    """Whether a sample is a tuple around its tokens, as a `TensorDataset` gives it."""
    return isinstance(item, tuple) and len(item) == 1 and isinstance(item[0], Tensor)


def _ids(value: Any, what: str, dimensions: int) -> Tensor:
    """Whole numbers as int64.

    Raises:
        JobError: they are none, or have another number of dimensions.
    """
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise JobError(f"tokens: {what} must be whole numbers, not {shown(value)}; encode text first") from None
    if ids.is_floating_point() or ids.is_complex() or ids.dim() != dimensions:
        if not ids.numel() and dimensions == 1:
            return ids.reshape(0).long()
        raise JobError(
            f"tokens: {what} must be whole numbers with {dimensions} dimension{'s'[: dimensions > 1]}, not {ids.dtype} "
            f"of shape {tuple(ids.shape)}"
        )
    return ids.detach().cpu().long()
