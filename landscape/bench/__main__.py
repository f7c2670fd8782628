"""The measurement without a cluster; neither Ray nor `cluster` is needed.

python -m landscape.bench job.yaml
python -m landscape.bench --recipe resnet20 --samples 2048 --json bench.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from landscape.bench.measure import bench
from landscape.bench.options import options_for
from landscape.bench.problems import SYNTHETIC_MODELS, synthetic_job
from landscape.bench.table import bench_text
from landscape.core.errors import JobError, LandscapeError
from landscape.core.plan import Precision
from landscape.job.job import Job
from landscape.job.reading import read_job

SYNTHETIC = "weights are random and data synthetic: the speed is real, the landscape means nothing"


def parser() -> argparse.ArgumentParser:
    """The options of `python -m landscape.bench`."""
    options = argparse.ArgumentParser(
        prog="python -m landscape.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("job", nargs="?", type=Path, help="a YAML job file; its first landscape is measured")
    options.add_argument(
        "--recipe", choices=sorted(SYNTHETIC_MODELS), help="a model instead, random weights, synthetic data"
    )
    options.add_argument("--samples", type=int, help="samples a point")
    options.add_argument("--size", type=int, help="points per axis of the synthetic model's grid (default 40)")
    options.add_argument("--batch-size", type=int)
    options.add_argument("--device", choices=("auto", "cpu", "cuda"))
    options.add_argument("--threads", type=int)
    options.add_argument("--precision", action="append", choices=get_args(Precision), help="may be repeated")
    options.add_argument("--engine", action="append", help="this one beside plain eager; may be repeated")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--slice", type=float, default=0.3, help="seconds of each timing (default 0.3)")
    options.add_argument("--search", type=float, help="seconds for choosing an engine (default: as a run of the job)")
    options.add_argument("--full", action="store_true", help="also evaluate the whole grid, in the job's precision")
    options.add_argument("--no-memory", action="store_true")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON document")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says and print the table.

    Args:
        arguments: default: those of this process.

    Raises:
        SystemExit: 2 for bad usage or a bad job; else the exit code of what failed.
    """
    given = parser().parse_args(arguments)
    try:
        measured = measure(given)
    except LandscapeError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(bench_text(measured), flush=True)
    if given.json:
        given.json.write_text(json.dumps(measured, indent=1, allow_nan=False) + "\n")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The measurements of a job file or of a synthetic model, as `bench` returns them.

    Raises:
        JobError: neither or both are given, or an option is wrong.
    """
    if (given.job is None) == (given.recipe is None):
        raise JobError("job: give either a job file or --recipe")
    options = options_for(
        given.precision or (), given.engine or (), given.rounds, search=given.search, full=given.full, report=_report
    )
    options = replace(options, slice_seconds=given.slice, memory=not given.no_memory)
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        job = _job(given, folder)
        return bench(job, options) | ({"data": SYNTHETIC} if given.recipe else {})


def _job(given: argparse.Namespace, folder: str) -> Job:
    wanted = {"batch_size": given.batch_size, "device": given.device, "threads": given.threads}
    fields = {name: value for name, value in wanted.items() if value is not None}
    # What `--full` evaluates is in the job's own precision.
    if given.precision:
        fields["precision"] = given.precision[0]
    if given.job is not None:
        if given.size is not None:
            raise JobError("size: goes with --recipe; a job file has its own")
        return read_job(given.job, num_samples=given.samples, **fields)
    return synthetic_job(given.recipe, folder, given.samples, given.size or 40, **fields)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
