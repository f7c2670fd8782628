"""`landscape extend`: more of a landscape, with every value that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, JobRunner, Workers
from cluster.commands.output import Json, show
from cluster.runtime.console import diverted
from cluster.runtime.options import Flag, MaybeWhole, Words
from landscape.core.errors import DONE, JobError, shown

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
            from cluster.commands.extension_plan import extension_text, plan_extension

            with diverted():
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
    """The ranges of `LOW,HIGH` or `LOW,HIGH,LOW,HIGH,…`.

    Raises:
        JobError: it is something else.
    """
    try:
        ends = [float(part) for part in text.split(",")]
    except ValueError:
        ends = []
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    if not pairs or len(ends) % 2 or not all(low < high and abs(low) + abs(high) < float("inf") for low, high in pairs):
        raise JobError(f"range: must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not {shown(text)}")
    return pairs
