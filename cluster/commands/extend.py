"""More of a landscape, with every value that is known: `landscape extend` and `landscape refine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.output import ANYONE, AS_RECORDED, Callback, JobRunner, Json, Workers, show
from cluster.runtime.console import divert_stdout
from cluster.runtime.options import Flag, MaybeWhole, Words
from landscape.core.errors import DONE, JobError, quoted

TYPED = {"num_samples": "samples", "observables": "observable", "ranges": "range"}


def extend(
    run: str,
    name: str,
    *,
    samples: MaybeWhole = None,
    observable: Words = None,
    range: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Add samples, observables or a wider range to a landscape that is complete; every value that is known is kept.

    The result is what asking for all of it at once with the same plan would have given, to the bit. It is computed as
    NAME.extending and takes the place of NAME when it is complete; interrupted, the same command goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    samples
        How many samples it shall have; the ones it has are the first of them.
    observable
        What observe returns by now and the landscape does not hold; may be repeated.
    range
        A wider range by whole steps, LOW,HIGH for all axes or LOW,HIGH,LOW,HIGH for each.
    plan
        Show what it costs, step by step where several things are asked for, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.extend import More, steps_left
    from landscape.compute.extend import extend as extend_landscape

    with _named_as_typed():
        more = More(samples, tuple(observable or ()), None if range is None else _ranges(range))
        if plan:
            from cluster.commands.planning import extension_text, plan_extension

            with divert_stdout():
                planned = plan_extension(
                    run, name, steps_left(run, name, more), callback.problem, callback.folder, who.workers
                )
            show(planned, json, extension_text(planned))
            return DONE
        runner = JobRunner(who)
        extend_landscape(
            run, name, num_samples=more.num_samples, observables=more.observables, ranges=more.ranges,
            problem=callback.problem, folder=callback.folder, compute=runner,
        )  # fmt: skip
        status = run_status(run)
        show(status, json, status_text(status))
        return runner.code


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Have errors name what the user has typed, where `landscape.extend` calls it otherwise."""
    try:
        yield
    except JobError as error:
        field, _, rest = str(error).partition(": ")
        if field not in TYPED:
            raise
        raise type(error)(f"{TYPED[field]}: {rest}") from error.__cause__


def _ranges(text: str) -> Sequence[tuple[float, float]]:
    """The ranges of `LOW,HIGH` or `LOW,HIGH,LOW,HIGH,…`."""
    pairs = _pairs(text)
    if not pairs or not all(low < high and abs(low) + abs(high) < float("inf") for low, high in pairs):
        raise JobError(f"range: must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not {quoted(text)}")
    return pairs


def _pairs(text: str) -> list[tuple[float, float]]:
    """The pairs of `LOW,HIGH,LOW,HIGH,…`; none where it is something else."""
    try:
        ends = [float(part) for part in text.split(",")]
        return list(zip(ends[::2], ends[1::2], strict=True))
    except ValueError:
        return []


def refine(
    run: str,
    name: str,
    *,
    box: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    factor: MaybeWhole = None,
    plan: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Make a landscape that is complete finer, in a box or everywhere; every point that is there is kept.

    The new points are those of a job that asks for the finer grid at once, to the bit. They lie with the landscape, and
    every figure and export shows all of them; interrupted, the same command goes on.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    box
        LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2; widened to whole blocks of 8 cells; default: everywhere.
    factor
        2 or 4: by how much the steps are divided; default: 2.
    plan
        Show what it costs, level by level, and write nothing.
    """
    who.check()
    from cluster.runtime.status import run_status, status_text
    from landscape.compute.refine import refine as refine_landscape
    from landscape.store.levels import Finer, levels_left
    from landscape.store.results import open_run

    finer = Finer(2 if factor is None else factor, None if box is None else _corners(box))
    if plan:
        from cluster.commands.planning import plan_refinement, refinement_text

        with divert_stdout():
            planned = plan_refinement(
                run, name, levels_left(open_run(run).path, name, finer), callback.problem, callback.folder, who.workers
            )
        show(planned, json, refinement_text(planned))
        return DONE
    runner = JobRunner(who)
    refine_landscape(
        run, name, factor=finer.factor, box=finer.box, problem=callback.problem, folder=callback.folder, compute=runner
    )
    status = run_status(run)
    show(status, json, status_text(status))
    return runner.code


def _corners(text: str) -> list[tuple[float, float]]:
    """The ends of a box on each axis."""
    pairs = _pairs(text)
    if not pairs:
        raise JobError(f"box: must be LOW,HIGH of each axis, such as --box=-0.5,0.5,-0.2,0.2, not {quoted(text)}")
    return pairs
