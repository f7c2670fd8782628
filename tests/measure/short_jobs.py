"""What a short job costs beside its forward passes, by name; and the whole of it over its evaluations by bare passes.

    python tests/measure/short_jobs.py costs [--model lenet] [--samples 512] [--size 25] [--rounds 5]
    python tests/measure/short_jobs.py ratios [the same]
    python tests/measure/short_jobs.py lines [--samples 64] [--size 11]

`costs` takes the time apart: of `landscape run --serial`, from the start of the interpreter to its end, and of the
third `landscape.run` in a warm interpreter. Each name is the time spent in it and in nothing else that has a name; the
median over the rounds. `ratios` takes it whole, in turns with `model(inputs)` under `torch.no_grad()` in batches of
256, as often as the grid has points. `lines` computes 60 lines of so many points as one job, and then finds them
complete, both with `landscape.run`. One thread throughout; the user's cache of engines is neither read nor written.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

START = time.perf_counter()
BATCH, BARE_POINTS = 256, 25  # of a bare pass, and how many of them stand for the grid's
LINES = 60
FORWARD = "forward passes"
# The parts of a job by name, each a list of functions. Time in a function counts for the innermost name.
EVALUATION, COMPUTE = "landscape.evaluation.", "landscape.compute."
PARTS = {
    FORWARD: [f"{EVALUATION}engines.base:Forward.observe", f"{EVALUATION}engines.base:Stacked.observe_points"],
    "setting weights": [
        f"{EVALUATION}running_model:RunningModel.set_point", f"{EVALUATION}running_model:RunningModel.stacked"
    ],
    "checks of a batch": [
        f"{EVALUATION}running_model:RunningModel.observe", f"{EVALUATION}running_model:RunningModel.observe_stacked"
    ],
    "means and errors": [f"{EVALUATION}reduction:Reduction.add", f"{EVALUATION}reduction:Reduction.values"],
    "unchanged samples": [
        f"{EVALUATION}evaluator:Evaluator._refuse_writes", f"{EVALUATION}feed:UnchangedSamples.remember"
    ],
    "order of points": [f"{EVALUATION}evaluator:Evaluator.evaluate"],
    "choosing an engine": [f"{COMPUTE}serial:tune_landscape"],
    "setting up an evaluator": [f"{COMPUTE}plans:make_evaluator", f"{COMPUTE}serial:make_evaluator"],
    "first-point check": [f"{COMPUTE}serial:check_reproduction"],
    "creating the store": [f"{COMPUTE}serial:create_landscape", f"{COMPUTE}serial:open_landscape"],
    "commits of tiles": [f"{COMPUTE}serial:OpenLandscape.commit"],
    "records of progress": [
        f"{COMPUTE}progress_tracker:Tally.count_done", f"{COMPUTE}progress_tracker:Tally.finish",
        f"{COMPUTE}serial:start_tally", f"{COMPUTE}serial:warn_of_constant",
    ],
    "preparing the job": [f"{COMPUTE}serial:prepare"],
    "the run's lock, snapshots": [f"{COMPUTE}serial:run_locked"],
    "the summary at the end": ["cluster.commands.output:WorkerOptions.compute"],
}  # fmt: skip
WHOLE = {"choosing an engine", "first-point check"}  # with the evaluations that they ask for


class Clock:
    """Seconds by name; a name inside another one is not counted for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._names, self._since = ["the rest"], time.perf_counter()

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self._names[-1]] += now - self._since
        self._since = now

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        self._switch()
        self._names.append(self._names[-1] if self._names[-1] in WHOLE else name)
        try:
            yield
        finally:
            self._switch()
            self._names.pop()

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.counting(name):
                return function(*args, **kwargs)

        return counted

    def stop(self) -> dict[str, float]:
        self._switch()
        return dict(self.seconds)


def count_imports(clock: Clock) -> None:
    """Count what imports take: of torch and what it imports, and of everything else."""
    load, underway = builtins.__import__, list[str]()

    def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in sys.modules:
            return load(name, *args, **kwargs)
        of = "import of torch" if "torch" in (name.partition(".")[0], *underway) else "other imports"
        underway.append(name.partition(".")[0])
        try:
            with clock.counting(of):
                return load(name, *args, **kwargs)
        finally:
            underway.pop()

    builtins.__import__ = counted


def count_parts(clock: Clock) -> None:
    for name, functions in PARTS.items():
        for text in functions:
            module, _, path = text.partition(":")
            *outer, last = path.split(".")
            owner: Any = importlib.import_module(module)
            for each in outer:
                owner = getattr(owner, each)
            setattr(owner, last, clock.wrap(name, getattr(owner, last)))


# -- in a process of its own ---------------------------------------------------------------------------------------


def of_command(folder: Path) -> None:
    """Run the command in this fresh interpreter, and print the seconds by name; imports are there before the parts."""
    clock = Clock()
    count_imports(clock)
    from cluster.commands import entry

    gc.set_threshold(*getattr(entry, "COLLECT_AFTER", gc.get_threshold()))  # as the command does, before it imports
    importlib.import_module("cluster.driver.driver")
    count_parts(clock)
    sys.argv = ["landscape", "run", "--serial", str(folder / "job.yaml")]
    try:
        entry.main()
    except SystemExit as end:
        if end.code:
            raise
    seconds = clock.stop()
    seconds["whole"] = time.perf_counter() - START
    print(json.dumps(seconds), file=sys.stderr)


def of_warm(folder: Path) -> None:
    """Run the job three times in this interpreter, and print the seconds of the last one by name."""
    import landscape
    from landscape.job.reading import read_job

    for number in range(2):
        landscape.run(read_job(folder / "job.yaml", run=str(folder / f"warm{number}")), progress=False)
    clock = Clock()
    count_parts(clock)
    start = time.perf_counter()
    landscape.run(read_job(folder / "job.yaml", run=str(folder / "warm")), progress=False)
    print(json.dumps({**clock.stop(), "whole": time.perf_counter() - start}), file=sys.stderr)


def of_plain(folder: Path) -> None:
    """Seconds of one `landscape.run` in a warm interpreter and of bare passes, in turns; nothing is wrapped."""
    import torch

    import landscape
    from landscape.job.reading import read_job

    given = json.loads((folder / "given.json").read_text())
    bare, rounds = _bare(given), []
    for number in range(given["rounds"] + 1):
        before = bare()
        start = time.perf_counter()
        landscape.run(read_job(folder / "job.yaml", run=str(folder / f"run{number}")), progress=False)
        whole = time.perf_counter() - start
        torch.set_num_threads(1)
        rounds.append((whole, (before + bare()) / 2 * given["size"] ** 2))
    print(json.dumps(rounds[1:]), file=sys.stderr)


def of_lines(folder: Path) -> None:
    """Seconds of a job of many lines, and of the same job when they are complete."""
    import landscape
    from landscape import Job
    from landscape.bench.problems import synthetic_problem

    given, seconds = json.loads((folder / "given.json").read_text()), []
    for _ in range(2):
        lines = [
            {"name": f"line{seed}", "size": given["size"], "directions": [{"kind": "random", "seed": seed}]}
            for seed in range(LINES)
        ]
        job = Job(
            run=str(folder / "lines"), problem=lambda: synthetic_problem(given["model"], given["samples"]),
            num_samples=given["samples"], landscapes=lines, threads=1, device="cpu",
        )  # fmt: skip
        start = time.perf_counter()
        landscape.run(job, progress=False)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), file=sys.stderr)


def of_bare(folder: Path) -> None:
    """Seconds of a bare pass over all samples."""
    print(json.dumps(_bare(json.loads((folder / "given.json").read_text()))()), file=sys.stderr)


def _bare(given: dict[str, Any]) -> Callable[[], float]:
    import torch

    from landscape.bench.problems import synthetic_problem

    torch.set_num_threads(1)
    problem = synthetic_problem(given["model"], given["samples"])
    inputs = problem.data[0].split(BATCH)

    def bare() -> float:
        with torch.no_grad():
            for batch in inputs:
                problem.model(batch)
            start = time.perf_counter()
            for _ in range(BARE_POINTS):
                for batch in inputs:
                    problem.model(batch)
            return (time.perf_counter() - start) / BARE_POINTS

    return bare


# -- the measurement -----------------------------------------------------------------------------------------------

CALLBACK = """from functools import partial
from landscape.bench.problems import synthetic_problem
problem = partial(synthetic_problem, {model!r}, {samples})
"""
JOB = """run: run
problem: short_problem:problem
num_samples: {samples}
threads: 1
device: cpu
{engine}landscapes:
  - {{name: plane, size: {size}}}
"""


def child(what: str, folder: Path) -> Any:
    """What a process of its own prints last; the folder's run is there no more."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LANDSCAPE_CACHE": ""}
    command = [sys.executable, "-W", "ignore", __file__, "--child", what, str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stderr.strip().splitlines()[-1])


def whole_command(folder: Path) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LANDSCAPE_CACHE": ""}
    command = [sys.executable, "-m", "cluster", "run", "--serial", str(folder / "job.yaml")]
    start = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=True)
    return time.perf_counter() - start


@contextmanager
def job_folder(given: argparse.Namespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ll") as name:
        folder = Path(name)
        fields = {**vars(given), "engine": f"engine: {given.engine}\n" if given.engine else ""}
        (folder / "short_problem.py").write_text(CALLBACK.format(**fields))
        (folder / "job.yaml").write_text(JOB.format(**fields))
        (folder / "given.json").write_text(json.dumps(vars(given)))
        yield folder


def print_costs(given: argparse.Namespace) -> None:
    for what, title in (("command", "landscape run --serial"), ("warm", "landscape.run, warm")):
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(given.rounds):
            with job_folder(given) as folder:
                for name, seconds in child(what, folder).items():
                    found[name].append(seconds)
        medians = {name: median([*seconds, *[0.0] * (given.rounds - len(seconds))]) for name, seconds in found.items()}
        whole, forward = medians.pop("whole"), medians.pop(FORWARD)
        largest = sorted(medians.items(), key=lambda item: -item[1])[:10]
        print(f"\n{title}: {whole:.2f} s, {forward:.2f} s of it forward passes; the ten largest of the others:")
        for name, seconds in largest:
            print(f"  {name:28s} {seconds:7.3f} s")
        print(f"  {'their sum':28s} {sum(seconds for _, seconds in largest):7.3f} s")


def print_ratios(given: argparse.Namespace) -> None:
    ratios, seconds = [], []
    for _ in range(given.rounds):
        with job_folder(given) as folder:
            before = child("bare", folder)
            whole = whole_command(folder)
            passes = (before + child("bare", folder)) / 2 * given.size**2
        ratios.append(whole / passes)
        seconds.append((whole, passes))
    _print_ratio("landscape run --serial", ratios, seconds)
    with job_folder(given) as folder:
        pairs = child("plain", folder)
    _print_ratio("landscape.run, warm", [whole / passes for whole, passes in pairs], pairs)


def print_lines(given: argparse.Namespace) -> None:
    with job_folder(given) as folder:
        computed, complete = child("lines", folder)
    print(f"{LINES} lines of {given.size} points: {computed:.1f} s, and {complete:.1f} s to find them complete")


def _print_ratio(name: str, ratios: list[float], seconds: Any) -> None:
    whole, passes = (median(each) for each in zip(*seconds, strict=True))
    print(f"{name}: {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) of its evaluations by bare passes; "
          f"{whole:.2f} s and {passes:.2f} s")  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        globals()[f"of_{sys.argv[2]}"](Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("costs", "ratios", "lines"))
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--size", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="", help="default: what the job takes by itself")
    given = parser.parse_args()
    {"costs": print_costs, "ratios": print_ratios, "lines": print_lines}[given.what](given)


if __name__ == "__main__":
    main()
