"""A small GPT that reads bytes: a decoder-only transformer (Radford et al. 2019), its training and callback.

python -m landscape.recipes.gpt --run runs/gpt
"""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.core.errors import JobError, NotFoundError, quoted
from landscape.core.files import Place
from landscape.model.parameters import match_state
from landscape.model.weight_files import load_weights
from landscape.problem.network import network_options
from landscape.problem.terms import Problem
from landscape.recipes.command import main_of, weights_from_environment
from landscape.recipes.data import REMEMBERED
from landscape.recipes.options import epochs_in_words, for_every_optimizer, make_settings, takes_loop_options
from landscape.recipes.training import Arrays, Trained, build_seeded, fit, training_of
from landscape.training.training import Training

PROBLEM = "landscape.recipes.gpt:problem"
INTERVALS = ((0, 1, 2, 3), (3, 4, 5))
BYTES = 256  # tokens of the vocabulary
CONTEXT = 128  # tokens of a sequence
HELD_OUT = 0.1  # of the text, its end


class TransformerBlock(nn.Module):
    """Causal self-attention and two dense layers, each after a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """States [N, T, width] → states of the same shape."""
        count, length, width = states.shape
        parts = self.attention(self.norm1(states)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.project(mixed.transpose(1, 2).reshape(count, length, width))
        return states + self.contract(F.gelu(self.expand(self.norm2(states))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Tokens [N, T] → logits [N, T, vocabulary]; the output head is the transposed embedding.

    Args:
        vocabulary: the number of different tokens.
        context: the longest sequence.
        width: of the states; a multiple of `heads`.
        depth: the number of blocks.
    """

    def __init__(
        self, vocabulary: int = BYTES, context: int = CONTEXT, width: int = 128, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([TransformerBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the token after each token."""
        states = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))  # type: ignore[no-any-return]


class NextByte(GPT):
    """The same network as training takes it: tokens [N, T] → logits [N, vocabulary, T], classes before places."""

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the token after each token."""
        return super().forward(tokens).transpose(1, 2)


def read_rows(text: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Training and held-out sequences of bytes, int64 [N, CONTEXT].

    Args:
        text: a file; default: the help on Python's topics, which every Python contains, 0.7 MB of English.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is too short.
    """
    if text is not None and not Path(text).is_file():
        raise NotFoundError(f"text: {quoted(str(text))} does not exist; name a file of text")
    topics = "\n".join(pydoc_data.topics.topics.values()).encode()
    content = topics if text is None else Path(text).read_bytes()
    rows = len(content) // CONTEXT
    if rows < 2:
        raise JobError(f"text: must have {2 * CONTEXT} bytes or more, not {len(content)}; give a longer one")
    tokens = torch.frombuffer(bytearray(content[: rows * CONTEXT]), dtype=torch.uint8).long().view(rows, CONTEXT)
    held_out = max(1, int(HELD_OUT * rows))
    return tokens[:-held_out], tokens[-held_out:]


@takes_loop_options(
    in_words={"intervals": for_every_optimizer(epochs_in_words(INTERVALS))}, optimizer="adam", of_optimizers={},
    batch_size=32, learning_rate=0.001, warmup_epochs=0.2, num_samples=256, landscape_size=21,
)  # fmt: skip
def train(run: Place | Training, text: str | Path | None = None, epochs: int = 5, **options: Any) -> Trained:
    """Train a GPT of 0.8 million weights on a text, with the collector at the epochs of `intervals`; minutes on a core.

    Args:
        run: the run's folder or URL, or a `Training`.
        text: a file of text; default: the help on Python's topics.
        epochs: passes over the text.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are `INTERVALS`, moved to end with it.

    Raises:
        NotFoundError: there is no such file.
        JobError: the text is too short, or the run was begun with other settings.
    """
    training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
    settings = make_settings(training, epochs, options, INTERVALS)
    recorded = {} if text is None else {REMEMBERED: str(Path(text).absolute())}
    data, held_out = (Arrays((rows[:, :-1], rows[:, 1:]), device=training.device) for rows in read_rows(text))
    report = options["report"]
    return fit(training, NextByte, data, held_out, settings, problem=PROBLEM, report=report, recorded=recorded)


def make_problem(text: str | Path | None = None, weights: str | Path | None = None, seed: int = 0) -> Problem:
    """The landscape's problem: the cross entropy of the next byte over the held-out text.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
    """
    model = build_seeded(GPT, seed)
    if weights is not None:
        state = match_state(model, load_weights(weights), f"weights {quoted(str(weights))}")
        model.load_state_dict(state, strict=False)  # the head's weight is that of the embedding
    return Problem.causal_lm(model.eval(), read_rows(text)[1])


def problem() -> Problem:
    """The callback `landscape.recipes.gpt:problem`; LANDSCAPE_WEIGHTS names a file of weights, if set."""
    text = network_options().get(REMEMBERED)
    return make_problem(text if isinstance(text, str) else None, weights_from_environment())


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
