"""What each rule of the default engine gains on the models of `landscape bench`, and how exact it is.

    python tests/measure/default_engine.py speed [--models lenet:256 resnet20:128 …] [--rounds 5] [--avx2]
    python tests/measure/default_engine.py values [--models …]

`speed` times, in turns and with one thread, the bare forward pass in batches of 256 and in the size that suits it best,
plain `eager` in batches of 256, the default of the rules, and this default without each of its rewrites, in the planned
batches, and computed one by one. A ratio is taken within a round; it is the median, with the lowest and the highest.
`values` compares the mean losses of the default, and of each of its rewrites by itself, with `eager` in float64.
`--avx2` keeps torch's kernels to AVX2, as on a processor without AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.bench.measure import describe_machine
from landscape.bench.problems import SYNTHETIC_MODELS, synthetic_job
from landscape.bench.yardsticks import Bare, Contestant, quotient, race
from landscape.compute.plans import make_evaluator, tuning_scope
from landscape.compute.prepare import prepare
from landscape.core.plan import OPTIONS, Engine
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import Candidate, KeptChoices
from landscape.evaluation.tuning.trials import Trials

MODELS = (
    "lenet:256", "lenet:2048", "resnet20:128", "resnet56:64", "resnet50:8", "mlp:64", "mlp:2048", "gpt:256",
    "transformer:256", "unet:64", "control-flow:2048", "tiny:16", "tiny:2048",
)  # fmt: skip
ROW = 40  # points
BATCH, BARE_BATCHES = 256, (32, 64, 128)
ONE_BY_ONE, PLANNED = "one by one", "batches"
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@dataclass
class Subject:
    """A model of the bench with its evaluator and the default of the rules."""

    name: str
    samples: int
    evaluator: Evaluator
    bare: Any
    default: Candidate
    row: np.ndarray

    def running(self, candidate: Candidate, **fields: Any) -> Evaluator:
        plan = replace(self.evaluator.plan, engine=candidate.engine, batch_size=candidate.batch_size, **fields)
        return self.evaluator.twin(plan)

    def without(self) -> Iterator[tuple[str, Candidate]]:
        """The default without each of its rules, by the name of the rule."""
        engine, size = self.default.engine, self.default.batch_size
        for name in OPTIONS:
            if name in engine.options:
                # Without the folded batch norms there may be nothing to fuse.
                needing = [other for other in engine.options if name in OPTIONS[other].along]
                yield name, Candidate(engine.without(name, *needing), size)
        if engine.stacks:
            yield ONE_BY_ONE, Candidate(Engine(), size)
        if size != min(BATCH, self.samples):
            yield PLANNED, Candidate(engine, min(BATCH, self.samples))


def subject(text: str) -> Subject:
    name, _, count = text.partition(":")
    samples = int(count or SYNTHETIC_MODELS[name].samples)
    prepared = prepare(synthetic_job(name, tempfile.mkdtemp(prefix="ll"), samples, ROW))
    landscape = prepared.landscapes[0]
    evaluator = make_evaluator(prepared, landscape)
    scope = replace(tuning_scope(prepared)[0], points=10_000)
    trials = Trials(evaluator.twin(evaluator.plan), landscape.grid, KeptChoices(None))
    plan = trials.measure(scope).plan
    bare = partial(Bare, prepared.problem, prepared.samples, device=evaluator.device)
    first, last = landscape.grid.coordinates
    row = np.array([[first[len(first) // 3], value] for value in last])
    return Subject(name, samples, evaluator, bare, Candidate(plan.engine, plan.batch_size), row)


def speeds(of: Subject, rounds: int, seconds: float) -> dict[str, Any]:
    plan, planned = of.evaluator.plan, min(BATCH, of.samples)
    contestants = []
    for size in sorted({min(each, of.samples) for each in (*BARE_BATCHES, BATCH)}):
        bare = of.bare(replace(plan, batch_size=size))
        contestants.append(Contestant(f"bare:{size}", bare.run))
    candidates = {"eager": Candidate(Engine(), planned), "default": of.default, **dict(of.without())}
    for name, candidate in candidates.items():
        evaluator = of.running(candidate)

        def run(count: int, evaluator: Evaluator = evaluator) -> None:
            evaluator.evaluate(np.resize(of.row, (count, 2)))

        # Whole rows, unless that takes long: then the shared part of a row weighs more than in a landscape.
        step = ROW if of.samples * of.evaluator.weights.parameters < 1 << 29 else 8
        contestants.append(Contestant(name, run, step if candidate.engine.shares_rows else candidate.engine.points))
    timed = race(contestants, rounds, seconds)
    best = min(
        (contestant.key for contestant in contestants if contestant.key.startswith("bare:")),
        key=lambda key: sum(each[key] for each in timed),
    )
    return {
        "model": of.name, "samples": of.samples, "engine": str(of.default.engine), "batch_size": of.default.batch_size,
        "over_bare": quotient(timed, f"bare:{planned}", "default"),
        "over_best_bare": quotient(timed, best, "default"), "best_bare": int(best.partition(":")[2]),
        "over_eager": quotient(timed, "eager", "default"),
        "rules": {name: quotient(timed, name, "default") for name, _ in of.without()},
    }  # fmt: skip


def values(of: Subject) -> dict[str, Any]:
    points = np.concatenate([ends_of(of), of.row[::8]])
    exact = of.running(Candidate(Engine(), of.default.batch_size), precision="float64").evaluate(points).mean["loss"]

    def off(candidate: Candidate) -> float:
        found = of.running(candidate).evaluate(points).mean["loss"]
        return float((np.abs(found - exact) / np.abs(exact)).max())

    options = of.default.engine.options
    # A layer whose batch norm is not folded may have nothing to fuse.
    alone = {name: Engine().adding(name, *(options & set(OPTIONS[name].along))) for name in OPTIONS if name in options}
    if of.default.engine.stacks:
        alone[ONE_BY_ONE] = of.default.engine
    size = of.default.batch_size
    return {
        "model": of.name, "samples": of.samples, "eager": off(Candidate(Engine(), size)), "default": off(of.default),
        "alone": {name: off(Candidate(engine, size)) for name, engine in alone.items()},
    }  # fmt: skip


def ends_of(of: Subject) -> np.ndarray:
    low, high = of.row[0], of.row[-1]
    return np.array([[0.0, 0.0], [low[1], low[1]], [high[1], high[1]]])


def ratio(each: dict[str, float]) -> str:
    return f"{each['median']:.2f} ({each['low']:.2f}–{each['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "values"))
    parser.add_argument("--models", nargs="+", default=MODELS, help="name:samples")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.2, help="seconds of each timing")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.avx2 and not AVX2.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-W", "ignore", *sys.argv], {**os.environ, **AVX2})
    torch.set_num_threads(1)
    machine = describe_machine("cpu")
    print(f"{machine['name']}, kernels for {torch.backends.cpu.get_cpu_capability()}, torch {machine['torch']}")
    found = []
    for text in given.models:
        of = subject(text)
        if given.what == "speed":
            each = speeds(of, given.rounds, given.slice)
            print(f"{text}: {each['engine']}, batches of {each['batch_size']}: {ratio(each['over_bare'])} of bare, "
                  f"{ratio(each['over_best_bare'])} of bare in batches of {each['best_bare']}, "
                  f"{ratio(each['over_eager'])} of eager")  # fmt: skip
            for name, gain in each["rules"].items():
                print(f"    {name}: {ratio(gain)}")
        else:
            each = values(of)
            alone = ", ".join(f"{name} {off:.1e}" for name, off in each["alone"].items())
            print(f"{text}: default {each['default']:.1e}, eager {each['eager']:.1e}; alone: {alone or 'none'}")
        sys.stdout.flush()
        found.append(each)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
