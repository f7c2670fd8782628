"""The workers of a job on Ray: hired where a landscape first needs them, kept while its levels are computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from cluster.runtime.logs import graceful_stop
from cluster.runtime.session import ray_session
from landscape.compute.prepared import PreparedJob

if TYPE_CHECKING:
    from cluster.driver.crew import RayCrew
    from cluster.runtime.metrics import Metrics


@dataclass
class Company:
    """A Ray session with its workers, from the first need of them to the end of the block.

    Starting both takes seconds, which a level of refinement often does not. Once Ray runs, all that follows is computed
    on it: what is computed in this process must not share it with a session.

    Attributes:
        workers: how many actors; default: one per GPU, else one per core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
    """

    workers: int | None = None
    address: str | None = None
    allow_open: bool = False
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _hired: tuple[RayCrew, Callable[[], bool]] | None = field(default=None, init=False)

    def __enter__(self) -> Company:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def workers_for(self, prepared: PreparedJob) -> tuple[RayCrew, Callable[[], bool]]:
        """The crew, and whether a signal has come since it was hired.

        Args:
            prepared: the job; every later one has its problem and its samples.
        """
        if self._hired is None:
            # Importing Ray takes seconds, which what is computed here should not cost.
            from cluster.driver.crew import RayCrew

            session = ray_session(prepared.job, self.address, self.workers, self.allow_open)
            placement = self._stack.enter_context(session)
            # The handlers of signals come after `ray.init`, which installs some of its own.
            signalled = self._stack.enter_context(graceful_stop())
            crew = RayCrew(prepared, placement, self.workers)
            self._stack.callback(crew.close)
            self._hired = crew, signalled
        else:
            self._hired[0].part_with_busy()
        return self._hired

    @cached_property
    def metrics(self) -> Metrics:
        """What Ray's metrics are told of the job."""
        from cluster.runtime.metrics import Metrics

        return Metrics()
