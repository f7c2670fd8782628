"""The options of commands that compute: which callback, and whether this process or workers; each text is its help."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cluster.runtime.options import Flag, MaybeWhole, checked_workers
from landscape.core.errors import DONE, JobError

if TYPE_CHECKING:
    from landscape.compute.executor import Calculator
    from landscape.compute.prepared import PreparedJob, PreparedLandscape
    from landscape.job.job import Job
    from landscape.store.results import Run


@dataclass(frozen=True)
class CallbackOptions:
    """Which callback gives the problem of a landscape that is on disk."""

    problem: str | None = None
    """The callback, module:function; default: the one that it was computed with."""
    folder: Path | None = None
    """Where the callback is looked up first; default: where it was then."""


@dataclass(frozen=True)
class WorkerOptions:
    """Who computes: this process, or workers on Ray."""

    serial: Flag = False
    """In this process, without Ray: the reference."""
    workers: MaybeWhole = None
    """How many actors; default: one per GPU, else one per core."""
    address: str | None = None
    """host:port or auto, to attach to a Ray cluster; default: RAY_ADDRESS, else a private local Ray."""
    allow_open: Flag = False
    """Also attach to a cluster that is not on this machine and asks for no token."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            JobError: this process is to compute alone, and workers are asked for; or there cannot be so many.
        """
        if self.serial and (self.workers or self.address):
            raise JobError("serial: runs in this process alone; leave out workers and address")
        checked_workers(self.workers)

    def compute(self, job: Job, *, shown: bool = True, accept_origin: bool = False) -> int:
        """Compute a job with progress on stderr; the exit code.

        Args:
            shown: whether a line per landscape is printed.
            accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside.
        """
        from cluster.commands.computing import compute

        return compute(
            job, serial=self.serial, workers=self.workers, address=self.address, allow_open=self.allow_open,
            shown=shown, accept_origin=accept_origin,
        )  # fmt: skip

    def calculator(
        self, prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int
    ) -> AbstractContextManager[Calculator]:
        """What answers questions about a landscape, see `calculator_of`."""
        from cluster.driver.executor import calculator_of

        return calculator_of(
            prepared, landscape, evaluations,
            serial=self.serial, workers=self.workers, address=self.address, allow_open=self.allow_open,
        )  # fmt: skip


@dataclass
class JobRunner:
    """Computes the jobs of a command one after another, and remembers how they ended.

    Attributes:
        accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside.
        code: the exit code of the command: that of the job which ended worst.
    """

    options: WorkerOptions
    accept_origin: bool = False
    code: int = field(default=DONE, init=False)

    def __call__(self, job: Job) -> Run:
        """Compute a job; its run, opened for reading."""
        from landscape.store.results import open_run

        self.code = max(self.code, self.options.compute(job, shown=False, accept_origin=self.accept_origin))
        return open_run(job.run_path)


# As parameters of a command, whose fields are options of it.
Callback = Annotated[CallbackOptions, Parameter(name="*")]
Workers = Annotated[WorkerOptions, Parameter(name="*")]
AS_RECORDED, ANYONE = CallbackOptions(), WorkerOptions()
