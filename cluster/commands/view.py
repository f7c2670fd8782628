"""`landscape view`: the page over runs, live while jobs write them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cluster.runtime.options import Flag, Whole, Words


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
        Runs, folders of runs, or URLs such as s3://bucket/runs; default: the folder runs.
    host
        The address to listen at; 0.0.0.0 for all of this machine. Others reach it only with the token.
    port
        The port to listen at; where it is taken, a free one.
    no_open
        Do not open a browser.
    allow_host
        A further name under which the page may be asked for, such as that of a proxy; may be repeated.
    """
    from cluster.commands.viewing import view_places

    return view_places(places or ("runs",), host, port, allow_host or (), opens=not no_open)
