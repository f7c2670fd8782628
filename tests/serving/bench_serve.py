"""`make bench-serve`: points per second over the serial evaluator's, the latency of one client, and a load under kills.

Each figure is of one run on this machine: the serial evaluator first, then the service, over the same points with the
same plan; every answer is compared to the bit. On a machine that is busy otherwise, take the figures per second of
processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import psutil
from load import Tally, load, right, table_of
from served import Running, percentile, serving

PROBLEM = """
from landscape.bench.problems import synthetic_problem


def problem():
    return synthetic_problem("MODEL", SAMPLES)
"""
JOB = """
run: bench
problem: bench_problem:problem
num_samples: {samples}
engine: {engine}
device: cpu
landscapes: [{{name: plane, size: 3}}]
"""
PATH = "/v1/models/bench/versions/latest/landscapes/plane/points"


def main() -> int:
    """Measure what was asked for; 1 where an answer was wrong or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="lenet,resnet20")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--points", type=int, default=640, help="of the throughput; each asked for once")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--single", type=int, default=200, help="requests of the one client")
    parser.add_argument("--chaos", type=float, default=0.0, metavar="SECONDS", help="kill a replica again and again")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one kill to the next")
    parser.add_argument("--replicas", default="1")
    asked = parser.parse_args()
    wrong = 0
    for model in asked.models.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
            found = chaos(Path(folder), model, asked) if asked.chaos else speed(Path(folder), model, asked)
        wrong += found["wrong"] + found["failed"]
        print(json.dumps({"model": model, **found}), flush=True)
    return 1 if wrong else 0


def make(folder: Path, model: str, asked: argparse.Namespace):  # type: ignore[no-untyped-def]
    """Compute the run, and return the serial evaluator of its landscape."""
    from landscape.compute.plans import make_evaluator
    from landscape.compute.prepare import prepare
    from landscape.compute.serial import run
    from landscape.core.devices import keep_freed_memory
    from landscape.job.reading import read_job

    keep_freed_memory()  # as `landscape run --serial` does, and a replica
    (folder / "bench_problem.py").write_text(PROBLEM.replace("SAMPLES", str(asked.samples)).replace("MODEL", model))
    (folder / "job.yaml").write_text(JOB.format(samples=asked.samples, engine=asked.engine))
    sys.modules.pop("bench_problem", None)
    run(read_job(folder / "job.yaml"))
    prepared = prepare(read_job(folder / "job.yaml"))
    return make_evaluator(prepared, prepared.landscapes[0])


def drawn(count: int, seed: int) -> list[tuple[float, float]]:
    """Points of rows of a finer grid, in an order that is none."""
    random = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(count)))
    ends = np.sort(random.uniform(-1, 1, (2, side)))
    points = [(float(a), float(b)) for a in ends[0] for b in ends[1]][:count]
    return [points[k] for k in random.permutation(count)]


def speed(folder: Path, model: str, asked: argparse.Namespace) -> dict[str, float]:
    """Points per second of many clients over the serial evaluator's, and the latency of one over its evaluation."""
    evaluator = make(folder, model, asked)
    points = drawn(asked.points, 1)
    table = np.array(points)
    evaluator.evaluate(table[:4], rise=True)
    begin, work = time.perf_counter(), time.process_time()
    values = evaluator.evaluate(table, rise=True)
    serial, serial_work = time.perf_counter() - begin, time.process_time() - work
    expected = table_of(points, values.mean)
    single = drawn(asked.single, 2)
    alone = []
    for point in single:
        begin = time.perf_counter()
        found = evaluator.evaluate(np.array([point]), rise=True)
        alone.append(time.perf_counter() - begin)
        expected |= table_of([point], found.mean)
    with serving(["bench"], folder, "--replicas", asked.replicas, "--grpc-port", "0") as service:
        warm(service, points[:1])
        before = used(service)
        begin = time.perf_counter()
        many = ask(service, asked.clients, iter(points), right(expected))
        served = time.perf_counter() - begin
        worked = used(service) - before
        one = ask(service, 1, iter(single), right(expected))
    own = [seconds - evaluated for seconds, evaluated in zip(one.seconds, one.evaluated, strict=True)]
    over = [seconds - statistics.median(alone) for seconds in one.seconds]
    return {
        "samples": asked.samples,
        "serial points/s": round(len(points) / serial, 2),
        "served points/s": round(many.answered / served, 2),
        "served over serial": round(many.answered / served / (len(points) / serial), 3),
        "the same by processor time": round(serial_work / worked, 3),
        "evaluation of one point by itself, median ms": round(1e3 * statistics.median(alone), 2),
        "evaluation of one point served, median ms": round(1e3 * statistics.median(one.evaluated), 2),
        "one point over its own evaluation, median ms": round(1e3 * statistics.median(own), 2),
        "one point over its own evaluation, 99 % ms": round(1e3 * percentile(own, 0.99), 2),
        # In which the spread of the evaluation counts as the service's.
        "one point over the median evaluation by itself, median ms": round(1e3 * statistics.median(over), 2),
        "one point over the median evaluation by itself, 99 % ms": round(1e3 * percentile(over, 0.99), 2),
        "wrong": len(many.wrong) + len(one.wrong),
        "failed": len(many.failed) + len(one.failed),
    }


def chaos(folder: Path, model: str, asked: argparse.Namespace) -> dict[str, float]:
    """Many clients while replicas are killed: how many answers were right, wrong, lost."""
    evaluator = make(folder, model, asked)
    points = drawn(asked.points, 3)
    values = evaluator.evaluate(np.array(points), rise=True)
    expected = table_of(points, values.mean)
    ended, kills = threading.Event(), []

    def kill(service: Running) -> None:
        while not ended.wait(asked.every):
            replicas = service.replicas()
            if replicas:
                replicas[len(kills) % len(replicas)].kill()
                kills.append(time.monotonic())

    # Without a cache each request is computed, and so can be lost with its replica.
    options = ("--replicas", asked.replicas, "--grpc-port", "0", "--cache", "0")
    with serving(["bench"], folder, *options) as service:
        killer = threading.Thread(target=kill, args=(service,))
        killer.start()
        found = ask(service, asked.clients, itertools.cycle(points), right(expected), asked.chaos)
        ended.set()
        killer.join()
        state = service.ask("/v1/health")[2]
    asked_for = len(found.seconds)
    return {
        "seconds": asked.chaos,
        "clients": asked.clients,
        "kills": len(kills),
        "requests": asked_for,
        "answered": found.answered,
        "asked again after 429": found.busy,
        "longest answer, s": round(max(found.seconds), 2),
        "left under way": state["requests"],
        "wrong": len(found.wrong),
        "failed": len(found.failed) + asked_for - found.answered - len(found.wrong) - len(found.failed),
    }


def ask(service: Running, clients: int, points, check, seconds: float = 1e9) -> Tally:  # type: ignore[no-untyped-def]
    return asyncio.run(load(service.url, service.token, PATH, clients, points, check, seconds))


def warm(service: Running, points: list[tuple[float, float]]) -> None:
    for _ in range(5):
        service.ask(PATH, {"points": [[a + 1e-9, b] for a, b in points]})


def used(service: Running) -> float:
    """Seconds of processor time that the replicas have used."""
    times = [psutil.Process(each.pid).cpu_times() for each in service.replicas()]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    sys.exit(main())
