"""What pictures to an accuracy promise: coverage over other samples, canyons that are found, idle workers.

python tests/measure/accuracy_promises.py coverage [--repeats 200]
python tests/measure/accuracy_promises.py canyons
python tests/measure/accuracy_promises.py idle [--workers 8]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from landscape.evaluation.feed import growing_blocks
from landscape.surface.accuracy import KnownValues, Picture, first_round, judge, levels_of, next_round
from landscape.surface.nested_samples import Known

AT = 201  # points per axis of the true surface


def rises_of_network(samples: int = 4000) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The rises of every sample of a small trained network at points of a plane, and the function that gives them."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 6, generator=draw)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * torch.randn(samples, generator=draw) > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    step = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(300):
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step.step()
    start = [tensor.detach().clone() for tensor in model.parameters()]
    axes = []
    for seed in (1, 2):
        noise = torch.Generator().manual_seed(seed)
        tensors = [torch.randn(tensor.shape, generator=noise) for tensor in start]
        axes.append([d * w.norm() / d.norm() if w.dim() > 1 else 0 * d for d, w in zip(tensors, start, strict=True)])

    @torch.no_grad()
    def losses(point: np.ndarray) -> np.ndarray:
        for tensor, origin, a, b in zip(model.parameters(), start, *axes, strict=True):
            tensor.copy_(origin + float(point[0]) * a + float(point[1]) * b)
        return nn.functional.cross_entropy(model(x), y, reduction="none").double().numpy()

    origin = losses(np.zeros(2))
    return np.arange(samples), lambda points: np.stack([losses(point) - origin for point in points])


class Rounds:
    """The rounds of one picture over an order of the samples, by a function that gives all rises at points."""

    def __init__(self, rises: Callable[[np.ndarray], np.ndarray], order: np.ndarray) -> None:
        self.levels, self.order, self._rises = levels_of(2), order, rises
        self.ends = np.array([end for _, end in growing_blocks(len(order))])
        self.counts: dict[tuple[int, int], int] = {}
        self.costs: list[list[int]] = []
        self._known: dict[tuple[int, int], np.ndarray] = {}

    def evaluate(self, places: np.ndarray, blocks: np.ndarray) -> None:
        sizes = np.diff([0, *self.ends])
        self.costs.append(sizes[blocks].tolist())
        new = [place for place in dict.fromkeys(map(tuple, places.tolist())) if place not in self._known]
        if new:
            steps = self.levels.shape(self.levels.finest)[0] - 1
            coordinates = np.array(new)[:, ::-1] / steps * 2.0 - 1.0
            self._known |= dict(zip(new, self._rises(coordinates)[:, self.order], strict=True))
        for place, block in zip(map(tuple, places.tolist()), blocks.tolist(), strict=True):
            self.counts[place] = max(self.counts.get(place, 0), int(self.ends[block]))

    def picture(self) -> Picture:
        base = [tuple(place) for place in self.levels.places(0).tolist()]
        places = [*base, *(place for place in self.counts if place not in set(base))]
        known = Known([self._known[place][: self.counts[place]] for place in places], len(self.order))
        return judge(KnownValues(self.levels, np.array(places), [known], self.ends))

    def until(self, error: float) -> Picture:
        first = first_round(self.levels, self.ends)
        self.evaluate(first.places, first.blocks)
        while True:
            picture = self.picture()
            following = next_round(picture)
            if picture.error <= error * picture.relief or not len(following.blocks):
                return picture
            self.evaluate(following.places, following.blocks)


def coverage(repeats: int, accuracy: float) -> None:
    samples, rises = rises_of_network()
    levels = levels_of(2)
    every = levels.places(levels.finest)
    steps = levels.shape(levels.finest)[0] - 1
    cache: dict[bytes, np.ndarray] = {}

    def cached(points: np.ndarray) -> np.ndarray:
        for point in points:
            if point.tobytes() not in cache:
                cache[point.tobytes()] = rises(point[None])[0].astype(np.float32)
        return np.stack([cache[point.tobytes()] for point in points])

    truth = np.concatenate(
        [rises(part[:, ::-1] / steps * 2.0 - 1.0).mean(axis=1) for part in np.array_split(every, 400)]
    ).reshape(levels.shape(levels.finest))
    draw, within, inside, ratios = np.random.default_rng(0), 0, [], []
    for _ in range(repeats):
        rounds = Rounds(cached, draw.permutation(samples))
        picture = rounds.until(accuracy)
        off = np.abs(picture.rise - truth)
        true = np.percentile(off, 95)
        within += true <= picture.error
        ratios.append(true / picture.error)
        noise = np.hypot(picture.stderr, 0.6 * picture.interpolation)
        inside.append((off <= 1.96 * noise + 1e-9).mean())
    print(
        f"true error within the stated one in {within} of {repeats}; true over stated: mean {np.mean(ratios):.2f}, "
        f"95th percentile {np.percentile(ratios, 95):.2f}; intervals of two standard errors hold, averaged over "
        f"points: {100 * np.mean(inside):.1f} %"
    )


def canyons() -> None:
    for width in (0.05, 0.02, 0.01, 0.005):
        found = 0
        for number in range(20):
            draw = np.random.default_rng(number)
            offset, angle = draw.uniform(-0.8, 0.8), draw.uniform(0, np.pi)
            scales = np.exp(0.3 * draw.normal(size=2000))

            def rises(points: np.ndarray, offset=offset, angle=angle, scales=scales, width=width) -> np.ndarray:
                across = points @ np.array([np.cos(angle), np.sin(angle)]) - offset
                # Of a range of 2: full width at half depth.
                depth = np.exp(-4 * np.log(2) * np.square(across / (2 * width)))
                return (np.square(points).sum(axis=1) - 0.5 * depth)[:, None] * scales[None]

            rounds = Rounds(rises, draw.permutation(2000))
            picture = rounds.until(0.02)
            steps = picture.rise.shape[0] - 1
            along = np.linspace(-0.5, 0.5, 41)
            bottom = offset * np.array([np.cos(angle), np.sin(angle)]) + along[:, None] * np.array(
                [-np.sin(angle), np.cos(angle)]
            )
            bottom = bottom[(np.abs(bottom) <= 1).all(axis=1)]
            index = np.rint((bottom + 1) / 2 * steps).astype(int)
            shown = picture.rise[index[:, 1], index[:, 0]] - np.square(bottom).sum(axis=1) * scales.mean()
            found += np.median(shown) < -0.25 * scales.mean()
        print(f"canyon of {100 * width:g} % of the range's width: found in {found} of 20")


def idle(workers: int) -> None:
    """A round ends when its last task does; the longest are sent first, each to whichever worker is free."""
    samples, rises = rises_of_network()
    for per_round in (32, 64, 128):
        rounds = Rounds(rises, np.random.default_rng(0).permutation(samples))
        rounds.until(0.01)
        busy = whole = 0.0
        for costs in rounds.costs:
            chunk = max(1, -(-len(costs) // per_round))
            tasks = [sum(costs[start : start + chunk]) for start in range(0, len(costs), chunk)]
            free = [0.0] * workers
            for task in sorted(tasks, reverse=True):
                heapq.heappush(free, heapq.heappop(free) + task)
            busy, whole = busy + sum(tasks), whole + workers * max(free)
        print(f"{per_round} tasks a round, {workers} workers: idle {100 * (1 - busy / whole):.1f} % of the time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["coverage", "canyons", "idle"])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--accuracy", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "coverage":
        coverage(options.repeats, options.accuracy)
    elif options.what == "canyons":
        canyons()
    else:
        idle(options.workers)


if __name__ == "__main__":
    main()
