"""`landscape check`: whether the picture of a landscape can be trusted."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.commands.output import Json, show
from cluster.options import Flag, MaybeWhole, checked_workers
from cluster.process.logs import bind, write_remark
from cluster.process.streams import diverted
from landscape.errors import DONE, FAILED, JobError, LandscapeError, NotFoundError, shown

if TYPE_CHECKING:
    from landscape.calculation import Calculator
    from landscape.preparation import PreparedJob, PreparedLandscape
    from landscape.record import Checks


def check(
    run: str,
    name: str | None = None,
    *,
    deep: Flag = False,
    json: Json = False,
    problem: str | None = None,
    folder: Path | None = None,
    serial: Flag = False,
    workers: MaybeWhole = None,
    address: str | None = None,
    allow_open: Flag = False,
) -> int:
    """Judge whether the picture of a landscape can be trusted, by fifteen checks, each with its number and remedy.

    The marks: ✓ holds, ! a reservation, ✗ does not hold, – not judged, and why. What is found is kept with the
    landscape, and the report shows it. Exit code 1 where a check does not hold.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape; default: all of the run.
    deep
        Look for the steepest direction too: about 60 products with the Hessian.
    problem
        The callback, module:function; default: the one that the landscape was computed with.
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
    from landscape.record import plain
    from landscape.results import open_run

    opened = open_run(run)
    bind(run=opened.path)
    names = list(opened) if name is None else [name]
    if not names:
        raise NotFoundError(f"run {shown(opened.path, 300)} holds no landscape; `landscape run JOB` computes one")
    options = {"serial": serial, "workers": workers, "address": address, "allow_open": allow_open}
    found = check_all(opened.path, names, deep=deep, problem=problem, folder=folder, **options)
    data = [{"name": each, "verdict": checks.verdict, **plain(checks)} for each, checks in found.items()]
    show({"run": opened.path, "landscapes": data}, json, texts_of(found))
    return FAILED if any(checks.fails for checks in found.values()) else DONE


def check_all(
    run: str, names: list[str], *, deep: bool = False, problem: str | None = None, folder: Path | None = None,
    **options: Any,
) -> dict[str, Checks]:  # fmt: skip
    """Check landscapes of a run one after another, and keep what is found where the run can be written.

    Args:
        options: those of `calculator_of`.
    """
    from cluster.driver.calculators import calculator_of
    from landscape.checks import check_landscape, keep_checks

    def calculator(
        prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int
    ) -> AbstractContextManager[Calculator]:
        return calculator_of(prepared, landscape, evaluations, **options)

    found = {}
    with diverted():
        for name in names:
            found[name] = check_landscape(run, name, deep=deep, problem=problem, folder=folder, calculator=calculator)
            try:
                keep_checks(run, name, found[name])
            except LandscapeError as error:
                write_remark(f"what was found of {name} is not kept: {error}")
    return found


def texts_of(found: dict[str, Checks]) -> str:
    """What was found of several landscapes, as text."""
    from landscape.checks import checks_text

    return "\n\n".join(checks_text(name, checks) for name, checks in found.items())
