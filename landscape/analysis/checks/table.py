"""The fifteen checks in their order, and `check_landscape`, which prepares the job again and runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from landscape import __version__
from landscape.analysis.checks import curvature, geometry, network, paths, values
from landscape.analysis.checks.check import CheckContext
from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.evidence import Evidence, Judgement, NotJudged
from landscape.compute.callback_place import Callback
from landscape.compute.executor import Executors, local_executors
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import ClusterUnreachableError, Interrupted, LandscapeError, message_of
from landscape.store.results import keep_with_landscape, open_run
from landscape.surface.record_entries import Check, Checks

CHECKS: Mapping[str, tuple[str, Callable[[CheckContext], Judgement]]] = {
    "1": ("centre", network.check_centre),
    "2": ("expectation", network.check_expectation),
    "3": ("spot check", network.check_spots),
    "4": ("repetition", network.check_repetition),
    "5": ("sampling", values.check_sampling),
    "6": ("resolution", geometry.check_resolution),
    "7": ("other seeds", geometry.check_other_seeds),
    "8": ("curvature", curvature.check_derivatives),
    "8b": ("centre cell", curvature.check_centre_cell),
    "9": ("hidden", curvature.check_hidden),
    "10": ("batch norm", paths.check_batch_norm),
    "11": ("path", paths.check_path),
    "12": ("range", values.check_range),
    "13": ("lowest", values.check_lowest),
    "14": ("axes", geometry.check_axes),
    "15": ("holes", values.check_holes),
}
"""The checks by their numbers: the name, and the function that measures and judges."""

EVALUATIONS = 130  # about the cost of the default checks of a plane, Hessian products included
CHECK_AGAIN = "mend that and check again; if the callback is another one now, name it by --problem and --folder"
IMPORTED = "the landscape was imported: no job computed it, so nothing of it can be evaluated"

HERE = local_executors()


def check_landscape(
    run: str | Path,
    name: str,
    *,
    deep: bool = False,
    problem: Callback | None = None,
    folder: Path | None = None,
    executor: Executors = HERE,
) -> Checks:
    """Check a landscape of a run; `keep_checks` stores the results.

    If its job cannot be prepared again, the checks that evaluate the network are not judged and say why, and the
    landscape is not judged either (`Checks.not_judged`). Of an imported landscape only the values are judged.

    Args:
        deep: also look for the steepest direction, by Lanczos: about 60 Hessian products.
        problem: the callback; default: the recorded one, by its name.
        folder: where the callback is looked up first; default: where it was when the landscape was computed.
        executor: evaluates further points of the landscape; default: this process.

    Raises:
        NotFoundError: there is no such run or landscape.
        LandscapeError: the landscape cannot be read.
        JobError: `problem` or `folder` was given, and the job of the landscape cannot be prepared with it.
        ClusterUnreachableError: the executor lost its cluster.
        Interrupted: a signal ended the checks.
    """
    path, begin = open_run(run).path, time.monotonic()
    evidence = Evidence.of(path, name)
    try:
        prepared = prepare(recorded_job(path, evidence.store, problem, folder), reading=True)
    except LandscapeError as error:
        if problem is not None or folder is not None:
            raise
        why_not = IMPORTED if evidence.record.is_imported else message_of(error)
        context = CheckContext(evidence, None, why_not, deep)
        results = _carry_out_all(context)
    else:
        landscape = prepared.landscapes[0]
        with executor(prepared, landscape, EVALUATIONS * (5 if deep else 1)) as answers:
            context = CheckContext(
                evidence, ExtraEvaluations(prepared, landscape, answers, evidence.store.directions()), "", deep
            )
            results = _carry_out_all(context)
    return Checks(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        points=evidence.points_done,
        evaluations=0 if context.extra is None else context.extra.count,
        seconds=round(time.monotonic() - begin, 3),
        deep=deep,
        imported=evidence.record.is_imported,
        eigenvalues=evidence.record.convexity is not None,
        results=tuple(results),
    )


def _carry_out_all(context: CheckContext) -> list[Check]:
    results = []
    for number, (name, carry_out) in CHECKS.items():
        try:
            judgement = carry_out(context)
        except NotJudged as reason:
            remedy = CHECK_AGAIN if str(reason) == context.why_not and not context.evidence.record.is_imported else ""
            judgement = Judgement("unjudged", f"{name}: {reason}", remedy)
        except (Interrupted, ClusterUnreachableError):
            raise
        except LandscapeError as error:
            judgement = Judgement("unjudged", f"{name}: {message_of(error)}")
        results.append(judgement.as_check(number, name))
    return results


def keep_checks(run: str | Path, name: str, checks: Checks) -> None:
    """Store the results of checks with their landscape, for figures, report and page; its values stay as they are.

    Raises:
        LandscapeError: another process writes the run, or it cannot be written.
    """
    keep_with_landscape(open_run(run).path, name, checks=checks)
