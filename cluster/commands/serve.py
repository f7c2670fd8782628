"""`landscape serve`: any point of any landscape on demand."""

from __future__ import annotations

import json as json_module
import os
from typing import TYPE_CHECKING

from cluster.commands.computing_options import AS_RECORDED, Callback
from cluster.commands.output import Json
from cluster.runtime.options import Flag, Whole
from landscape.core.errors import JobError

if TYPE_CHECKING:
    from cluster.serving.serve import Listening

TOKEN = "LANDSCAPE_TOKEN"


def serve(
    *places: str,
    host: str = "127.0.0.1",
    port: Whole = 8800,
    grpc_port: Whole = 8801,
    token: str | None = None,
    replicas: str | None = None,
    keep: Flag = False,
    max_points: Whole = 100_000,
    queue: Whole = 1000,
    cache: Whole = 256,
    address: str | None = None,
    allow_open: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
) -> None:
    """Serve landscapes: any point of them on demand, by REST and gRPC, computed on Ray Serve. Ctrl-C ends it.

    Prints its address and its token when it is ready. What the grid holds comes from the run, to the bit.

    Parameters
    ----------
    places
        Runs, job files or packed jobs, each with NAME= before it where it gets a name; default: that of its folder.
        A name that stands several times has versions 1, 2, …
    host
        The address to listen at; 0.0.0.0 for all of this machine.
    port
        The port for REST; 0 for any free one.
    grpc_port
        The port for gRPC; 0 for none.
    token
        What requests must bring; '' for none, on the loopback address alone. Default: LANDSCAPE_TOKEN, else a random
        one.
    replicas
        MIN or MIN,MAX processes that compute; default: one, and with more to do as many as there are GPUs, or cores.
    keep
        Keep the values that were served in RUN/served.
    max_points
        The most points of one request.
    queue
        The most requests that are computed for at once; others are answered by 429.
    cache
        MiB of values that are kept in memory.
    address
        host:port or auto, to attach to a Ray cluster whose nodes see the same files; default: RAY_ADDRESS, else a
        private local Ray.
    allow_open
        Also attach to a cluster that is not on this machine and asks for no token.
    """
    if not places:
        raise JobError("places: must name a run or a job; landscape serve RUN")
    for name, number in (("max-points", max_points), ("queue", queue)):
        if number < 1:
            raise JobError(f"{name}: must be from 1 on, not {number}")
    if not 0 <= grpc_port <= 65_535:
        raise JobError(f"grpc-port: must be from 0 to 65535, not {grpc_port}; 0 is no gRPC")
    if cache < 0:
        raise JobError(f"cache: must be from 0 on, not {cache}")
    from cluster.serving.serve import refuse_open_service, refuse_token, refuse_without_serve

    refuse_without_serve()
    token = os.environ.get(TOKEN) if token is None else token
    refuse_token(token or "")
    refuse_open_service(host, token)
    from cluster.runtime.console import stdout_as_it_is
    from cluster.serving.requests import Limits
    from cluster.serving.serve import Serving
    from cluster.serving.serve import serve as serve_landscapes
    from cluster.serving.sources import catalog_of

    catalog = catalog_of(places, callback.problem, callback.folder)
    serving = Serving(
        host, port, grpc_port, token, replicas, keep, cache, queue, Limits(max_points), address, allow_open
    )
    with stdout_as_it_is() as put_line:

        def ready(listening: Listening) -> None:
            known = {name: value for name, value in vars(listening).items() if value}
            put_line(json_module.dumps(known) if json else "\n".join(f"{name} {known[name]}" for name in known))

        serve_landscapes(catalog, serving, ready)
