"""`landscape measure`: how sharp the loss is around some weights of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, CallbackOptions, Workers
from cluster.commands.output import Json, read_told_job, show
from cluster.runtime.console import diverted
from cluster.runtime.logs import bind
from cluster.runtime.options import Flag
from landscape.core.errors import JobError

if TYPE_CHECKING:
    from landscape.job.job import Job

SAYING = (
    "These numbers describe these weights on these samples. Sharpness does not track generalisation well, sometimes "
    "inversely (Andriushchenko et al. 2023)."
)


def measure(
    run: str,
    *,
    origins: str | None = None,
    layers: Flag = False,
    all: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> None:
    """Measure how the loss rises around weights: along lines, in the worst case, by curvature, with intervals.

    The table is kept in RUN/measures.json; what is measured already is not measured again.

    Parameters
    ----------
    run
        The run folder or URL, or a YAML job file. Of a run the samples and the precision of its first landscape are
        taken.
    origins
        Which weights, separated by commas: last, first, all (every snapshot), problem, epoch-N or step-N, a file of
        weights. Default: last where the run has a trajectory, else problem.
    layers
        Also how the loss rises when one layer alone moves, and when it goes back to the first snapshot.
    all
        Also Keskar's sharpness, average cases under noise, and the noise that the error bears.
    """
    who.check()
    from landscape.analysis.measures.measure import Asked, origins_of, record
    from landscape.model.snapshots import read_trajectory
    from landscape.views.prepare.measures import lines_of

    with diverted():
        job = _job(run, callback)
        bind(run=job.run_path)
        trajectory = read_trajectory(job.run_path)
        chosen = origins_of(origins, trajectory, Path.cwd())
        found = record(job, chosen, trajectory, Asked(layers, all), who.calculator).document()
    show(found, json, "\n".join([*lines_of(found), SAYING]))


def _job(run: str, callback: CallbackOptions) -> Job:
    """How the weights are measured: as a job file says, or as the run's first landscape was computed."""
    from landscape.analysis.measures.measure import job_of_file, job_of_run
    from landscape.store.results import open_run

    if Path(run).is_file():
        if callback.problem or callback.folder:
            raise JobError("problem: goes with a run, not with a job file, which names its own; leave it out")
        return job_of_file(read_told_job(Path(run)))
    return job_of_run(open_run(run).path, callback.problem, callback.folder)
