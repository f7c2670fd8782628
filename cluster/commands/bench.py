"""The command that measures: bench."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path

from cluster.commands.output import read_job_file
from cluster.runtime.console import divert_stdout, put
from cluster.runtime.options import Flag, MaybeNumber, MaybeWhole, Whole, Words
from landscape.core.errors import JobError


def bench(
    job: Path,
    *,
    precision: Words = None,
    engine: Words = None,
    rounds: Whole = 5,
    search: MaybeNumber = None,
    num_samples: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    device: str | None = None,
    threads: MaybeWhole = None,
    quick: Flag = False,
    full: Flag = False,
    json: Flag = False,
) -> None:
    """Measure how fast a job is evaluated here, beside a bare forward pass; what Ray costs; how long a start takes.

    Parameters
    ----------
    job
        The YAML job file; its first landscape is measured, and nothing is written to its run.
    precision
        May be repeated; default: float32 and bfloat16, and tf32 on a GPU.
    engine
        Only this one beside plain eager; may be repeated. Default: all that suit the job.
    rounds
        How often everything is timed.
    search
        Seconds for choosing an engine; default: as a run of the job.
    num_samples
        Samples that every value is the mean of, instead of the file's.
    batch_size
        Samples per forward pass, instead of the file's.
    device
        auto, cpu or cuda, instead of the file's.
    threads
        CPU threads, instead of the file's.
    quick
        Leave out Ray and the start-up, and measure briefly.
    full
        Also evaluate the whole grid, in the job's precision.
    json
        Print one JSON document instead of text.
    """
    from landscape.bench.options import options_for

    options = options_for(precision or (), engine or (), rounds, search=search, quick=quick, full=full, report=_report)
    given = read_job_file(job, num_samples=num_samples, batch_size=batch_size, device=device, threads=threads)
    if not quick and options.precisions and given.precision not in options.precisions:
        own = given.precision
        raise JobError(f"precision: Ray is measured in the job's own, {own}; name that too, or give --quick")
    from cluster.commands.bench_measuring import bench_job, bench_report

    with divert_stdout():
        found = bench_job(given, options, quick=quick)
    put(json_module.dumps(found, indent=1, allow_nan=False) if json else bench_report(found))


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
