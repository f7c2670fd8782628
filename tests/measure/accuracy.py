"""What a picture to an accuracy costs against fixed grids and refined ones of the same true error, on four networks.

    python tests/measure/accuracy.py FOLDER lenet | resnet20 | gpt | physics [--accuracy 8% 4% 2% 1%] [--points 400]
    python tests/measure/accuracy.py FOLDER figure --out docs/howto/accuracy-costs.png

The true error is that of the rise at random points off the grid, over all samples of the problem. Fixed grids have 5,
7, 9, 13, 17 or 25 points per axis, and numbers of samples in steps of √2; they are interpolated by the same polynomials
of degree 5, and their samples are paired with those of the origin. Refined landscapes have 2,048 samples, or all. What
FOLDER holds already is not computed again; the figure is drawn from what it holds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plotly.subplots import make_subplots
from scipy.interpolate import RegularGridInterpolator
from torch import nn

from landscape import Job, Problem, run
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.recipes import cifar10
from landscape.recipes.data import read_mnist
from landscape.recipes.lenet import LeNet5
from landscape.recipes.mnist import network_input

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SIZES = (5, 7, 9, 13, 17, 25)  # of fixed grids: parts of one of 49
FINEST = 49
DRAWS = 5  # of the order of samples, over which the error of a fixed grid is averaged


def lenet(folder: Path, data: Path) -> Problem:
    x, labels = network_input(read_mnist(data, "test"), "resize")
    torch.manual_seed(0)
    model = LeNet5()

    def train() -> None:
        step = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        draw = torch.Generator().manual_seed(0)
        for _ in range(4):
            for rows in torch.randperm(7000, generator=draw).split(64):
                step.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
                step.step()

    trained(model, folder / "lenet.pt", train)
    return Problem.supervised(model, (x, labels), nn.CrossEntropyLoss(), metrics=["accuracy"])


def resnet20(folder: Path, data: Path) -> Problem:
    images, weights = data / "cifar10-test-2048.npz", data / "resnet20-cifar10.safetensors"
    return cifar10.make_problem(images, weights, split="test")


class Characters(nn.Module):
    """A transformer of two layers over bytes."""

    def __init__(self, context: int = 48, width: int = 64) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = self.bytes(tokens) + self.places(torch.arange(length))
        return self.out(self.layers(states, mask=later, is_causal=True))


def gpt(folder: Path, data: Path) -> Problem:
    from pydoc_data.topics import topics

    text = "\n".join(topics.values()).encode("ascii", "replace")
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: len(rows) // 48 * 48].view(-1, 48)
    torch.manual_seed(0)
    model = Characters()

    def train() -> None:
        step = torch.optim.AdamW(model.parameters(), 2e-3)
        draw = torch.Generator().manual_seed(0)
        for _ in range(1200):
            batch = rows[torch.randint(len(rows), (32,), generator=draw)]
            step.zero_grad()
            nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            step.step()

    trained(model, folder / "gpt.pt", train)
    return Problem.causal_lm(model, rows[:2048])


def slope(values: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0]


def burgers(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
    u = model(points)
    first = slope(u, points)
    return (first[:, :1] + u * first[:, 1:] - 0.01 / np.pi * slope(first[:, 1:], points)[:, 1:]).square()


def beginning(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
    return (model(points) + torch.sin(np.pi * points[:, 1:])).square()


def edge(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
    return model(points).square()


def physics(folder: Path, data: Path) -> Problem:
    draw = torch.Generator().manual_seed(0)
    inside = torch.rand(10_000, 2, generator=draw) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    first = torch.stack([torch.zeros(200), torch.linspace(-1, 1, 200)], 1)
    sides = torch.stack([torch.rand(100, generator=draw), torch.ones(100)], 1)
    sides[::2, 1] = -1
    terms = {"interior": (inside, burgers, 1.0), "initial": (first, beginning, 10.0), "boundary": (sides, edge, 10.0)}
    torch.manual_seed(0)
    hidden = [nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh()]
    model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), *hidden, nn.Linear(20, 1))

    def train() -> None:
        step = torch.optim.Adam(model.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step, 4000)
        for number in range(4000):
            rows = slice(2000 * (number % 5), 2000 * (number % 5 + 1))
            batches = {"interior": inside[rows], "initial": first, "boundary": sides}
            losses = [
                weight * function(model, batches[name].clone().requires_grad_()).mean()
                for name, (_, function, weight) in terms.items()
            ]
            step.zero_grad()
            torch.stack(losses).sum().backward()
            step.step()
            schedule.step()

    trained(model, folder / "physics.pt", train)
    return Problem.terms(model, terms)


NETWORKS = {"lenet": lenet, "resnet20": resnet20, "gpt": gpt, "physics": physics}
RANGES = {"physics": 0.5}


def trained(model: nn.Module, file: Path, train: Callable[[], None]) -> None:
    """Load the weights of a model; train it first if there are none."""
    if not file.exists():
        train()
        torch.save(model.state_dict(), file)
    model.load_state_dict(torch.load(file))


def lagrange(size: int, at: np.ndarray) -> np.ndarray:
    """The coefficients [points, size] of polynomials of degree 5 through the nearest of `size` values over [0, 1]."""
    matrix, width, steps = np.zeros((len(at), size)), min(6, size), at * (size - 1)
    for row, place in enumerate(steps):
        first = int(np.clip(np.floor(place) - width // 2 + 1, 0, size - width))
        nodes = np.arange(first, first + width)
        for node in nodes:
            others = nodes[nodes != node]
            matrix[row, node] = np.prod((place - others) / (node - others))
    return matrix


def job_of(network: str, folder: Path, data: Path, **spec: Any) -> Job:
    reach = RANGES.get(network, 1.0)
    landscape = {"name": "picture", "range": [-reach, reach], **spec}
    problem = partial(NETWORKS[network], folder, data)
    return Job(run=str(folder / network), problem=problem, device="cpu", threads=1, landscapes=[landscape])


def rises_at(name: str, folder: Path, data: Path, points: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
    """The rise of every sample at points over [−1, 1], of each term of the loss, and the terms' factors."""
    prepared = prepare(job_of(name, folder, data, accuracy="50%"))
    landscape = prepared.landscapes[0]
    evaluator = make_evaluator(prepared, landscape)
    terms = landscape.record.terms
    parts: dict[str, list[np.ndarray]] = {}
    reach = RANGES.get(name, 1.0)
    whole = range(len(evaluator.block_ends))
    for start in range(0, len(points), 32):
        (values,) = evaluator.evaluate_blocks([(points[start : start + 32] * reach, whole)])
        kept = values.of_terms or {"loss": values.samples}
        for term, samples in kept.items():
            parts.setdefault(term, []).append(samples.losses)
    return [np.concatenate(part) for part in parts.values()], [terms[term].weight if terms else 1.0 for term in parts]


def costs_of_fixed(
    of_grid: dict[tuple[int, int], int], terms: list[np.ndarray], factors: list[float], at: np.ndarray,
    truth: np.ndarray, least: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """The true errors and costs of fixed grids: of each size, of more and more samples until it is off by `least`."""
    draw, most, found = np.random.default_rng(0), max(term.shape[1] for term in terms), list[dict[str, Any]]()
    orders = [[draw.permutation(term.shape[1]) for term in terms] for _ in range(DRAWS)]
    for size in SIZES:
        stride = (FINEST - 1) // (size - 1)
        places = [(i * stride, j * stride) for i in range(size) for j in range(size)]
        if not all(place in of_grid for place in places):
            continue
        rows = [of_grid[place] for place in places]
        matrices = [lagrange(size, (at[:, axis] + 1) / 2) for axis in (0, 1)]
        samples = 64.0
        while True:
            count = min(most, int(samples))
            off = []
            for order in orders:
                means = sum(
                    factor * term[rows][:, chosen[: min(count, term.shape[1])]].mean(axis=1)
                    for factor, term, chosen in zip(factors, terms, order, strict=True)
                )
                shown = np.einsum("pa,pb,ab->p", *matrices, means.reshape(size, size))
                off.append(np.percentile(np.abs(shown - truth), 95))
            cost, error = count * (size**2 + 1), float(np.mean(off))
            found.append({"evaluations": cost, "error": error, "size": size, "samples": count})
            if error <= least or count == most:
                break
            samples *= np.sqrt(2)
        print(f"  fixed {size} × {size}, {count} samples: {error:.4g}", flush=True)
    return found


def beside_peers(
    problem: Problem, of_grid: dict[tuple[int, int], int], means: np.ndarray, at: np.ndarray, truth: np.ndarray,
    accurate: list[dict[str, Any]],
) -> dict[str, float]:  # fmt: skip
    """Public tools evaluate every sample at every point of a grid, and draw straight lines between: what that costs.

    The size of the grid follows from the largest measured one, as the error falls with the square of the step; its
    seconds are those of bare forward passes in the batches that are quickest, which no such tool undercuts.
    """
    picture, spent = accurate[-1], sum(one["seconds"] for one in accurate)
    size = max(size for size in SIZES if (FINEST - 1) // (size - 1) and (0, (FINEST - 1) // (size - 1)) in of_grid)
    stride, axis = (FINEST - 1) // (size - 1), np.linspace(-1, 1, size)
    values = np.array([[means[of_grid[i * stride, j * stride]] for j in range(size)] for i in range(size)])
    error = float(np.percentile(np.abs(RegularGridInterpolator((axis, axis), values)(at) - truth), 95))
    wanted = 1 + math.ceil((size - 1) * math.sqrt(error / picture["error"]))
    seconds = wanted**2 * picture["population"] * min(seconds_of_bare(problem, batch) for batch in (32, 64, 128, 512))
    return {"size": wanted, "seconds": seconds, "ratio": seconds / spent}


def first_of(problem: Problem, count: int) -> list[torch.Tensor]:
    """The inputs and the targets of the first samples."""
    data = problem.data
    if isinstance(data, tuple):
        return [part[:count] for part in data]
    return torch.utils.data.default_collate([data[number] for number in range(min(count, len(data)))])


@torch.no_grad()
def seconds_of_bare(problem: Problem, batch: int) -> float:
    """Seconds for one sample of forward passes with their losses, the least of three times."""
    model, rows = problem.model.eval(), first_of(problem, 1024)
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        for start in range(0, len(rows[0]), batch):
            problem.observe(model, tuple(part[start : start + batch] for part in rows))
        times.append((time.perf_counter() - begun) / len(rows[0]))
    return min(times[1:])


def shown_at(surface: Any, at: np.ndarray, reach: float) -> np.ndarray:
    """The rise that a picture shows at points over [−1, 1], linear between the points of its grid."""
    axes = (surface.alpha / reach, surface.beta / reach)
    return RegularGridInterpolator(axes, (surface.loss - surface.origin_loss).T)(at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("network", choices=[*NETWORKS, "figure"])
    parser.add_argument("--accuracy", nargs="+", default=["8%", "4%", "2%", "1%"])
    parser.add_argument("--tolerance", nargs="*", default=["16%", "8%", "4%", "2%"], help="of refined landscapes")
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=Path("accuracy-costs.png"))
    options = parser.parse_args()
    if options.network == "figure":
        draw(options.folder, options.out)
        return
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    measure(options)


def measure(options: argparse.Namespace) -> None:
    """Compute the pictures of one network, compare them with the truth, and write what is found."""
    name, cache = options.network, options.folder / f"{options.network}.npz"
    job, reach = partial(job_of, name, options.folder, options.data), RANGES.get(name, 1.0)
    places = sorted({
        (i, j) for size in options.sizes
        for i in range(0, FINEST, (FINEST - 1) // (size - 1)) for j in range(0, FINEST, (FINEST - 1) // (size - 1))
    })  # fmt: skip
    at = np.random.default_rng(1).uniform(-1, 1, (options.points, 2))
    if not cache.exists():
        grid = np.array(places) / (FINEST - 1) * 2 - 1
        terms, factors = rises_at(name, options.folder, options.data, np.concatenate([grid, at]))
        np.savez(cache, factors=factors, **{f"term{k}": term for k, term in enumerate(terms)})
    kept = np.load(cache)
    factors = kept["factors"].tolist()
    terms = [kept[f"term{k}"].astype(np.float64) for k in range(len(factors))]
    truth = sum(factor * term[len(places) :].mean(axis=1) for factor, term in zip(factors, terms, strict=True))
    relief, refined, file = float(np.subtract(*np.percentile(truth, [95, 5]))), [], options.folder / f"{name}.json"
    accurate = json.loads(file.read_text())["accurate"] if file.exists() else []
    for asked in [asked for asked in options.accuracy if asked not in {picture["asked"] for picture in accurate}]:
        begun = time.perf_counter()
        surface = run(job(accuracy=asked))["picture"]
        seconds, record = time.perf_counter() - begun, surface.record.accuracy
        error = float(np.percentile(np.abs(shown_at(surface, at, reach) - truth), 95))
        accurate.append({
            "asked": asked, "stated": record.reached, "evaluations": record.evaluations, "points": record.points,
            "error": error, "seconds": seconds, "population": record.population,
        })  # fmt: skip
        print(f"{name}: {record.text}, {seconds:.1f} s; true {error / relief:.3%} of the relief", flush=True)
        file.write_text(json.dumps({"accurate": accurate}))
    for tolerance in options.tolerance:
        samples = min(2048, accurate[0]["population"])
        spec = {"name": f"refined-{tolerance.strip('%')}", "size": 9, "refine": {"tolerance": tolerance}}
        merged = run(job(**spec).replace(num_samples=samples))[spec["name"]].merged()
        points = int((merged.interpolated == 0).sum())
        error = float(np.percentile(np.abs(shown_at(merged, at, reach) - truth), 95))
        refined.append({"asked": tolerance, "evaluations": (points + 1) * samples, "points": points, "error": error})
        print(f"  refined to {tolerance}: {points} points, {samples} samples, {error / relief:.3%}", flush=True)
    of_grid = dict(zip(places, range(len(places)), strict=True))
    fixed = costs_of_fixed(of_grid, terms, factors, at, truth, min(picture["error"] for picture in accurate))
    for picture in accurate:
        best = min(
            (one for one in fixed if one["error"] <= picture["error"]), key=lambda one: one["evaluations"], default=None
        )
        picture |= {"best": best, "ratio": None if best is None else picture["evaluations"] / best["evaluations"]}
        print(json.dumps(picture), flush=True)
    if name in ("lenet", "resnet20"):
        means = sum(factor * term.mean(axis=1) for factor, term in zip(factors, terms, strict=True))
        problem = NETWORKS[name](options.folder, options.data)
        accurate[-1]["peers"] = beside_peers(problem, of_grid, means, at, truth, accurate)
        print(json.dumps(accurate[-1]["peers"]), flush=True)
    found = {"network": name, "relief": relief, "accurate": accurate, "refined": refined, "fixed": fixed}
    file.write_text(json.dumps(found))


def frontier(costs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that no cheaper one undercuts, the cheapest first."""
    best, least = [], np.inf
    for one in sorted(costs, key=lambda one: one["evaluations"]):
        if one["error"] < least:
            least = one["error"]
            best.append(one)
    return best


TITLES = {
    "lenet": "LeNet-5, MNIST",
    "resnet20": "ResNet-20, CIFAR-10",
    "gpt": "small GPT",
    "physics": "physics-informed",
}
WAYS = {
    "fixed": ("best fixed grid", "#6b7280", "dot"), "refined": ("refinement", "#d97706", "dash"),
    "accurate": ("accuracy", "#1d4ed8", "solid"),
}  # fmt: skip


def draw(folder: Path, out: Path) -> None:
    """Error over cost of all networks that the folder holds, one beside the other."""
    names = [name for name in TITLES if (folder / f"{name}.json").exists()]
    figure = make_subplots(1, len(names), subplot_titles=[TITLES[name] for name in names], shared_yaxes=True)
    for column, name in enumerate(names, 1):
        found = json.loads((folder / f"{name}.json").read_text())
        for way, (title, colour, dash) in WAYS.items():
            costs = frontier(found[way]) if way == "fixed" else found[way]
            figure.add_scatter(
                x=[one["evaluations"] for one in costs], y=[100 * one["error"] / found["relief"] for one in costs],
                name=title, mode="lines+markers", line={"color": colour, "dash": dash, "width": 2}, marker={"size": 6},
                legendgroup=way, showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(type="log", title="evaluations", dtick=1, exponentformat="power")
    figure.update_yaxes(type="log", tickvals=[0.5, 1, 2, 5, 10, 20, 50], range=[-0.4, 1.7])
    figure.update_yaxes(title="true error, % of the relief", col=1)
    figure.update_layout(
        template="plotly_white", width=280 * len(names) + 60, height=380, margin={"l": 60, "r": 20, "t": 40, "b": 95},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.28}, font={"size": 12},
    )  # fmt: skip
    figure.write_image(out, scale=1.5)


if __name__ == "__main__":
    main()
