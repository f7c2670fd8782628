"""The command `landscape measure`: of one run a table of measures, of several a row for each set of weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.commands.output import ANYONE, AS_RECORDED, Callback, Json, Workers, read_job_file, show
from cluster.runtime import logs
from cluster.runtime.console import command_progress, divert_stdout
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag, MaybeWhole
from landscape.core.errors import DONE, FAILED, INTERRUPTED, PARTIAL, UNREACHABLE, JobError, LandscapeError, flat

if TYPE_CHECKING:
    from landscape.job.job import Job

CAVEAT = (
    "These numbers describe these weights on these samples. Sharpness does not track generalisation well, sometimes "
    "inversely (Andriushchenko et al. 2023)."
)


@dataclass(frozen=True)
class SampleOptions:
    """The samples that weights are measured on, and how; default: what all landscapes of the run have in common."""

    landscape: str | None = None
    """The landscape of the run whose samples, callback, precision and batch-norm mode are taken; needed where the
    landscapes of the run differ in these."""
    samples: MaybeWhole = None
    """How many samples; default: those of the landscape, or of the job file."""
    seed: MaybeWhole = None
    """The seed that chooses the samples; default: that of the landscape, or of the job file."""


AS_COMPUTED = SampleOptions()


def measure(
    run: str,
    *more: str,
    origins: str | None = None,
    on: Annotated[SampleOptions, Parameter(name="*")] = AS_COMPUTED,
    layers: Flag = False,
    all: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Measure how the loss rises around weights: along lines, in the worst case, by curvature, with intervals.

    The table is kept in RUN/measures.json; what is measured already is not measured again. Of several runs, each is
    kept as soon as it is measured, and the table has a row for each set of weights; if some could not be measured, the
    others are, and the exit code is 4.

    Parameters
    ----------
    run
        The run folder or URL, or a YAML job file.
    more
        Further runs or job files, which are measured in the same way.
    origins
        Which weights, separated by commas: last, first, all (every snapshot), problem, epoch-N or step-N, a file of
        weights. Default: last where the run has a trajectory, else problem.
    layers
        Also how the loss rises when one layer alone moves, and when it goes back to the first snapshot.
    all
        Also Keskar's sharpness, average cases under noise, and the noise that the error bears.
    """
    who.check()
    from landscape.analysis.measures.measure import ExtraMeasures, record
    from landscape.analysis.measures.requested import RequestedSamples, job_of_file, job_of_run, origins_of
    from landscape.model.snapshots import read_trajectory
    from landscape.store.results import open_run

    asked = RequestedSamples(on.landscape, on.samples, on.seed)
    folders = callback.folders([run, *more])

    def job_of(place: str) -> Job:
        if not Path(place).is_file():
            return job_of_run(open_run(place).path, callback.problem, folders.get(place), asked)
        if callback.problem or callback.folder:
            raise JobError("problem: goes with a run, not with a job file, which names its own; leave it out")
        return job_of_file(read_job_file(Path(place)), asked)

    def measure_one(place: str) -> tuple[str, dict[str, Any]]:
        with divert_stdout(), command_progress() as display:
            job = job_of(place)
            bind(run=job.run_path)
            trajectory = read_trajectory(job.run_path)
            chosen = origins_of(origins, trajectory, Path.cwd())
            measures = record(job, chosen, trajectory, ExtraMeasures(layers, all), who.executor, display)
            return job.run_path, measures.document()

    return _show_measures([run, *more], measure_one, json)


def _show_measures(places: list[str], measure_one: Callable[[str], tuple[str, dict[str, Any]]], json: bool) -> int:
    """Measure one run after another, and print their tables; returns the exit code."""
    from landscape.core.folders import run_labels
    from landscape.views.prepare.tables import lines_of, overview_lines, samples_measured

    if len(places) == 1:
        _, table = measure_one(places[0])
        show(table, json, "\n".join([samples_measured(table), *lines_of(table), CAVEAT]))
        return DONE
    tables: dict[str, dict[str, Any]] = {}
    failed: dict[str, LandscapeError] = {}
    for number, place in enumerate(places, 1):
        write_remark(f"run {number} of {len(places)}: {flat(place)}")
        try:
            path, table = measure_one(place)
            tables[path] = table
        except LandscapeError as error:
            if error.exit_code in (UNREACHABLE, INTERRUPTED) or logs.ray_lost:
                raise  # the same awaits every further run
            failed[place] = error
            write_remark(f"{flat(place)} is not measured: {error}", "error", logging.ERROR, code=error.exit_code)
    runs = [{"run": path, **table} for path, table in tables.items()]
    errors = [{"run": place, "error": str(error)} for place, error in failed.items()]
    rows = overview_lines(list(zip(run_labels(list(tables)), tables.values(), strict=True)))
    if tables or json:
        show({"runs": [*runs, *errors]}, json, "\n".join([*rows, CAVEAT]))
    if failed and tables:
        return PARTIAL
    codes = {error.exit_code for error in failed.values()}
    return DONE if not codes else codes.pop() if len(codes) == 1 else FAILED
