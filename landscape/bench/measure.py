"""One job measured on this machine without a cluster: every engine and precision beside the bare forward pass."""

from __future__ import annotations

import math
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.bench.options import BenchOptions
from landscape.bench.yardsticks import (
    EAGER,
    Bare,
    Ceiling,
    Contestant,
    SameEngine,
    Seconds,
    SettingWeights,
    bare_observe,
    copy_ceiling,
    distance,
    matmul_ceiling,
    memory_of,
    quotient,
    race,
    typical,
    work_of,
)
from landscape.compute.landscape_context import in_memory
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import JobError, one_line
from landscape.core.grid import Floats, Grid, Tile
from landscape.core.plan import Engine, Precision
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Values
from landscape.evaluation.tuning.choices import Limits, Trial, Tuned, TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.evaluation.tuning.search import row_points
from landscape.evaluation.tuning.trials import probe_points
from landscape.job.job import Job
from landscape.problem.user_code import in_folder

# ----------------------------------------------------------------------------------------------------
# What is reported beside the times: the machine, the agreement with float32, the distance to the ceilings.


def describe_machine(device: str) -> dict[str, Any]:
    """The name of the processor or GPU that is measured, the machine's cores, and the versions of torch and Python."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": device, "name": name, "cores": os.cpu_count(), **versions}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def system_load() -> float | None:
    """How many processes have wanted a core over the last minute: a figure from a busy machine is a lower bound."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def agreement(found: Values, exact: Values) -> dict[str, dict[str, float | None]]:
    """How far each observable is from eager float32: max |Δ|, and max |Δ|/|exact|; None where not finite."""
    differences = {}
    for name, expected in exact.mean.items():
        off = np.abs(found.mean[name] - expected)
        relative = off / np.maximum(np.abs(expected), np.finfo(np.float64).tiny)
        differences[name] = {"max_abs": _finite(off), "max_rel": _finite(relative)}
    return differences


def _finite(values: Floats) -> float | None:
    return float(values.max()) if np.isfinite(values).all() else None


def distances(
    ceilings: Sequence[Ceiling], rounds: Sequence[Seconds], bare: tuple[str, Bare], forwards: Mapping[str, str]
) -> dict[str, Any]:
    """The ceilings of this run, and how far the bare pass and the engines' forward passes stay below them.

    Args:
        bare: its key among the rounds, and itself.
        forwards: engine → key among the rounds.
    """
    flops, bandwidth = (each.work / typical(rounds, each.contestant.key) for each in ceilings)
    work = work_of(bare[1])
    return {
        "flops_per_second": flops,
        "bytes_per_second": bandwidth,
        "point": work,
        "bare": distance(work, typical(rounds, bare[0]), flops, bandwidth),
        "forwards": {
            engine: distance(work, typical(rounds, key), flops, bandwidth) for engine, key in forwards.items()
        },
    }


# ----------------------------------------------------------------------------------------------------

MEMORY_POINTS = 3
TILE_POINTS = 64
BARE_EVERY = 10  # points of a whole grid per bare pass beside it


def bench(job: Job, options: BenchOptions) -> dict[str, Any]:
    """The first landscape of the job, measured; plain data. Nothing is written."""
    prepared = prepare(job)
    landscape = prepared.landscapes[0]
    device, precisions = landscape.plan.device, options.precisions
    if not precisions:
        precisions = ("float32", "bfloat16") + (("tf32",) if device == "cuda" else ())
        precisions += () if job.precision in precisions else (job.precision,)
    if options.full and job.precision not in precisions:
        raise JobError(f"precision: the whole grid is evaluated in the job's own, {job.precision}; measure that too")
    load_before = system_load()
    _, alone = bare_observe(prepared.problem)
    with in_folder(prepared.folder):
        measured = [_Bench(prepared, landscape, each, options).measure() for each in precisions]
    return {
        "machine": describe_machine(device),
        "landscape": landscape.name,
        "points": landscape.grid.points,
        "num_samples": landscape.record.num_samples,
        "parameters": sum(each.numel() for each in prepared.problem.model.parameters()),
        "bare": "model(inputs)" if alone else "observe(model, batch), as it is not Problem.supervised",
        "rounds": options.rounds,
        "precisions": measured,
        "load": [load_before, system_load()],
    }


@dataclass
class _Row:
    """One engine in one batch size."""

    engine: Engine
    batch_size: int
    row: int
    chosen: bool = False
    evaluator: Evaluator | None = None
    failed: str = ""

    @property
    def step(self) -> int:
        """The points that are computed together: those of a stack, or of a tile's row."""
        return self.row if self.engine.shares_rows else self.engine.points


class _Bench:
    """All engines of one precision. Contestants are named `ours:0`, `forward:0`, `bare:256`, `setting:0`, …"""

    def __init__(
        self, prepared: PreparedJob, landscape: PreparedLandscape, precision: Precision, options: BenchOptions
    ) -> None:
        self._problem, self._samples = in_memory(prepared.problem), prepared.samples
        self._grid = landscape.grid
        self._origin, self._axes = landscape.origin, [each.tensors for each in landscape.directions]
        self._options, self._precision, self._job = options, precision, prepared.job
        plan = replace(landscape.plan, precision=precision, engine=EAGER)
        self._evaluator = make_evaluator(prepared, replace(landscape, plan=plan))
        self._device = self._evaluator.device
        points = middle_points(landscape.grid, TILE_POINTS)
        self._points = points[np.lexsort(points.T[::-1])]  # row by row, as an evaluator takes them

    def measure(self) -> dict[str, Any]:
        """All engines of this precision as plain data: rates, ratios to the bare pass, memory, the engine chosen."""
        tuned = self._tune()
        rows = self._rows(tuned)
        contestants, bares, ceilings = self._contestants(rows)
        rounds = race(contestants, self._options.rounds, self._options.slice_seconds, self._report)
        measured: dict[str, Any] = {
            "precision": self._precision,
            "chosen": {"engine": str(tuned.plan.engine), "batch_size": tuned.plan.batch_size},
            "search": [each.refused for each in tuned.trials if each.refused],
            "bare": {str(size): self._rate(typical(rounds, f"bare:{size}")) for size in bares},
            "engines": self._engines(rows, rounds),
            "setting": self._settings(rows, rounds),
            "precision_error": tuned.precision_error,
        }
        if ceilings:
            size, bare = next(iter(bares.items()))
            forwards = {str(row.engine): f"forward:{k}" for k, row in enumerate(rows) if row.evaluator is not None}
            measured["ceilings"] = distances(ceilings, rounds, (f"bare:{size}", bare), forwards)
        if self._options.memory:
            measured["memory"] = [
                self._memory(row, row.evaluator, bares)
                for row in rows
                if row.evaluator is not None and self._counts_memory(row)
            ]
        if self._options.full and self._precision == self._job.precision:
            measured["full"] = self._full(tuned, bares[tuned.plan.batch_size])
        return measured

    def _report(self, text: str) -> None:
        self._options.report(f"{self._precision}: {text}")

    # -- contestants -----------------------------------------------------------------------------------------

    def _tune(self) -> Tuned:
        """The engine that a run of this job would choose, or one that is found in the time given."""
        options, axes = self._options, len(self._grid.shape)
        asked = None if self._job.engine == "auto" else Engine.parse(self._job.engine)
        points, limits, budget = self._grid.points, Limits(), options.search_seconds
        if budget is not None:  # whatever a point costs when it is measured again
            limits = Limits(share=math.inf, shortest=budget, longest=budget) if budget else Limits(share=0.0)
        scope = TuningScope(asked, self._job.batch_size is None, points)
        if options.engines:
            scope, limits = TuningScope(self._evaluator.plan.engine, False, 0), Limits()
        self._report("measuring a point, looking for better engines")
        tuned = tune(self._evaluator, self._grid, scope, limits=limits)
        self._row = min(row_points(tuned.seconds_per_point, axes), round(TILE_POINTS ** (1 / axes)))
        return tuned

    def _rows(self, tuned: Tuned) -> list[_Row]:
        """Plain eager first, then every engine in the batches that suit it best."""
        plan = self._evaluator.plan
        timed = [trial.batch_size for trial in tuned.trials if not trial.refused]
        first = replace(plan, batch_size=timed[0] if timed else tuned.plan.batch_size)
        best: dict[Engine, Trial] = {}
        for trial in tuned.trials:
            if not trial.refused and (trial.samples_per_second or 0) > _speed(best.get(trial.engine)):
                best[trial.engine] = trial
        pairs = [(EAGER, first.batch_size), *((engine, trial.batch_size) for engine, trial in best.items())]
        pairs += [(engine, plan.batch_size) for engine in self._options.engines]
        pairs.append((tuned.plan.engine, tuned.plan.batch_size))
        unique = {pair: _Row(*pair, self._row) for pair in pairs}
        for row in unique.values():
            row.chosen = (row.engine, row.batch_size) == (tuned.plan.engine, tuned.plan.batch_size)
        return list(unique.values())

    def _contestants(self, rows: list[_Row]) -> tuple[list[Contestant], dict[int, Bare], list[Ceiling]]:
        """The contestants that run; the reason why an engine fails is noted in its row."""
        plan = self._evaluator.plan
        sizes = dict.fromkeys(row.batch_size for row in rows)
        bares = {
            size: Bare(self._problem, self._samples, replace(plan, batch_size=size), self._device) for size in sizes
        }
        contestants = [Contestant(f"bare:{size}", bare.run) for size, bare in bares.items()]
        for k, row in enumerate(rows):
            self._report(f"setting up {row.engine} in batches of {row.batch_size}")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # what an engine thinks of the model
                    of_row = self._contestants_of(k, row)
                    for contestant in of_row:
                        contestant.run(contestant.step)
            except Exception as error:
                row.evaluator, row.failed = None, one_line(error)[:200]
            else:
                contestants += of_row
        ceilings = []
        if self._options.ceilings:
            ceilings = [
                matmul_ceiling("matmul", plan, self._device), copy_ceiling("copy", plan, self._device)
            ]  # fmt: skip
        return contestants + [ceiling.contestant for ceiling in ceilings], bares, ceilings

    def _contestants_of(self, k: int, row: _Row) -> list[Contestant]:
        plan = replace(self._evaluator.plan, engine=row.engine, batch_size=row.batch_size)
        row.evaluator = self._evaluator.twin(plan)
        forward = SameEngine(self._problem, self._samples, plan, self._device, self._axes)
        contestants = [
            Contestant(f"ours:{k}", partial(self._evaluate, row.evaluator), row.step),
            Contestant(f"forward:{k}", forward.run, row.step),
        ]
        if not row.engine.stacks and (row.chosen or row.engine == EAGER):
            setting = SettingWeights(self._problem, plan, self._device, self._origin, self._axes, self._points)
            contestants.append(Contestant(f"setting:{k}", setting.run))
        return contestants

    def _evaluate(self, evaluator: Evaluator, count: int) -> None:
        evaluator.evaluate(np.resize(self._points, (count, self._points.shape[1])))

    # -- what came out ----------------------------------------------------------------------------------------

    def _rate(self, seconds: float) -> dict[str, float]:
        return {
            "seconds_per_point": seconds, "points_per_second": 1 / seconds,
            "samples_per_second": self._evaluator.samples / seconds,
        }  # fmt: skip

    def _engines(self, rows: Sequence[_Row], rounds: Sequence[Seconds]) -> list[dict[str, Any]]:
        points = probe_points(self._grid)
        exact = self._evaluator.twin(
            replace(self._evaluator.plan, precision="float32", engine=EAGER, batch_size=rows[0].batch_size)
        ).evaluate(points)
        entries = []
        for k, row in enumerate(rows):
            entry: dict[str, Any] = {"engine": str(row.engine), "batch_size": row.batch_size, "chosen": row.chosen}
            if row.evaluator is None:
                entries.append(entry | {"failed": row.failed})
                continue
            entry |= self._rate(typical(rounds, f"ours:{k}"))
            entry |= {
                "efficiency": quotient(rounds, f"bare:{row.batch_size}", f"ours:{k}"),
                "efficiency_same_engine": quotient(rounds, f"forward:{k}", f"ours:{k}"),
                "forward_seconds": typical(rounds, f"forward:{k}"),
                "agreement": agreement(row.evaluator.evaluate(points), exact),
            }
            if rows[0].evaluator is not None:
                entry["over_eager"] = quotient(rounds, "ours:0", f"ours:{k}")
            entries.append(entry)
        return entries

    def _settings(self, rows: Sequence[_Row], rounds: Sequence[Seconds]) -> list[dict[str, Any]]:
        """What setting the weights costs, and what a whole point costs above the bare forward pass."""
        entries = []
        for k, row in enumerate(rows):
            if f"setting:{k}" in rounds[0]:
                bare = f"bare:{row.batch_size}"
                entries.append(
                    {
                        "engine": str(row.engine),
                        "batch_size": row.batch_size,
                        "seconds": typical(rounds, f"setting:{k}"),
                        "over_bare": quotient(rounds, f"setting:{k}", bare),
                        "point_over_bare": quotient(rounds, f"ours:{k}", bare),
                    }
                )
        return entries

    def _counts_memory(self, row: _Row) -> bool:
        """Where it can be told: compiled code does not go through torch's dispatcher, which counts on a CPU."""
        if not (row.chosen or row.engine in (EAGER, *self._options.engines)):
            return False
        return self._device.type == "cuda" or row.engine.base == "eager"

    def _memory(self, row: _Row, evaluator: Evaluator, bares: dict[int, Bare]) -> dict[str, Any]:
        points = self._points[:MEMORY_POINTS]
        return memory_of(evaluator, bares[row.batch_size], self._problem.model, self._axes, points)

    def _full(self, tuned: Tuned, bare: Bare) -> dict[str, Any]:
        """The whole grid, tile by tile, and a bare pass now and then in between."""
        evaluator, grid = self._evaluator.twin(tuned.plan), self._grid
        every = np.stack([each.reshape(-1) for each in np.meshgrid(*grid.coordinates, indexing="ij")], axis=1)
        one = Contestant("bare", bare.run)
        seconds, passes = 0.0, []
        for start in range(0, len(every), TILE_POINTS):
            seconds += evaluator.evaluate(every[start : start + TILE_POINTS]).seconds
            if start // TILE_POINTS % BARE_EVERY == 0:
                passes.append(race([one], 1, 0.0)[0]["bare"])
                self._report(f"whole grid: {start} of {len(every)} points, {seconds:.0f} s")
        bare_seconds = float(np.median(passes))
        return {
            "engine": str(tuned.plan.engine), "batch_size": tuned.plan.batch_size, "points": len(every),
            "seconds": seconds, **self._rate(seconds / len(every)),
            "bare_passes": len(passes), "efficiency": bare_seconds * len(every) / seconds,
        }  # fmt: skip


def _speed(trial: Trial | None) -> float:
    return 0.0 if trial is None else trial.samples_per_second or 0.0


def middle_points(grid: Grid, count: int) -> Floats:
    """About `count` neighbouring points in the middle of the grid, as a tile holds them: [points, axes]."""
    edge = max(1, math.ceil(count ** (1 / len(grid.shape))))
    edges = [min(edge, size) for size in grid.shape]
    start = tuple((size - length) // 2 for size, length in zip(grid.shape, edges, strict=True))
    stop = tuple(a + length for a, length in zip(start, edges, strict=True))
    return grid.tile_points(Tile((0,) * len(edges), start, stop))
