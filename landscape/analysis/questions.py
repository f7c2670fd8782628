"""The questions about finished landscapes and weights, each a function with the words of its command.

`check`, `measure`, `compare` and `sharpness` stand here; `inspect` and `connect` have files of their own. A landscape
is named by its run and its name, or by a surface that was read from there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from landscape.analysis.checks.table import check_landscape, keep_checks
from landscape.analysis.measures.comparison import Comparison, targets_of
from landscape.analysis.measures.comparison import compare as compare_targets
from landscape.analysis.measures.document import Measures
from landscape.analysis.measures.measure import ExtraMeasures, record
from landscape.analysis.measures.requested import (
    MeasuredOrigin,
    RequestedSamples,
    job_of_file,
    job_of_run,
    origins_of,
)
from landscape.analysis.quantised import Compare, QuantisedComparison, asked_bits, compare_landscapes, sides_of
from landscape.compute.callback_place import Callback
from landscape.compute.executor import Executors, local_executors
from landscape.compute.in_memory import job_in_memory
from landscape.compute.problem_in_memory import Model
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.progress import show_progress
from landscape.job.job import Job
from landscape.model.snapshots import read_trajectory
from landscape.store.landscape import located
from landscape.store.results import Run, open_run
from landscape.surface.record_entries import Checks
from landscape.surface.surface import Surface

log = logging.getLogger("landscape")

HERE = local_executors()


def check(
    run: str | Path | Run | Surface, name: str | None = None, *, deep: bool = False, problem: Callback | None = None,
    folder: Path | None = None, executor: Executors = HERE,
) -> dict[str, Checks]:  # fmt: skip
    """Judge whether the pictures of landscapes can be trusted, by fifteen checks, each with its number and remedy.

    The results are kept with the landscapes, where the run can be written.

    Args:
        run: the run, or a surface of it.
        name: the landscape; default: that of the surface, or all of the run.
        deep: also look for the steepest direction: about 60 products with the Hessian.
        problem: the callback; default: the one that the landscape was computed with.
        folder: where the callback is looked up first; default: where it was then.
        executor: evaluates further points; default: this process.

    Returns:
        The checks of each landscape; `verdict` is the conclusion of all of them, `text(NAME)` what the command prints.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: `problem` or `folder` was given, and the landscape's job cannot be prepared with it.
    """
    path, names = _landscapes_of(run, name)
    checks = {}
    for one in names:
        checks[one] = check_landscape(path, one, deep=deep, problem=problem, folder=folder, executor=executor)
        try:
            keep_checks(path, one, checks[one])
        except LandscapeError as error:
            log.warning("what was found of %s is not kept: %s", one, error)
    return checks


def _landscapes_of(run: str | Path | Run | Surface, name: str | None) -> tuple[str, list[str]]:
    if isinstance(run, Surface):
        path, own = located(run)
        return path, [name or own]
    opened = run if isinstance(run, Run) else open_run(run)
    return opened.path, list(opened) if name is None else [name]


def measure(
    run: str | Path | Run | Surface | Job, origins: str | None = None, *, landscape: str | None = None,
    samples: int | None = None, seed: int | None = None, layers: bool = False, all: bool = False,
    problem: Callback | None = None, folder: Path | None = None, executor: Executors = HERE, progress: bool = True,
) -> Measures:  # fmt: skip
    """Measure how the loss rises around weights: along lines, in the worst case, by curvature, with intervals.

    The table is kept in the run's measures.json; what is measured already is not measured again.

    Args:
        run: the run, a surface of it, or a job.
        origins: which weights, separated by commas: last, first, all, problem, epoch-N or step-N, or a file. Default:
            last where the run has a trajectory, else problem.
        landscape: whose samples, callback and arithmetic are taken; default: those that all landscapes share.
        samples, seed: how many samples, and the seed that chooses them; default: those of the landscape or job.
        layers: also how the loss rises when one layer alone moves.
        all: also Keskar's sharpness, average cases under noise, and the noise that the error bears.
        problem, folder, executor: as for `check`.
        progress: show the progress.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: something cannot be measured; says what and why.
        Interrupted: what is measured is kept; the same call goes on.
    """
    if isinstance(run, Surface):
        landscape = landscape or run.name
        run = located(run)[0]
    asked = RequestedSamples(landscape, samples, seed)
    if isinstance(run, Job):
        job = job_of_file(run, asked)
    else:
        job = job_of_run((run if isinstance(run, Run) else open_run(run)).path, problem, folder, asked)
    trajectory = read_trajectory(job.run_path)
    chosen = origins_of(origins, trajectory, Path.cwd())
    with show_progress(None, progress) as display:
        return record(job, chosen, trajectory, ExtraMeasures(layers, all), executor, display)


def sharpness(
    model: Model, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    keep: str | Path | None = None, layers: bool = False, all: bool = False, executor: Executors = HERE,
    progress: bool = True, **options: Any,
) -> Measures:  # fmt: skip
    """How sharp the minimum of a model in memory is: the measures of its weights, with their errors.

    Args:
        model, data, loss, metrics: as for `landscape.plane`.
        keep: the run that keeps the table; default: one that is deleted with this process.
        layers, all, executor, progress: as for `measure`.
        options: of the job, such as `num_samples`.

    Returns:
        The table; `print` shows it, and `rows` has its numbers.

    Raises:
        JobError: as for `landscape.plane` and `measure`.

    Example:
        >>> import torch, landscape
        >>> x, y = torch.randn(64, 4, generator=torch.manual_seed(0)), torch.arange(64) % 3
        >>> measures = landscape.sharpness(torch.nn.Linear(4, 3), (x, y), "cross_entropy", progress=False)
        >>> measures.rows["loss"].value > 0
        True
    """
    job = job_in_memory(model, data, loss, metrics, keep, options, "sharpness")
    trajectory = read_trajectory(job.run_path)
    weights = [MeasuredOrigin("problem", "problem")]
    with show_progress(None, progress) as display:
        return record(job_of_file(job), weights, trajectory, ExtraMeasures(layers, all), executor, display)


def compare(
    first: str | Surface, second: str | Surface, *, bits: str | None = None, points: int | None = None,
    steps: int | None = None, patch: int | None = None, problem: Callback | None = None, folder: Path | None = None,
    executor: Executors = HERE,
) -> QuantisedComparison | Comparison:  # fmt: skip
    """Compare two landscapes of one plane at every point, or the measures of two sets of weights.

    Args:
        first, second: surfaces, or RUN:NAME; or RUN or RUN:ORIGIN for measured weights, several runs with commas.
        bits: widths of the curve of a quantised landscape, such as "1-16" or "none".
        points: at which the paired error is evaluated, where single losses are not stored; default: 25.
        steps: points of the short line; default: 61, 0 for none.
        patch: points per side of the patch; default: none.
        problem, folder, executor: as for `check`.

    Returns:
        A `QuantisedComparison` of two landscapes, whether or not one is quantised; a `Comparison` of weights.

    Raises:
        JobError: they are not comparable; lists why. Or an option goes with landscapes alone.
        NotFoundError: there is no such run, landscape, or measure.
    """
    texts = [":".join(located(side)) if isinstance(side, Surface) else side for side in (first, second)]
    sides = sides_of(*texts)
    given = {"points": points, "steps": steps, "patch": patch}
    asked = {name: value for name, value in given.items() if value is not None}
    if sides is None:
        if option := next(iter([*asked, *(["bits"] if bits is not None else [])]), None):
            raise JobError(f"{option}: goes with two landscapes, and {quoted(texts[0])} names none; leave it out")
        return compare_targets(targets_of(texts[0]), targets_of(texts[1]))
    settings = Compare(**asked, **({} if bits is None else {"bits": asked_bits(bits)}))  # type: ignore[arg-type]
    return compare_landscapes(*sides, settings, problem=problem, folders=(folder, folder), executor=executor)
