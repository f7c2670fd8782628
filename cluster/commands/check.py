"""`landscape check`: whether the picture of a landscape can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, CallbackOptions, WorkerOptions, Workers
from cluster.commands.output import Json, show
from cluster.runtime.console import diverted
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag
from landscape.core.errors import DONE, FAILED, PARTIAL, LandscapeError, NotFoundError, shown

if TYPE_CHECKING:
    from landscape.surface.record_entries import Checks


def check(
    run: str,
    name: str | None = None,
    *,
    deep: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Judge whether the picture of a landscape can be trusted, by fifteen checks, each with its number and remedy.

    The marks: ✓ holds, ! a reservation, ✗ does not hold, – not judged, and why. What is found is kept with the
    landscape, and the report shows it. Exit code 1 where a check does not hold, else 4 where the network of a landscape
    could not be evaluated, so that it is not judged.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape; default: all of the run.
    deep
        Look for the steepest direction too: about 60 products with the Hessian.
    """
    who.check()
    from landscape.store.results import open_run
    from landscape.surface.record import plain

    opened = open_run(run)
    bind(run=opened.path)
    names = list(opened) if name is None else [name]
    if not names:
        raise NotFoundError(f"run {shown(opened.path, 300)} holds no landscape; `landscape run JOB` computes one")
    found = check_all(opened.path, names, deep=deep, callback=callback, who=who)
    data = [
        {"name": each, "verdict": checks.verdict, "judged": not checks.not_judged, **plain(checks)}
        for each, checks in found.items()
    ]
    show({"run": opened.path, "landscapes": data}, json, texts_of(found))
    if any(checks.fails for checks in found.values()):
        return FAILED
    return PARTIAL if any(checks.not_judged for checks in found.values()) else DONE


def check_all(
    run: str, names: list[str], *, deep: bool = False, callback: CallbackOptions = AS_RECORDED,
    who: WorkerOptions = ANYONE,
) -> dict[str, Checks]:  # fmt: skip
    """Check landscapes of a run one after another, and keep what is found where the run can be written."""
    from landscape.analysis.checks.table import check_landscape, keep_checks

    found = {}
    with diverted():
        for name in names:
            found[name] = check_landscape(
                run, name, deep=deep, problem=callback.problem, folder=callback.folder, calculator=who.calculator
            )
            try:
                keep_checks(run, name, found[name])
            except LandscapeError as error:
                write_remark(f"what was found of {name} is not kept: {error}")
    return found


def texts_of(found: dict[str, Checks]) -> str:
    """What was found of several landscapes, as text."""
    from landscape.analysis.checks.check import checks_text

    return "\n\n".join(checks_text(name, checks) for name, checks in found.items())
