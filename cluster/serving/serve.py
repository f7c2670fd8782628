"""`landscape serve` from its beginning to its end: Ray, the replicas, the servers, and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn

from cluster.runtime.address import is_loopback
from cluster.runtime.logs import graceful_stop, in_environment, write_remark
from cluster.runtime.placement import Placement, Supply, places, refuse_too_few_places
from cluster.runtime.session import ray_session, refuse_dead_ray, supply
from cluster.serving.landscapes import PointFiles, Replicas, ServedLandscape, check_point_file, lock_point_folder
from cluster.serving.requests import (
    LARGEST_MESSAGE,
    UNAVAILABLE,
    LandscapeInfo,
    Refusal,
    RequestLimits,
    describe_stored,
)
from cluster.serving.resolver import PointCache, Queue, Resolver
from cluster.serving.rest import make_rest_app
from cluster.serving.service import LandscapeService
from cluster.serving.sources import LANDSCAPES, Catalog, LandscapeSource, ReplicaCount, ReplicaStates, scale_of
from landscape.core.errors import Interrupted, JobError, LandscapeError, NotFoundError
from landscape.core.http import (
    BACKLOG,
    Guard,
    ServedRun,
    Server,
    Service,
    announce,
    is_address,
    listen,
    new_token,
    own_names,
)
from landscape.core.progress import stage
from landscape.store.landscape import LandscapeStore

LOOK_SECONDS = 0.1  # between two checks for a signal
TELL_SECONDS = 5.0  # after which the start tells again what it does
WATCH_SECONDS = 2.0  # between two looks at the numbers of replicas
PATIENCE_SECONDS = 30.0  # for a replica that starts, until a missing place is told
DRAIN_SECONDS = 15.0  # for the answers under way; the supervisor grants 20
KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True)
class Serving:
    """How landscapes are served.

    Attributes:
        token: that requests must send; None for a random one, '' for none.
        grpc_port: 0 for no gRPC.
        replicas: MIN or MIN,MAX; None for one, and as many as the cluster has room for.
        keep: whether served values are kept in the runs' folders.
        cache: MiB of values in memory.
        queue: the largest number of requests for which replicas compute at the same time.
    """

    host: str = "127.0.0.1"
    port: int = 8800
    grpc_port: int = 8801
    token: str | None = None
    replicas: str | None = None
    keep: bool = False
    cache: int = 256
    queue: int = 1000
    limits: RequestLimits = field(default_factory=RequestLimits)
    address: str | None = None
    allow_open: bool = False

    @property
    def is_attached(self) -> bool:
        """Whether replicas run on a cluster instead of a private Ray."""
        return (self.address or os.environ.get("RAY_ADDRESS") or "local") != "local"


@dataclass(frozen=True)
class ServiceResources:
    """The resources that a service asks of a Ray session."""

    workers: int | None
    folder: Path
    run_path: str
    problem: Any = None  # nodes find runs and callbacks under the paths of this machine, on a shared file system
    device: str = "auto"
    device_ids: tuple[int, ...] | None = None
    num_gpus: float | None = None
    threads: int | None = None
    max_workers: int | None = None
    worker_resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Listening:
    """The addresses of a service."""

    url: str
    grpc: str
    token: str


def serve_landscapes(catalog: Catalog, serving: Serving, ready: Callable[[Listening], None]) -> None:
    """Serve landscapes until a signal ends it.

    Args:
        ready: is called when the service begins to answer.

    Raises:
        JobError: a landscape cannot be served, or the port is taken.
        Interrupted: a signal ended it; requests that had arrived by then are answered.
    """
    scale = None if serving.replicas is None else scale_of(serving.replicas, 1)
    token = new_token() if serving.token is None else serving.token
    given = () if is_address(serving.host) else (serving.host,)
    guard = Guard(token, own_names(given))
    first = next(iter(catalog))
    asked = ServiceResources(None if scale is None else scale.most, Path.cwd(), first.run)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(_listen(serving.host, serving.port))
        # Serve's own threads, which outlive the session by a moment, would start another Ray.
        stack.enter_context(in_environment("RAY_ENABLE_AUTO_CONNECT", "0"))
        for name, value in handle_settings(serving.is_attached).items():
            stack.enter_context(in_environment(name, value))
        folders = {run: stack.enter_context(lock_point_folder(run)) for run in _runs(catalog)} if serving.keep else {}
        placement = stack.enter_context(ray_session(asked, serving.address, asked.workers, serving.allow_open))
        stopped = stack.enter_context(graceful_stop())
        scale = scale or scale_of(None, placement.workers)
        has = supply()
        refuse_too_few_places(replace(placement, workers=scale.fewest), has)
        _tell_of_little_room(scale, placement, has)
        stage("loading Ray Serve")
        from cluster.serving.deployment import deploy

        def start(sources: Sequence[LandscapeSource]) -> Replicas:
            return deploy(sources, placement, scale)

        asyncio.run(_ServiceRun(catalog, serving, guard, folders, scale, placement, start, stopped, ready).run(opened))
    raise Interrupted("the service has ended; the same command begins it again")


def _tell_of_little_room(scale: ReplicaCount, placement: Placement, has: Supply) -> None:
    """Warn if the cluster will never have room for as many replicas as there may be."""
    room = places(placement, has)
    if room < scale.most and not has.grows:
        request = ", ".join(f"{amount:g} {name}" for name, amount in placement.asks)
        write_remark(
            f"replicas: there may be {scale.most}, but the cluster has room for {room}, each with {request}; give a "
            "smaller MAX, or add nodes",
            level=logging.WARNING,
        )


def handle_settings(is_attached: bool) -> dict[str, str]:
    """Settings of Serve for calls of replicas, which it reads when it is first imported.

    Calls by Serve's gRPC, from the event loop that answers clients, take half the processor time of actor calls from a
    loop of their own. On a cluster the ports of replicas may be closed to this process.
    """
    settings = {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}
    if not is_attached:
        # gRPC would use a proxy from the environment even for replicas on this machine.
        direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112 - as gRPC reads it
        settings |= {
            "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
            # Values of many observables at a batch of points exceed gRPC's default limit of 4 MB.
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(LARGEST_MESSAGE),
            "no_grpc_proxy": f"127.0.0.1,{direct}".rstrip(","),
        }
    return settings


@dataclass
class _ServiceRun:
    """A service from its start to its end."""

    catalog: Catalog
    serving: Serving
    guard: Guard
    folders: Mapping[str, Path]
    scale: ReplicaCount
    placement: Placement
    start: Callable[[Sequence[LandscapeSource]], Any]
    stopped: Callable[[], bool]
    ready: Callable[[Listening], None]
    _point_files: PointFiles = field(default_factory=PointFiles, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _stage: str = field(default="", init=False)

    async def run(self, opened: socket.socket) -> None:
        """Serve until a signal has arrived and the answers under way are sent."""
        replicas = _PendingReplicas()
        resolver = Resolver(
            replicas, PointCache(self.serving.cache << 20), Queue(self.serving.queue), count=self.scale.most
        )
        service = LandscapeService(self.catalog, self.serving.limits, resolver)
        config = uvicorn.Config(
            make_rest_app(service, self.guard), log_config=None, log_level="critical", access_log=False, lifespan="off",
            ws="none", server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = Server(config, lambda: None)
        answering, rpc, rpc_port = asyncio.create_task(server.serve(sockets=[opened])), None, 0
        try:
            if self.serving.grpc_port:
                from cluster.serving.grpc import start_rpc

                rpc, rpc_port = await start_rpc(service, self.guard, self.serving.host, self.serving.grpc_port)
            await self._unless_stopped(self._start_replicas(service, replicas))
            service.state = "ready"
            threading.Thread(target=self._watch, args=(service, replicas.target), daemon=True).start()
            listening = self._listening(opened.getsockname()[1], rpc_port)
            with announce(self._note(listening)):
                self.ready(listening)
                while not self.stopped():
                    refuse_dead_ray()
                    if answering.done():
                        raise LandscapeError("the server has ended by itself; the same command begins it again")
                    await asyncio.sleep(LOOK_SECONDS)
            service.state = "draining"
            await self._drain(service)
        finally:
            self._ended.set()
            if rpc is not None:
                await rpc.stop(1.0)
            server.should_exit = True
            await answering
            if self.serving.is_attached and replicas.target is not None:
                replicas.target.end()  # a private Ray ends them itself
            resolver.end()
            self._point_files.close()

    async def _unless_stopped(self, work: Any) -> None:
        """Carry out work that takes long.

        Raises:
            Interrupted: a signal arrived meanwhile.
        """
        task = asyncio.ensure_future(work)
        known, begin = self._stage, time.monotonic()
        told = begin
        while not task.done():
            now = time.monotonic()
            if self._stage != known:
                known, begin, told = self._stage, now, now
            elif now - told >= TELL_SECONDS:
                told = now
                stage(f"{self._stage}, for {now - begin:.0f} s")
            if self.stopped():
                task.cancel()
                raise Interrupted("the service was ended before it began; the same command begins it again")
            await asyncio.wait([task], timeout=LOOK_SECONDS)
        task.result()

    async def _start_replicas(self, service: LandscapeService, replicas: _PendingReplicas) -> None:
        """Start the replicas, and get the description of every landscape."""
        sources = self.catalog.sources()
        held = min(len(sources), LANDSCAPES)
        self._begin(
            f"starting {self.scale.fewest} replica{'s' if self.scale.fewest > 1 else ''} with {held} "
            f"landscape{'s' if held > 1 else ''}"
        )
        replicas.target = await asyncio.to_thread(self.start, sources)
        service.replicas = ReplicaStates(self.scale.fewest)
        for number, source in enumerate(sources):
            self._begin(f"preparing landscape {number + 1} of {len(sources)}: {source.key}")
            try:
                service.served[source.key] = await self._served(source, replicas, warm=number < LANDSCAPES)
            except Refusal as refusal:
                kind = NotFoundError if refusal.status == 404 else JobError
                raise kind(
                    f"{source.key}: {refusal}" if source.landscape not in str(refusal) else str(refusal)
                ) from None

    async def _served(self, source: LandscapeSource, replicas: Replicas, *, warm: bool) -> ServedLandscape:
        store = LandscapeStore.find(source.run, source.landscape)
        info: LandscapeInfo | None = None
        if store is not None and source.job is None and not store.refusal:
            info = describe_stored(store)
        if warm or info is None:
            info = await replicas.describe(source.key)
        folder = self.folders.get(source.run)
        file = None if folder is None else self._point_files.points_of(folder, source.landscape, info)
        if file is not None:
            await check_point_file(file, source.key, replicas)
        served = ServedLandscape(source, info, point_file=file)
        await asyncio.to_thread(served.read_disk)
        return served

    def _begin(self, text: str) -> None:
        """Tell what the start does now; `_unless_stopped` tells it again while it takes long."""
        self._stage = text
        stage(text)

    def _watch(self, service: LandscapeService, replicas: Any) -> None:
        """Keep the numbers of replicas up to date, and tell of each change, until the service ends.

        It runs in a thread that the end of the process does not wait for: a cluster that is gone may never answer.
        """
        waited = 0.0
        while not self._ended.wait(WATCH_SECONDS):
            with contextlib.suppress(Exception):  # Serve does not answer now; requests tell their clients of it
                before, now = service.replicas, replicas.states()
                service.replicas = now
                if now != before:
                    write_remark(f"replicas: {now.running} running, {now.starting} starting, {self.scale.most} at most")
                waited = waited + WATCH_SECONDS if now.starting else 0.0
                if 0.0 <= waited - PATIENCE_SECONDS < WATCH_SECONDS and (why := replicas.lacking(self.placement)):
                    write_remark(f"replicas: {why}", level=logging.WARNING)

    def _listening(self, port: int, rpc_port: int) -> Listening:
        host = self.serving.host
        name = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
        return Listening(f"http://{name}:{port}", f"{name}:{rpc_port}" if rpc_port else "", self.guard.token)

    def _note(self, listening: Listening) -> Service:
        runs = tuple(
            ServedRun(version.model, version.number, version.run, tuple(version.landscapes)) for version in self.catalog
        )
        return Service(listening.url, listening.grpc, listening.token, os.getpid(), runs)

    async def _drain(self, service: LandscapeService) -> None:
        """Wait until the answers under way are sent."""
        end = time.monotonic() + DRAIN_SECONDS
        while service.resolver.under_way and time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS / 4)


class _PendingReplicas:
    """Stands for the replicas while they start: refuses every call until then."""

    target: Any = None

    def __getattr__(self, name: str) -> Any:
        if self.target is None:
            raise Refusal(UNAVAILABLE, "service: it is starting; ask again later", 2.0)
        return getattr(self.target, name)


def _runs(catalog: Catalog) -> list[str]:
    return list(dict.fromkeys(version.run for version in catalog))


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """A socket at exactly this port, since clients are told the port.

    Raises:
        JobError: the port is taken.
    """
    if not 0 <= port <= 65_535:
        raise JobError(f"port: must be from 0 to 65535, not {port}; 0 is any free one")
    with listen(host, port) as opened:
        if port not in (0, opened.getsockname()[1]):
            raise JobError(f"port: {port} is taken; give another one, or 0 for any free one")
        yield opened


# ----------------------------------------------------------------------------------------------------
# The checks of `landscape serve` before anything starts.


def refuse_token(token: str) -> None:
    """Refuse a token that a header cannot hold unchanged; the message does not repeat it.

    Raises:
        JobError: the token is such a one.
    """
    if not all("!" <= character <= "~" for character in token):
        raise JobError("token: must be visible ASCII characters without blanks, not what was given; choose another one")


def refuse_open_service(host: str, token: str | None) -> None:
    """Refuse a service that other machines can reach and that asks for no token.

    Raises:
        JobError: the service would be such a one.
    """
    if token == "" and not is_loopback(host):
        raise JobError(f"token: must be given where the service listens beyond this machine, not '' at {host}")
