"""Replicas on Ray Serve: their number, their resources, and the handle that calls them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, HTTPOptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.schema import LoggingConfig

from cluster.runtime.address import is_loopback
from cluster.runtime.placement import Placement, explain_placement
from cluster.runtime.session import processes_named, supply
from cluster.serving.batching import is_cancelled_here
from cluster.serving.replica import ComputedValues, Curvature, DerivativeKind, Gradient, LoadedLandscape, Replica
from cluster.serving.requests import FAILED, UNAVAILABLE, LandscapeInfo, Refusal
from cluster.serving.resolver import CALLS_PER_REPLICA
from cluster.serving.sources import LANDSCAPES, LandscapeSource, ReplicaCount, ReplicaStates
from landscape.core.errors import one_line
from landscape.core.grid import Floats

APPLICATION, DEPLOYMENT, LOOPBACK = "landscape", "replica", "127.0.0.1"
BEFORE_RUNNING = ("STARTING", "UPDATING", "RECOVERING", "PENDING_MIGRATION")  # states of replicas, as Serve has them
ONGOING = 10_000  # requests of a replica: the service's own queue bounds them
MOST_HANDED_OVER = 512  # requests that Serve passes on at once
TRIES, PAUSE_SECONDS = 60, 0.25  # for a request whose replica has died, while another replica starts

log = logging.getLogger("landscape")


@dataclass(eq=False)
class _Request:
    """One of the requests that Serve passes on together; each may be cancelled alone."""

    key: str
    points: Floats
    _task: asyncio.Task[ComputedValues | Refusal] | None = None
    _dropped: bool = False

    async def answer(self, points: Callable[[str, Floats], Coroutine[Any, Any, ComputedValues | Refusal]]) -> Any:
        """The request's answer; None if the client no longer waits."""
        if self._dropped:
            return None
        self._task = asyncio.create_task(points(self.key, self.points))
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.result()

    def drop(self) -> None:
        """Cancel its computation."""
        self._dropped = True
        if self._task is not None:
            self._task.cancel()


class ServedReplica(Replica):
    """A replica that Ray Serve runs."""

    async def __init__(self, sources: Sequence[LandscapeSource], path: Sequence[str]) -> None:  # type: ignore[misc]
        """Load the landscapes, too: Serve gives a replica no call before this ends, and a call would wait for them."""
        _keep_to_loopback()
        super().__init__(sources, path)
        self.loading = self.multiplexed
        for source in sources[:LANDSCAPES]:
            try:
                await self.multiplexed(source.key)
            except Exception as error:  # those who ask for it are told; the other landscapes can be served
                log.info("replica: %s is not loaded: %s", source.key, one_line(error))

    @serve.multiplexed(max_num_models_per_replica=LANDSCAPES)  # type: ignore[untyped-decorator]
    async def multiplexed(self, key: str) -> LoadedLandscape:
        """A landscape that is ready; if there is no room, the least recently used one is dropped."""
        return await self.in_thread(self.make, key)

    @serve.batch(max_batch_size=MOST_HANDED_OVER, batch_wait_timeout_s=0.0, max_concurrent_batches=ONGOING)  # type: ignore[untyped-decorator]
    async def batched(self, asked: list[_Request]) -> list[ComputedValues | Refusal | None]:
        """The answers of requests that arrived together; while others are computed, they join larger batches."""
        return list(await asyncio.gather(*(request.answer(self.points) for request in asked)))

    async def ask_points(self, key: str, points: Floats) -> ComputedValues | Refusal:
        """The values at points."""
        asked = _Request(key, points)
        try:
            return await self.batched(asked)  # type: ignore[no-any-return]
        finally:
            asked.drop()


class RayReplicas:
    """Calls the replicas. If a replica dies, another one answers its requests.

    This is safe, since values depend on the point alone: any replica computes the same bits.
    """

    def __init__(self, name: str, handle: Any, *, routed: bool) -> None:
        """
        Args:
            routed: there are more landscapes than a replica holds, so a request goes to a replica with its landscape.
        """
        self._name, self._handle, self._routed = name, handle, routed

    async def points(self, key: str, points: Floats) -> ComputedValues:
        """The values at points [P, axes]."""
        return await self._ask("ask_points", key, points)  # type: ignore[no-any-return]

    async def derivative(self, key: str, kind: DerivativeKind, point: Sequence[float]) -> Gradient | Curvature:
        """The first or the second derivatives of the loss along the axes at a point."""
        return await self._ask("derivative", key, kind, point)  # type: ignore[no-any-return]

    async def describe(self, key: str) -> LandscapeInfo:
        """The description of a landscape, which is loaded if needed."""
        return await self._ask("describe", key)  # type: ignore[no-any-return]

    async def _ask(self, method: str, key: str, *arguments: Any) -> Any:
        """The result of a replica's method.

        Raises:
            Refusal: the replica refuses, or no replica answers within the tries.
        """
        handle = self._handle.options(method_name=method, **({"multiplexed_model_id": key} if self._routed else {}))
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE_SECONDS)
            try:
                answer = await _answer(handle.remote(key, *arguments))
            except RayTaskError as error:
                raise Refusal(FAILED, f"replica: {one_line(error)}") from error
            except (RayActorError, WorkerCrashedError, BackPressureError, grpc.aio.AioRpcError) as error:
                log.info("replica: %s; asking another one", one_line(error))
                continue
            except (DeploymentUnavailableError, RayError) as error:
                raise Refusal(UNAVAILABLE, f"replicas: none answers: {one_line(error)}", 5.0) from error
            except asyncio.CancelledError:
                if is_cancelled_here():
                    raise
                log.info("replica: it has ended before its answer; asking another one")
                continue
            except Exception as error:  # an error of the replica, which a gRPC call raises unchanged
                raise Refusal(FAILED, f"replica: {one_line(error)}") from error
            if isinstance(answer, Refusal):
                raise answer
            return answer
        raise Refusal(UNAVAILABLE, "replicas: none answers, each that was started has died; see the log", 5.0)

    def states(self) -> ReplicaStates:
        """How many replicas there are in each state, as Serve's controller knows it now."""
        known = serve.status().applications[self._name].deployments[DEPLOYMENT].replica_states
        return ReplicaStates(known.get("RUNNING", 0), sum(known.get(state, 0) for state in BEFORE_RUNNING))

    def lacking(self, placement: Placement) -> str:
        """What keeps a further replica from starting; '' if the cluster has room for it, or if it loads already."""
        known = self.states()
        if processes_named(self._name) >= known.running + known.starting:
            return ""
        free = ray.available_resources()
        if all(free.get(name, 0.0) >= amount for name, amount in placement.asks):
            return ""
        return explain_placement(placement, supply(), free, "further replica")

    def end(self) -> None:
        """End the replicas, if the cluster is not this process's own."""
        serve.delete(self._name, _blocking=False)


def _keep_to_loopback() -> None:
    """Make the server that Serve starts in this process listen on the loopback alone, as a private Ray does.

    Each replica has such a server, at all addresses, for the handles of other processes. It unpickles every message,
    and if Ray asks for no token, anybody may send one. Serve has no option for it. Ray 2.52 has no such server.
    """
    from ray.serve._private import replica

    add = getattr(replica, "add_port_to_grpc_server", None)
    if add is not None and is_loopback(ray.util.get_node_ip_address()):
        replica.add_port_to_grpc_server = lambda server, address: add(server, address.replace("[::]", LOOPBACK))


async def _answer(response: Any) -> Any:
    """The answer of a replica; if the client no longer waits, the replica is told to stop."""
    try:
        return await response
    except asyncio.CancelledError:
        if is_cancelled_here():
            response.cancel()
        raise


def deploy(sources: Sequence[LandscapeSource], placement: Placement, scale: ReplicaCount) -> RayReplicas:
    """Start replicas on the attached Ray; returns when the first one answers.

    Raises:
        RuntimeError: Serve cannot start them.
    """
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    # Requests come only by the handle: this process has its own HTTP and gRPC servers, without Serve's proxy.
    serve.start(http_options=HTTPOptions(location="NoServer"), logging_config=quiet)
    name = f"{APPLICATION}-{os.getpid()}"
    deployment = serve.deployment(
        name=DEPLOYMENT,
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": placement.num_cpus, "num_gpus": placement.num_gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=scale.fewest, max_replicas=scale.most, initial_replicas=scale.fewest,
            target_ongoing_requests=CALLS_PER_REPLICA, upscale_delay_s=5.0, downscale_delay_s=120.0,
        ),
        health_check_period_s=1.0,
        health_check_timeout_s=60.0,
        graceful_shutdown_timeout_s=5.0,
        logging_config=quiet,
    )(ServedReplica)  # fmt: skip
    path = tuple(map(os.path.abspath, sys.path))
    handle = serve.run(deployment.bind(list(sources), path), name=name, route_prefix=None)
    return RayReplicas(name, handle, routed=len(sources) > LANDSCAPES)
