"""Six small networks of different kinds, trained in seconds: what a model, its data and its loss can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from landscape.recipes.resnet import ResNet
from studies.data import StudyData
from studies.settings import choose

TEXT = "the path that training takes through the loss of a network is a walk downhill on a surface of many dimensions "
PERIOD = 2 * torch.pi


@dataclass(frozen=True)
class Example:
    """A trained network with its data and its loss, as `landscape.plane` takes them."""

    model: nn.Module = field(repr=False)
    data: Any = field(repr=False)
    loss: Any


def _train(model: nn.Module, loss: Callable[[int], Tensor], steps: int, rate: float = 3e-3) -> nn.Module:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _batches(count: int, size: int, seed: int = 0) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda step: torch.randint(count, (size,), generator=generator)


def classifier(model: nn.Module, images: StudyData) -> Example:
    """A network that tells digits apart."""
    inputs, labels = images.inputs()
    batch = _batches(len(labels), 64)
    steps = choose(150, 10)

    def loss(step: int) -> Tensor:
        chosen = batch(step)
        return nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])

    return Example(_train(model, loss, steps), (inputs, labels), "cross_entropy")


def cnn(images: StudyData) -> Example:
    """Two convolutions and a linear layer."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(4)]
    return classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 2 * 2, 10)), images)


class Grey(nn.Module):
    """A network of coloured images, given grey ones."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for images [n, 1, height, width]."""
        outputs: Tensor = self.network(x.expand(-1, 3, -1, -1))
        return outputs


def resnet(images: StudyData) -> Example:
    """A ResNet of eight layers, with batch norm."""
    torch.manual_seed(0)
    return classifier(Grey(ResNet(8)), images)


class GPT(nn.Module):
    """Two blocks of causal attention over characters; the output shares its matrix with the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits [n, length, vocabulary] of each next character."""
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        logits: Tensor = self.head(self.blocks(self.words(tokens) + self.places(torch.arange(length)), mask))
        return logits


def _characters(length: int = 32) -> tuple[Tensor, int]:
    known = sorted(set(TEXT))
    numbers = torch.tensor([known.index(letter) for letter in TEXT * 4])
    return numbers.unfold(0, length, 3), len(known)


def gpt() -> Example:
    """A language model of characters."""
    torch.manual_seed(0)
    tokens, vocabulary = _characters()
    model, batch = GPT(vocabulary, tokens.shape[1]), _batches(len(tokens), 16)

    def loss(step: int) -> Tensor:
        chosen = tokens[batch(step)]
        return nn.functional.cross_entropy(model(chosen)[:, :-1].flatten(0, 1), chosen[:, 1:].flatten())

    return Example(_train(model, loss, choose(200, 5)), tokens, "causal_lm")


def residuals(model: nn.Module, batch: tuple[Tensor]) -> dict[str, Tensor]:
    """The squared residuals of u″ = −u with u(0) = 0 and u′(0) = 1, whose solution is the sine."""
    with torch.enable_grad():
        x = batch[0].detach().requires_grad_()
        u = model(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        start = torch.zeros(1, 1, requires_grad=True)
        at_start = model(start)
        slope_at_start = torch.autograd.grad(at_start.sum(), start, create_graph=True)[0]
    equation = (bend + u).square().squeeze(1)
    edge = (at_start.square() + (slope_at_start - 1).square()).squeeze()
    return {"loss": equation + edge, "equation": equation}


def pinn() -> Example:
    """A physics-informed network, whose loss needs derivatives by its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    x = torch.linspace(0, PERIOD, 200)[:, None]
    return Example(_train(model, lambda step: residuals(model, (x,))["loss"].mean(), choose(600, 5)), (x,), residuals)


class GraphNetwork(nn.Module):
    """Two rounds of messages along edges, then the mean over the nodes of each graph."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, count: int) -> Tensor:
        """The logits [count, 2] of graphs whose nodes [nodes, 1] and edges [2, edges] stand one after another."""
        x = nodes
        for layer in (self.first, self.second):
            x = torch.tanh(layer(x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])))
        sums = torch.zeros(count, x.shape[1], dtype=x.dtype).index_add(0, graph, x)
        logits: Tensor = self.out(sums / torch.bincount(graph, minlength=count)[:, None])
        return logits


def _make_graphs(count: int) -> list[tuple[Tensor, Tensor, int]]:
    """Rings, and paths, of 4 to 9 nodes; each node knows its degree."""
    made = []
    for number in range(count):
        size, ring = 4 + number % 6, number // 6 % 2
        there = torch.arange(size if ring else size - 1)
        edges = torch.stack([there, (there + 1) % size])
        edges = torch.cat([edges, edges.flip(0)], 1)
        made.append((torch.bincount(edges[0], minlength=size)[:, None].float(), edges, ring))
    return made


def collate_graphs(graphs: list[tuple[Tensor, Tensor, int]]) -> dict[str, Tensor]:
    """Graphs of different sizes as one with several parts."""
    sizes = torch.tensor([len(nodes) for nodes, _, _ in graphs])
    starts = torch.cumsum(sizes, 0) - sizes
    return {
        "nodes": torch.cat([nodes for nodes, _, _ in graphs]),
        "edges": torch.cat([edges + start for (_, edges, _), start in zip(graphs, starts, strict=True)], 1),
        "graph": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "ring": torch.tensor([ring for _, _, ring in graphs]),
    }


def of_graphs(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each graph."""
    logits = model(batch["nodes"], batch["edges"], batch["graph"], len(batch["ring"]))
    return nn.functional.cross_entropy(logits, batch["ring"], reduction="none")


def graph_network() -> Example:
    """A network that tells rings from paths, its data in a DataLoader."""
    torch.manual_seed(0)
    graphs, model = _make_graphs(240), GraphNetwork()
    loader: DataLoader[Any] = DataLoader(graphs, batch_size=24, collate_fn=collate_graphs)  # type: ignore[arg-type]
    whole = collate_graphs(graphs)
    return Example(_train(model, lambda step: of_graphs(model, whole).mean(), choose(300, 5)), loader, of_graphs)


class LowRank(nn.Module):
    """A frozen linear layer and the trained product of two small matrices (Hu et al. 2021)."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of both together."""
        outputs: Tensor = self.frozen(x) + x @ self.down.T @ self.up.T
        return outputs


def lora(images: StudyData) -> Example:
    """A classifier whose hidden layer is frozen, and adapted by matrices of rank 4: only these are moved."""
    torch.manual_seed(0)
    size = images.inputs()[0][0].numel()
    hidden, out = nn.Linear(size, 64), nn.Linear(64, 10)
    return classifier(nn.Sequential(nn.Flatten(), LowRank(hidden), nn.ReLU(), LowRank(out)), images)


def titles() -> Iterable[str]:
    """What pictures call the six, in their order."""
    return ("CNN", "ResNet-8 with batch norm", "GPT", "physics-informed", "graph network", "LoRA")
