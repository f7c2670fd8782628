"""The commands that show landscapes to others: as a page, `landscape view`; point by point, `serve`."""

from __future__ import annotations

import contextlib
import json as json_module
import logging
import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cluster.commands.output import AS_RECORDED, Callback, Json
from cluster.runtime.console import command_progress, put, stdout_as_it_is
from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag, Whole, Words
from landscape.core.errors import DONE, JobError, quoted
from landscape.core.progress import stage

if TYPE_CHECKING:
    from cluster.serving.serve import Listening


# ----------------------------------------------------------------------------------------------------
# Services over HTTP: any point on demand, and the page over runs.

TOKEN = "LANDSCAPE_TOKEN"


@dataclass(frozen=True)
class ServeOptions:
    """The addresses of the service, and its limits."""

    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 for all of this machine."""
    port: Whole = 8800
    """The port for REST; 0 for any free one."""
    grpc_port: Whole = 8801
    """The port for gRPC; 0 for none."""
    token: str | None = None
    """What requests must bring; '' for none, on the loopback address alone. Default: LANDSCAPE_TOKEN, else a random
    one."""
    replicas: str | None = None
    """MIN or MIN,MAX processes that compute; default: one, and with more to do as many as there are GPUs, or cores.
    Another one starts when requests have waited for several seconds."""
    keep: Flag = False
    """Keep the values that were served in RUN/served."""
    max_points: Whole = 100_000
    """The most points of one request."""
    queue: Whole = 1000
    """The most requests that are computed for at once; others are answered by 429."""
    cache: Whole = 256
    """MiB of values that are kept in memory."""
    address: str | None = None
    """host:port or auto, to attach to a Ray cluster whose nodes see the same files; default: RAY_ADDRESS, else a
    private local Ray."""
    allow_open: Flag = False
    """Also attach to a cluster that is not on this machine and asks for no token."""

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            JobError: an option is out of range.
        """
        for name, number in (("max-points", self.max_points), ("queue", self.queue)):
            if number < 1:
                raise JobError(f"{name}: must be from 1 on, not {number}")
        if not 0 <= self.grpc_port <= 65_535:
            raise JobError(f"grpc-port: must be from 0 to 65535, not {self.grpc_port}; 0 is no gRPC")
        if self.cache < 0:
            raise JobError(f"cache: must be from 0 on, not {self.cache}")


USUAL = ServeOptions()


NEEDED_BY_SERVE = ("ray", "fastapi", "starlette", "uvicorn", "grpc", "google.protobuf", "prometheus_client")


def _refuse_without_serve() -> None:
    """Refuse to serve where a package of the extra `serve` is missing: `cluster.serving` cannot be imported then.

    Raises:
        JobError: says what to install.
    """
    for name in NEEDED_BY_SERVE:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # the parent package is missing
            found = None
        if found is None:
            raise JobError(f"serve: needs the package {name}; `pip install 'loss-landscape-cluster[serve]'`")


def serve(
    *places: str,
    how: Annotated[ServeOptions, Parameter(name="*")] = USUAL,
    json: Json = False,
    callback: Callback = AS_RECORDED,
) -> None:
    """Serve landscapes: any point of them on demand, by REST and gRPC, computed on Ray Serve. Ctrl-C ends it.

    Prints its address and its token when it is ready, and until then what it does. What the grid holds comes from the
    run, to the bit. Prometheus reads its metrics at /metrics, with the token.

    Parameters
    ----------
    places
        Runs, packed runs, job files or packed jobs, each with NAME= before it where it gets a name; default: that of
        its folder. A name that stands several times has versions 1, 2, …
    """
    if not places:
        raise JobError("places: must name a run or a job; landscape serve RUN")
    how.check()
    _refuse_without_serve()
    with stdout_as_it_is() as put_line, contextlib.ExitStack() as starting:
        starting.enter_context(command_progress())
        stage("loading the service")
        from cluster.serving.requests import RequestLimits
        from cluster.serving.serve import Serving, refuse_open_service, refuse_token, serve_landscapes
        from cluster.serving.sources import catalog_of, split_name
        from landscape.store.packed_run import is_packed_run

        token = os.environ.get(TOKEN) if how.token is None else how.token
        refuse_token(token or "")
        refuse_open_service(how.host, token)
        named = [place for _, place in map(split_name, places)]
        if how.keep and (packed := next(filter(is_packed_run, named), None)):
            raise JobError(f"keep: must be left out for the packed run {quoted(packed)}, which is only read")
        runs = [place for place in named if not os.path.isfile(place)]
        catalog = catalog_of(places, callback.problem, callback.folders(runs))
        serving = Serving(
            how.host, how.port, how.grpc_port, token, how.replicas, how.keep, how.cache, how.queue,
            RequestLimits(how.max_points), how.address, how.allow_open,
        )  # fmt: skip

        def ready(listening: Listening) -> None:
            starting.close()
            values = {name: value for name, value in vars(listening).items() if value}
            put_line(json_module.dumps(values) if json else "\n".join(f"{name} {values[name]}" for name in values))

        serve_landscapes(catalog, serving, ready)


def view(
    *places: str,
    host: str = "127.0.0.1",
    port: Whole = 8765,
    no_open: Flag = False,
    allow_host: Annotated[Words, Parameter(consume_multiple=False)] = None,
) -> int:
    """Show runs in the browser, live while jobs write them. Reads only; Ctrl-C ends it.

    Prints the address with its token: whoever opens it sees the page, nobody else does.

    Parameters
    ----------
    places
        Runs, packed runs, folders of runs, or URLs such as s3://bucket/runs; default: the folder runs.
    host
        The address to listen at; 0.0.0.0 for all of this machine. Others reach it only with the token.
    port
        The port to listen at; where it is taken, a free one.
    no_open
        Do not open a browser.
    allow_host
        A further name under which the page may be asked for, such as that of a proxy; may be repeated.
    """

    return view_places(places or ("runs",), host, port, allow_host or (), opens=not no_open)


def view_places(places: Sequence[str], host: str, port: int, allow_hosts: Sequence[str], *, opens: bool) -> int:
    """Serve the page over these places until a signal ends it.

    Args:
        opens: open a browser, where this machine has a screen.

    Raises:
        NotFoundError: a place does not exist.
        JobError: a package is missing, a place is malformed, or the server cannot listen there.
        Interrupted: a signal ended it.
    """
    if not 0 <= port <= 65_535:
        raise JobError(f"port: must be from 0 to 65535, not {port}; 0 is any free one")
    try:
        from landscape.page.server import Address, serve_page
        from landscape.store.status import open_place
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "sse_starlette"):
            raise
        raise JobError(f"view: needs the package {error.name}; `pip install 'loss-landscape-cluster[page]'`") from None

    def ready(address: Address) -> None:
        if port not in (0, address.port):
            write_remark(f"port {port} is taken, so the page is at port {address.port}", "port", logging.INFO)
        put(address.url)
        sys.stdout.flush()
        if opens and has_screen():
            webbrowser.open(address.url)

    serve_page([open_place(place) for place in places], host=host, port=port, allow_hosts=allow_hosts, ready=ready)
    return DONE


def has_screen() -> bool:
    """Whether this machine has a screen for a browser; login nodes and containers have none."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
