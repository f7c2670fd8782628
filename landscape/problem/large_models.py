"""Models whose weights are in files: built without numbers, read from a Hugging Face folder, cut over processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from landscape.core.errors import JobError, NotFoundError, one_line, quoted
from landscape.model.parameters import targets_of
from landscape.model.weight_files import load_weights

# ----------------------------------------------------------------------------------------------------
# A model without numbers, and one that is cut over processes.


@contextmanager
def without_weights() -> Iterator[None]:
    """Within the block, modules are built with their parameters on torch's `meta` device, where they take no memory.

    Buffers are real: a file of weights holds few of them, and modules compute the others, such as frequencies of
    rotary embeddings, when they are built.

    >>> from torch import nn
    >>> with without_weights():
    ...     layer = nn.Linear(10_000, 10_000)
    >>> layer.weight.is_meta
    True
    """
    register: Any = nn.Module.register_parameter
    moved: MutableMapping[nn.Parameter, nn.Parameter] = WeakIdKeyDictionary()  # so that tied parameters stay tied

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is None or parameter.is_meta:
            return
        if parameter not in moved:
            kind: Any = type(parameter)
            moved[parameter] = kind(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            moved[parameter].__dict__.update(parameter.__dict__)
        module._parameters[name] = moved[parameter]

    with patch.object(nn.Module, "register_parameter", register_on_meta):
        yield


def cut_over(model: nn.Module, mesh: Any, plan: Mapping[str, Any] | None) -> None:
    """Cut a model over the processes of a mesh, in place.

    Args:
        plan: for tensor parallel, `colwise`, `rowwise` or a `ParallelStyle` by the name of the layer, in which `*`
            stands for any part; default: FSDP2, block by block.

    Raises:
        JobError: a style is unknown, or no layer has one of the names.
    """
    if plan is None:
        from torch.distributed.fsdp import fully_shard

        for block in repeated_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    known: dict[str, Any] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    names = [name.split(".") for name, _ in model.named_modules()]
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle) and style not in known:
            raise JobError(f"sharded: must cut {quoted(pattern)} by {' or '.join(known)}, not {quoted(style)}")
        parts = pattern.split(".")
        if not any(len(name) == len(parts) and all(map(_matches, name, parts)) for name in names):
            raise JobError(f"sharded: no layer of the model is called {quoted(pattern)}")
    styles = {name: style if isinstance(style, ParallelStyle) else known[style]() for name, style in plan.items()}
    parallelize_module(model, mesh, styles)


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists of modules, which do not lie in one another: the blocks of a deep network."""
    for child in model.children():
        if isinstance(model, nn.ModuleList) and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield child
        else:
            yield from repeated_blocks(child)


def _matches(name: str, pattern: str) -> bool:
    return pattern in ("*", name)


# ----------------------------------------------------------------------------------------------------
# A language model as Hugging Face keeps it, and texts.

LENGTH = 1024  # tokens of a sequence, if the model reads as many
TEXTS, TOKENS = (".txt", ".jsonl"), (".npy",)


def read_language_model(folder: Path) -> tuple[nn.Module, Path | None]:
    """The model of a Hugging Face folder, without weights, and the folder that holds them.

    Where the folder holds other tensors than the model, as for some mixtures of experts, transformers reads them into
    memory, and there is no folder to read them from.

    Raises:
        JobError: transformers is not installed, or cannot make the model.
        NotFoundError: there is no such folder.
    """
    if not (folder / "config.json").is_file():
        kind = NotFoundError if not folder.exists() else JobError
        raise kind(f"model: {quoted(str(folder))} is no folder of a model: it has no config.json; name the folder")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM  # type: ignore[import-not-found]
    except ImportError:
        raise JobError(
            "model: a folder of Hugging Face is read with transformers: pip install 'loss-landscape-cluster[language]'"
        ) from None
    try:
        config = AutoConfig.from_pretrained(folder)
        with without_weights():
            model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=getattr(config, "dtype", None))
        model.eval()
        held = set(load_weights(folder, again=True))
        if set(targets_of(model)) <= held | _tied(model) and held <= set(model.state_dict()):
            return model, folder
        whole: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (OSError, ValueError, KeyError) as error:
        raise JobError(f"model: {quoted(str(folder))} is not read by transformers: {one_line(error)}") from error
    return whole.eval(), None


def _tied(model: nn.Module) -> set[str]:
    """Names of parameters of which a file may hold another name."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    once = {name for name, _ in model.named_parameters()}
    tied = set(names) - once
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name for name in once if any(parameters[other] is parameters[name] for other in tied)}


def read_tokens(place: Path, folder: Path | None, length: int | None, positions: int | None, *, packed: bool) -> Any:
    """The token ids of a file: texts through the model's tokenizer, or ids as they are.

    Args:
        place: `.txt`, one document; `.jsonl`, one per line under `text`; `.npy`, ids [T] or [N, T].
        folder: of the model, with its tokenizer.json.
        length: tokens of a sequence; default: what the model reads, at most LENGTH.
        positions: the most tokens that the model reads; None if unknown.
        packed: whether documents are joined and cut into sequences of equal length; otherwise each is one sequence.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is of another kind, or too short.
    """
    if not place.is_file():
        raise NotFoundError(f"tokens: {quoted(str(place))} does not exist; name a file {', '.join((*TEXTS, *TOKENS))}")
    size = length or min(LENGTH, positions or LENGTH)
    if positions is not None and size > positions:
        raise JobError(f"length: must be at most {positions}, the positions of the model, not {size}")
    documents, end = _documents(place, folder)
    if not any(len(ids) for ids in documents):
        raise JobError(f"tokens: {quoted(str(place))} holds no text; name another file")
    if not packed:
        return [ids[:size] for ids in documents if len(ids) > 1]
    joined = [torch.cat([ids, end]) for ids in documents]
    stream = torch.cat(joined) if joined else torch.empty(0, dtype=torch.int64)
    rows = len(stream) // size
    if not rows:
        raise JobError(
            f"tokens: {quoted(str(place))} holds {len(stream)} tokens, fewer than a sequence of {size}; give a smaller "
            "length, or packed=False"
        )
    return stream[: rows * size].view(rows, size)


def _documents(place: Path, folder: Path | None) -> tuple[list[Tensor], Tensor]:
    """The token ids of every document, and the token that ends one, if the tokenizer has it."""
    nothing = torch.empty(0, dtype=torch.int64)
    if place.suffix in TOKENS:
        ids = torch.from_numpy(np.load(place).astype(np.int64))
        return (list(ids) if ids.dim() == 2 else [ids.reshape(-1)]), nothing
    if place.suffix not in TEXTS:
        raise JobError(f"tokens: must be a file {', '.join((*TEXTS, *TOKENS))}, not {quoted(place.name)}")
    texts = [place.read_text(encoding="utf-8")]
    if place.suffix == ".jsonl":
        try:
            texts = [json.loads(line)["text"] for line in texts[0].split("\n") if line.strip()]
        except (ValueError, KeyError, TypeError):
            raise JobError(f"tokens: every line of {quoted(place.name)} must be a JSON object with a text") from None
    if folder is None or not (folder / "tokenizer.json").is_file():
        raise JobError("tokens: a text needs the tokenizer.json in the folder of the model; give token ids instead")
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found]
    except ImportError:
        raise JobError(
            "tokens: a text is read with tokenizers: pip install 'loss-landscape-cluster[language]'"
        ) from None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end = nothing
    config = json.loads((folder / "config.json").read_text())
    numbers = config.get("eos_token_id")
    number = numbers[0] if isinstance(numbers, list) and numbers else numbers
    if isinstance(number, int):
        end = torch.tensor([number])
    return [torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64) for text in texts], end
