"""The `observe` of `Problem.causal_lm`: the cross entropy of the next token, per sequence, in chunks of tokens.

The logits of a sequence take tokens x vocabulary numbers, more than anything else in a language model: 1 GiB for 2,048
tokens of a vocabulary of 128 k. They are computed and used one chunk at a time, from the hidden states of the network
below its output head.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from landscape.core.errors import JobError, one_line, quoted
from landscape.model.parameters import on_meta
from landscape.problem.batches import Batch

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# Token ids as data.

STREAMED = 16  # sequences of an iterable data set in one padded batch
IGNORED = -100  # a label that does not count, as in torch and transformers
FIELDS = ("input_ids", "attention_mask", "labels", "position_ids", "token_type_ids")
FILLED = {"labels": IGNORED}  # the value of padding in a field; 0 in all others
NO_TARGET = "every sequence needs a token that is predicted: the second one or a later one, neither masked nor labelled"


@dataclass(frozen=True)
class Reader:
    """The sequences that the model can read.

    Args:
        vocabulary: token ids must be below it; None if unknown.
        takes_mask: whether the model takes a mask of padding.
    """

    vocabulary: int | None = None
    takes_mask: bool = True

    def check(self, rows: Mapping[str, Tensor], place: str) -> None:
        """Refuse sequences, [N, T] in every field, that the model cannot read, or in which no token is predicted."""
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
    """The data of a language model in a form from which samples are chosen.

    Returns:
        Rectangles [N, T] by field, a `DataLoader` that pads, or the user's own loader or iterable; and whether all ids
        are known to be in the vocabulary.

    Raises:
        JobError: the tokens are no token ids, or no token of a sequence is predicted.
    """
    if isinstance(tokens, (str, bytes)):
        raise JobError(
            f"tokens: must be token ids, not text {quoted(tokens)}; let the model's tokenizer encode it first"
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
        """Sequences, each token ids [T] or a dict of `input_ids` and further fields [T], as one batch [N, longest]."""
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
            JobError: names the fault and the place of the sequence.
        """
        fields = item if isinstance(item, Mapping) else {"input_ids": item[0] if _is_wrapped(item) else item}
        # A data set keeps the columns from which its tokens were made, such as the text: leave them out.
        _check_fields({name: fields[name] for name in FIELDS if name in fields} if "input_ids" in fields else fields)
        row = {name: _ids(fields[name], f"{place}: {name}", 1) for name in FIELDS if name in fields}
        row.setdefault("attention_mask", torch.ones_like(row["input_ids"]))
        lengths = {name: len(ids) for name, ids in row.items()}
        if len(set(lengths.values())) > 1:
            raise JobError(f"tokens: {place}: all fields must have one length, not {lengths}")
        self.reader.check({name: ids[None] for name, ids in row.items()}, place)
        return row


def next_tokens(tokens: Tensor, mask: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The token after each token, and whether its prediction counts.

    A prediction counts if both tokens are unmasked and the label of the second is not -100.

    Args:
        tokens, mask, labels: [N, T] each; without labels, the tokens themselves are predicted.

    Returns:
        Targets, 0 if they do not count, and flags: [N, T] each; the last token has no target.

    >>> next_tokens(torch.tensor([[5, 6, 7, 0]]), torch.tensor([[1, 1, 1, 0]]), None)
    (tensor([[6, 7, 0, 0]]), tensor([[ True,  True, False, False]]))
    """
    following = torch.nn.functional.pad((tokens if labels is None else labels)[:, 1:], (0, 1), value=IGNORED)
    counted = following != IGNORED
    if mask is not None:
        counted = counted & (mask != 0) & torch.nn.functional.pad(mask[:, 1:] != 0, (0, 1), value=False)
    return torch.where(counted, following, 0), counted


def check_tokens(ids: Tensor, vocabulary: int | None, place: str = "") -> None:
    """Refuse ids that are not in the vocabulary."""
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
    """Refuse a dict without token ids, or with fields that no language model takes."""
    if "input_ids" not in fields:
        raise JobError(f"tokens: must have the field 'input_ids', not only {quoted(list(fields))}")
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise JobError(
            f"tokens: unknown field {quoted(unknown[0])}; known: {', '.join(FIELDS)}; leave it out, or write an "
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
    """A list of sequences with fields, from fields that are lists of sequences."""
    for name, value in fields.items():
        if not hasattr(value, "__len__"):
            raise JobError(f"tokens: {name} must be sequences [N, T], not {quoted(value)}")
    lengths = {name: len(value) for name, value in fields.items()}
    if len(set(lengths.values())) > 1:
        raise JobError(f"tokens: all fields must have one number of sequences, not {lengths}")
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def _is_wrapped(item: Any) -> bool:
    """Whether a sample is a tuple around its tokens, as from a `TensorDataset`."""
    return isinstance(item, tuple) and len(item) == 1 and isinstance(item[0], Tensor)


def _ids(value: Any, subject: str, dimensions: int) -> Tensor:
    """Whole numbers as int64."""
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise JobError(f"tokens: {subject} must be whole numbers, not {quoted(value)}; encode text first") from None
    if ids.is_floating_point() or ids.is_complex() or ids.dim() != dimensions:
        if not ids.numel() and dimensions == 1:
            return ids.reshape(0).long()
        raise JobError(
            f"tokens: {subject} must be whole numbers with {dimensions} dimension{'s'[: dimensions > 1]}, not "
            f"{ids.dtype} of shape {tuple(ids.shape)}"
        )
    return ids.detach().cpu().long()


CHUNK_BYTES = 1 << 27  # of logits in memory at a time
FEW = 8  # tokens on which a model is tried
OPTIONS = ("attention_mask", "position_ids", "token_type_ids")  # fields of a batch, for a model that takes them


class CausalLM:
    """`observe` for batches of token ids; `Problem.causal_lm` describes the arguments.

    Attributes:
        vocabulary: the number of different tokens of the model; None if unknown.
        checked: whether all token ids of the data are known to be in the vocabulary.
        in_chunks: whether the logits are computed one chunk at a time, by the model's own output head; None until a
            model with numbers is there to be tried.
    """

    names = ("loss", "token_accuracy")

    def __init__(self, model: nn.Module) -> None:
        self.checked = False
        self.vocabulary: int | None
        self.in_chunks: bool | None
        if on_meta(model):
            self.vocabulary, self.in_chunks = _vocabulary_of(model), None
        else:
            self.vocabulary, self.in_chunks = try_output_head(model)

    def reader(self, model: nn.Module) -> Reader:
        """The rules for sequences of this model."""
        return Reader(self.vocabulary, "attention_mask" in _parameters_of(without_adapters(model)))

    def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Per sequence: mean loss and share of right predictions over its predicted tokens; their number as weight."""
        fields = batch if isinstance(batch, Mapping) else {"input_ids": batch}
        tokens = fields.get("input_ids")
        if not isinstance(tokens, Tensor) or tokens.dim() != 2:
            raise JobError(
                f"tokens: a batch must be token ids [N, T], or a dict of them as 'input_ids', not {_in_words(batch)}; "
                "sequences of a list or a data set are padded to such batches"
            )
        if not self.checked and not torch.compiler.is_compiling() and not tokens.is_meta:
            check_tokens(tokens, self.vocabulary)
        targets, counted = next_tokens(tokens, fields.get("attention_mask"), fields.get("labels"))
        losses, right = self._of_tokens(model, fields, targets)
        number = counted.sum(1)
        return {
            "loss": torch.where(counted, losses, 0).sum(1) / number,
            "token_accuracy": (right & counted).sum(1) / number,
            "weight": number,
        }

    def _of_tokens(self, model: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the token after each token, and whether it is the likeliest: [N, T] each."""
        if self.in_chunks is None and not fields["input_ids"].is_meta:
            self.in_chunks = try_output_head(model)[1]
        parts = split_off_head(model) if self.in_chunks else None
        with _positions_named(model, fields["input_ids"].shape[1]):
            states = logits(model, fields) if parts is None else _hidden(parts, fields)
        logits_of = _identity if parts is None else parts.logits
        if states.dim() != 3 or states.shape[:2] != fields["input_ids"].shape:
            raise JobError(
                f"model: must return logits [N, T, vocabulary] for tokens {tuple(fields['input_ids'].shape)}, not "
                f"{tuple(states.shape)}; write an observe(model, batch) of your own for other models"
            )
        size = self.vocabulary or states.shape[-1]
        at_once = max(1, CHUNK_BYTES // (4 * size))
        chunks = zip(torch.split(states.flatten(0, 1), at_once), torch.split(targets.flatten(), at_once), strict=True)
        pieces = [_losses(logits_of(chunk), wanted) for chunk, wanted in chunks]
        losses, right = (torch.cat(column).view(targets.shape) for column in zip(*pieces, strict=True))
        return losses, right


def _in_words(batch: Batch) -> str:
    return f"a tensor {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__


def _identity(logits: Tensor) -> Tensor:
    return logits


def _losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of every row of logits [n, vocabulary], and whether its largest is the target: [n] each."""
    # As in transformers: 16 bits are too few for a sum over a vocabulary.
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets, reduction="none"), wide.argmax(-1) == targets


@contextmanager
def _positions_named(model: nn.Module, length: int) -> Iterator[None]:
    """Explain an index out of range if sequences are longer than the positions of the model."""
    try:
        yield
    except IndexError as error:
        most = getattr(getattr(without_adapters(model), "config", None), "max_position_embeddings", None)
        if most is None:
            raise JobError(
                f"tokens: the model is fed all {length} tokens of a sequence, and raises {one_line(error)}; if its "
                "context is shorter, cut them (T tokens make T - 1 predictions), else an id is not in its vocabulary"
            ) from error
        if not isinstance(most, int) or length <= most:
            raise
        raise JobError(
            f"tokens: sequences must have at most {most} tokens, the positions of the model, not {length}; cut them"
        ) from error


def refuse_other_models(model: nn.Module) -> None:
    """Refuse a model that needs more than tokens, and a model none of whose adapters is trained.

    peft loads adapters as not trained by default, and no direction would move them.
    """
    if getattr(getattr(without_adapters(model), "config", None), "is_encoder_decoder", False):
        raise JobError(
            f"model: must predict the next token of what it reads, not {type(model).__name__}, which translates; write "
            "an observe(model, batch) of your own for it"
        )
    if hasattr(model, "peft_config") and not any(parameter.requires_grad for parameter in model.parameters()):
        raise JobError(
            "model: no adapter requires gradients, and directions move what does; load it by "
            "PeftModel.from_pretrained(..., is_trainable=True)"
        )


def logits(model: nn.Module, fields: Mapping[str, Tensor]) -> Tensor:
    """The logits of the model for a batch, [N, T, vocabulary]."""
    parameters = _parameters_of(without_adapters(model))
    options, ids = _options(parameters, fields), fields["input_ids"]
    output = model(input_ids=ids, **options) if "input_ids" in parameters else model(ids)
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise JobError(
            f"model: must return logits [N, T, vocabulary], or an output with .logits, not {type(output).__name__}"
        )
    return output


def _hidden(parts: Parts, fields: Mapping[str, Tensor]) -> Tensor:
    """The states below the head. FSDP2 gathers the parameters of the whole only if the whole is called, or asked to."""
    backbone, gather = parts.backbone, getattr(parts.whole, "unshard", None)
    if callable(gather):
        gather()
    output = backbone(input_ids=fields["input_ids"], **_options(_parameters_of(backbone), fields))
    states: Tensor = output[0] if isinstance(output, (tuple, list)) else output.last_hidden_state
    return states


def _options(parameters: Mapping[str, Any], fields: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of a forward beside the tokens: fields of the batch, and no cache.

    Positions count the tokens that are no padding, so that padding on the left shifts no position.
    """
    options: dict[str, Any] = {name: fields[name] for name in OPTIONS if name in parameters and name in fields}
    if "attention_mask" in options and "position_ids" in parameters and "position_ids" not in fields:
        options["position_ids"] = (fields["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
    return options | ({"use_cache": False} if "use_cache" in parameters else {})


def _parameters_of(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


@dataclass(frozen=True)
class Parts:
    """The network below the output head, and the function from its hidden states to logits."""

    whole: nn.Module
    backbone: nn.Module
    head: nn.Module
    after: Callable[[Tensor], Tensor]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [n, width] → logits [n, vocabulary]."""
        return self.after(self.head(hidden))


def without_adapters(model: nn.Module) -> nn.Module:
    """The network itself, without adapters (peft) around it."""
    unwrapped = getattr(model, "get_base_model", None)
    return unwrapped() if hasattr(model, "peft_config") and callable(unwrapped) else model


def split_off_head(model: nn.Module) -> Parts | None:
    """Backbone and head of a model of transformers; None for any other model."""
    network = without_adapters(model)
    get_head = getattr(network, "get_output_embeddings", None)
    backbone = getattr(network, "base_model", None)
    head = get_head() if callable(get_head) else None
    if not isinstance(head, nn.Module) or not isinstance(backbone, nn.Module) or backbone is network:
        return None
    return Parts(network, backbone, head, _after_head(network))


def _after_head(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The last operation on the logits in some architectures: a cap (Gemma), a divisor (Granite), a factor (Cohere)."""
    config = getattr(network, "config", None)
    get_text = getattr(config, "get_text_config", None)
    config = get_text() if callable(get_text) else config
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        return lambda logits: torch.tanh(logits / cap) * cap
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        return lambda logits: logits / divisor
    if (factor := getattr(config, "logit_scale", None)) is not None:
        return lambda logits: logits * factor
    return _identity


def try_output_head(model: nn.Module) -> tuple[int | None, bool]:
    """The vocabulary of a model, and whether its head, applied to its hidden states, gives exactly its own logits.

    The model is run on a few tokens, in eval mode, and its mode is then restored. A model that does not run here, such
    as one that needs a GPU, counts as one without a head.
    """
    parts, embeddings = split_off_head(model), _embeddings(model)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    count = embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else 1
    fields = {"input_ids": (torch.arange(FEW, device=device) % count)[None]}
    try:
        with torch.no_grad(), _evaluating(model):
            whole = logits(model, fields)
            same = parts is not None and torch.equal(parts.logits(_hidden(parts, fields)), whole)
    except JobError:
        raise
    except Exception as error:
        log.info(
            "causal_lm: the model does not run on %d tokens here (%s): its logits are held whole", FEW, one_line(error)
        )
        return (count if count > 1 else None), False
    if parts is not None and not same:
        log.info(
            "causal_lm: the output head of %s does more than its layer: logits are held whole", type(model).__name__
        )
    outputs = whole.shape[-1] if whole.dim() == 3 else None
    return (min(count, outputs) if count > 1 and outputs else outputs), same


def _vocabulary_of(model: nn.Module) -> int | None:
    """The rows of the token embedding; None if the model does not say which that is."""
    embeddings = _embeddings(model)
    return embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else None


def _embeddings(model: nn.Module) -> Any:
    get = getattr(without_adapters(model), "get_input_embeddings", None)
    return get() if callable(get) else None


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode; afterwards, restore the mode of every module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
