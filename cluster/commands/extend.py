"""`landscape extend`: more of a landscape, with every value that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cluster.commands.output import Json, show
from cluster.options import Flag, MaybeWhole, Words, checked_workers
from cluster.process.streams import diverted
from landscape.errors import DONE, JobError, shown

TYPED = {"num_samples": "samples", "observables": "observable", "ranges": "range"}

if TYPE_CHECKING:
    from landscape.results import Run
    from landscape.spec import Job


def extend(
    run: str,
    name: str,
    *,
    samples: MaybeWhole = None,
    observable: Words = None,
    range: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    plan: Flag = False,
    json: Json = False,
    problem: str | None = None,
    folder: Path | None = None,
    serial: Flag = False,
    workers: MaybeWhole = None,
    address: str | None = None,
    allow_open: Flag = False,
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
    problem
        The callback, module:function; default: the one that it was computed with.
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
    from cluster.status import run_status, status_text
    from landscape.extending import More, steps_left
    from landscape.extending import extend as extend_landscape

    with _named_as_typed():
        more = More(samples, tuple(observable or ()), None if range is None else _ranges(range))
        if plan:
            from cluster.commands.extension_plan import extension_text, plan_extension

            with diverted():
                planned = plan_extension(run, name, steps_left(run, name, more), problem, folder, workers)
            show(planned, json, extension_text(planned))
            return DONE
        from cluster.commands.computing import compute
        from landscape.results import open_run

        codes: list[int] = []

        def run_job(job: Job) -> Run:
            code = compute(job, serial=serial, workers=workers, address=address, allow_open=allow_open, shown=False)
            codes.append(code)
            return open_run(job.run_path)

        extend_landscape(
            run, name, num_samples=more.num_samples, observables=more.observables, ranges=more.ranges, problem=problem,
            folder=folder, compute=run_job,
        )  # fmt: skip
        status = run_status(run)
        show(status, json, status_text(status))
        return max(codes, default=DONE)


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
