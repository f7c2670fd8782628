"""A calculator for a command: this process where it is done sooner, else the workers of a Ray that ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.driver.policy import Policy
from cluster.driver.short_jobs import is_quicker_here
from cluster.runtime.logs import graceful_stop
from cluster.runtime.session import ray_session
from landscape.compute.executor import Calculator, LocalCalculator
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import stage


@contextmanager
def calculator_of(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    evaluations: int,
    *,
    serial: bool = False,
    workers: int | None = None,
    address: str | None = None,
    allow_open: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Calculator]:
    """Within the block, a calculator for questions about a landscape; its workers end with the block.

    Args:
        evaluations: about how many the questions cost, an evaluation of all samples each; decides who answers.
        serial: answer in this process, whatever it costs.
        workers: how many actors; default: as the job says, else one per GPU, else one per core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        stop: is asked several times a second; when true, and after a signal, `Interrupted` is raised.

    Raises:
        JobError: the job asks for what the cluster cannot give.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
    """
    if serial or is_quicker_here(prepared, landscape, evaluations, workers, address, searches=False):
        with graceful_stop() as signalled:
            yield LocalCalculator(prepared, landscape, lambda: stop() or signalled())
        return
    # Importing Ray takes seconds, which what is computed here should not cost.
    from cluster.driver.crew import RayCrew
    from cluster.driver.executor import RayCalculator
    from cluster.runtime.metrics import Metrics

    # The handlers of signals come after `ray.init`, which installs some of its own.
    with ray_session(prepared.job, address, workers, allow_open) as placement, graceful_stop() as signalled:
        stage("starting workers")
        crew = RayCrew(prepared, placement, workers)
        calculator = RayCalculator(crew, lambda: stop() or signalled(), Policy(), Metrics())
        try:
            yield calculator
        finally:
            calculator.close()
