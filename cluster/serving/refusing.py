"""What `landscape serve` refuses before anything starts."""

from __future__ import annotations

from importlib.util import find_spec

from cluster.runtime.address import is_loopback
from landscape.core.errors import JobError

NEEDED = ("ray", "fastapi", "starlette", "uvicorn", "google.protobuf")


def refuse_without_serve() -> None:
    """Refuse where Ray is installed without Serve.

    Raises:
        JobError: says what to install.
    """
    for name in NEEDED:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # the package around it
            found = None
        if found is None:
            raise JobError(f"serve: needs the package {name}; `pip install 'loss-landscape-cluster[serve]'`")


def refuse_token(token: str) -> None:
    """Refuse a token that no header can carry as it is; the message does not repeat it.

    Raises:
        JobError: it is one.
    """
    if not all("!" <= character <= "~" for character in token):
        raise JobError("token: must be visible ASCII characters without blanks, not what was given; choose another one")


def refuse_open_service(host: str, token: str | None) -> None:
    """Refuse a service that other machines reach and that asks for no token.

    Raises:
        JobError: it would be one.
    """
    if token == "" and not is_loopback(host):
        raise JobError(f"token: must be given where the service listens beyond this machine, not '' at {host}")
