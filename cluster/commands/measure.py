"""`landscape measure`: how sharp the loss is around some weights of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.commands.output import Json, show
from cluster.options import Flag, MaybeWhole, checked_workers
from cluster.process.logs import bind
from cluster.process.streams import diverted
from landscape.errors import JobError

if TYPE_CHECKING:
    from landscape.calculation import Calculator
    from landscape.preparation import PreparedJob, PreparedLandscape
    from landscape.spec import Job

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
    problem: str | None = None,
    folder: Path | None = None,
    serial: Flag = False,
    workers: MaybeWhole = None,
    address: str | None = None,
    allow_open: Flag = False,
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
    problem
        The callback, module:function; default: the one that the run was computed with.
    folder
        Where the callback is looked up first; default: where it was then.
    serial
        In this process, without Ray.
    workers
        How many actors; default: one per GPU, else one per core.
    address
        host:port or auto, to attach to a Ray cluster; default: RAY_ADDRESS, else a private local Ray.
    allow_open
        Also attach to a cluster that is not on this machine and asks for no token.
    """
    if serial and (workers or address):
        raise JobError("serial: runs in this process alone; leave out workers and address")
    checked_workers(workers)
    from cluster.driver.calculators import calculator_of
    from landscape.measures.asking import origins_of
    from landscape.measures.measuring import Asked
    from landscape.measures.recording import record
    from landscape.trajectory.snapshots import read_trajectory
    from landscape.views.prepared.measures import lines_of

    def calculator(
        prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int
    ) -> AbstractContextManager[Calculator]:
        return calculator_of(
            prepared, landscape, evaluations, serial=serial, workers=workers, address=address, allow_open=allow_open
        )

    with diverted():
        job = _job(run, problem, folder)
        bind(run=job.run_path)
        trajectory = read_trajectory(job.run_path)
        chosen = origins_of(origins, trajectory, Path.cwd())
        found = record(job, chosen, trajectory, Asked(layers, all), calculator).document()
    show(found, json, "\n".join([*lines_of(found), SAYING]))


def _job(run: str, problem: str | None, folder: Path | None) -> Job:
    """How the weights are measured: as a job file says, or as the run's first landscape was computed."""
    from landscape.measures.asking import job_of_file, job_of_run
    from landscape.results import open_run
    from landscape.spec import read_job

    if Path(run).is_file():
        if problem or folder:
            raise JobError("problem: goes with a run, not with a job file, which names its own; leave it out")
        return job_of_file(read_job(Path(run)))
    return job_of_run(open_run(run).path, problem, folder)
