"""Serve the page for a command: its address on stdout, what it does on stderr, a browser where there is one."""

from __future__ import annotations

import logging
import os
import sys
import webbrowser
from collections.abc import Sequence

from cluster.runtime.console import put
from cluster.runtime.logs import write_remark
from landscape.core.errors import DONE, JobError


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
        from landscape.page.server import Address, serve
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

    serve([open_place(place) for place in places], host=host, port=port, allow_hosts=allow_hosts, ready=ready)
    return DONE


def has_screen() -> bool:
    """Whether a browser on this machine would be seen: not on a login node, nor in a container."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
