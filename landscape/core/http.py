"""HTTP of this machine: who may ask a server, a server that leaves signals alone, and the notes of running services.

The login nodes of clusters are shared, so a token is required on the loopback address too. The name in the `Host`
header is checked, since a foreign page could have its own name resolved to this machine (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

import uvicorn

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.files import folder_of_user, open_plain, partial_path
from landscape.core.folders import open_folder, run_identity
from landscape.core.system import is_alive

LONGEST_HEADER = 8192

# 'unsafe-inline' lets Plotly set the styles of its drawings within the page; scripts come from our files alone.
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "img-src 'self' data: blob:",
    "font-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'",
))  # fmt: skip

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "SAMEORIGIN",
}


def new_token() -> str:
    """A random token, 192 bits in characters that an address may hold."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """Decides which requests are answered.

    Attributes:
        token: must stand in the address of the first request.
        hosts: the names, in lower case, by which requests may address the server, beside IP addresses and `localhost`.
    """

    token: str = field(repr=False)
    hosts: frozenset[str] = frozenset()

    @property
    def cookie(self) -> str:
        """The name of the cookie; it depends on the token, so that two servers of one host do not share a cookie."""
        return f"landscape-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def cookie_header(self) -> str:
        """The header that has a browser keep the token; scripts of the page cannot read the cookie."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"

    def is_token(self, text: str) -> bool:
        """Whether a text is the token; the comparison takes equally long wherever they differ."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())

    def has_cookie(self, header: str) -> bool:
        """Whether a `Cookie` header holds the token."""
        if not header or len(header) > LONGEST_HEADER:
            return False
        cookies: SimpleCookie = SimpleCookie()
        try:
            # Another application on this host may have set cookies that Python's parser refuses, so parse ours alone.
            for part in header.split(";"):
                if part.strip().startswith(f"{self.cookie}="):
                    cookies.load(part.strip())
        except CookieError:
            return False
        return self.cookie in cookies and self.is_token(cookies[self.cookie].value)

    def knows_host(self, header: str) -> bool:
        """Whether a `Host` header names this server: by an address, as `localhost`, or by one of its names."""
        name = host_name(header)
        if name is None:
            return False
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or is_address(name)


def host_name(header: str) -> str | None:
    """The name or address in a `Host` header, in lower case and without the port; None where it is malformed.

    >>> host_name("Example.org:8080"), host_name("[::1]:80"), host_name("a b")
    ('example.org', '::1', None)
    """
    text = header.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        well_formed = bool(bracket) and (not port or (port.startswith(":") and port[1:].isdecimal()))
        return name if well_formed and is_address(name) else None
    name, colon, port = text.partition(":")
    well_formed = bool(name) and (not colon or port.isdecimal()) and not set(name) & set(" /\\@?#,;\"'<>")
    return name.rstrip(".") if well_formed else None


def is_address(name: str) -> bool:
    """Whether a name is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_names(more: Iterable[str] = ()) -> frozenset[str]:
    """The names of this machine, with and without its domain, and those that the user adds; all in lower case."""
    own = socket.gethostname().lower()
    return frozenset(name.lower().rstrip(".") for name in (own, own.partition(".")[0], *more) if name)


def header_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The value of a header; '' if it is absent. Repeated values are joined, so that they match nothing."""
    values = [value.decode("latin-1") for key, value in headers if key.lower() == name]
    return "; ".join(values) if name == b"cookie" else ",".join(values)


def raw_headers(more: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in the form of ASGI."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in more.items()]


# ----------------------------------------------------------------------------------------------------
# An HTTP server that leaves signals to its caller, and the socket that it listens on.

BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this port, or at a free port of the host if this one is taken.

    Args:
        port: 0 for any free port.

    Raises:
        JobError: the host is no address or name of this machine, or this process has no right to use the port.
    """
    try:
        family, _, _, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "malformed"
        raise JobError(f"host: {quoted(host)} is not known: {reason}; give an address of this machine") from None
    # With the protocol named, asyncio sends each part of an answer at once; else the second one waits 40 ms for the
    # browser to acknowledge the first.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            opened.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            opened.bind((host, 0))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        field = "port" if error.errno == errno.EACCES else "host"
        raise JobError(
            f"{field}: cannot listen at {quoted(f'{host}:{port}')}: {error.strerror}; give another one"
        ) from None
    return opened


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, and calls `ready` once it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Handle no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and call `ready`."""
        await super().startup(sockets)
        if self.started:
            self._ready()


# ----------------------------------------------------------------------------------------------------
# Services of `landscape serve` of this user: each writes a note of its address and of the runs that it serves.
#
# A note holds the token of its service, so only its owner can read it. A service deletes its note when it ends; the
# note of a killed service is deleted by the next process that reads it.

LARGEST_NOTE = 1 << 20  # bytes


@dataclass(frozen=True)
class ServedRun:
    """A run that a service answers for.

    Attributes:
        model, version: the run's names in addresses of the service.
        run: its absolute folder, or its URL.
        landscapes: the names of its landscapes.
    """

    model: str
    version: int
    run: str
    landscapes: tuple[str, ...]

    def address(self, landscape: str) -> str:
        """The path of a landscape below the service's address.

        >>> ServedRun("lenet", 2, "/runs/lenet", ("minimum",)).address("minimum")
        '/v1/models/lenet/versions/2/landscapes/minimum'
        """
        return f"/v1/models/{self.model}/versions/{self.version}/landscapes/{landscape}"


@dataclass(frozen=True)
class Service:
    """A service that runs.

    Attributes:
        url: http://host:port, as this machine reaches it.
        grpc: host:port; empty without gRPC.
        token: requests send it as `Authorization: Bearer TOKEN`; empty if none is required.
        host: the machine that the process `pid` runs on: several machines may share the folder of notes.
    """

    url: str
    grpc: str
    token: str = field(repr=False)
    pid: int
    runs: tuple[ServedRun, ...]
    host: str = field(default_factory=socket.gethostname)

    def versions(self, run: str | Path) -> list[ServedRun]:
        """The versions that are this run, also where it was served by another name, as through a link."""
        identity = run_identity(open_folder(run).name)
        return [served for served in self.runs if run_identity(served.run) == identity]


@contextlib.contextmanager
def announce(service: Service) -> Iterator[None]:
    """Within the block, `services_of` finds this service; without a home folder, the service runs unannounced.

    Raises:
        LandscapeError: the note cannot be written.
    """
    folder = _folder()
    if folder is None:
        yield
        return
    note = folder / f"{service.pid}-{service.url.rpartition(':')[2]}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = partial_path(note)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(asdict(service), stream, indent=1)
        temporary.replace(note)
    except OSError as error:
        raise LandscapeError(f"the note of this service cannot be written to {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def services_of(run: str | Path) -> list[Service]:
    """The services of this user that answer for a run, the latest first."""
    return [service for service in services() if service.versions(run)]


def services() -> list[Service]:
    """All services of this user that run on this machine, the latest first; deletes the notes of ended services."""
    folder, dated = _folder(), list[tuple[float, Service]]()
    for note in folder.glob("*.json") if folder is not None and folder.is_dir() else ():
        try:
            with open_plain(note) as stream:
                began, service = os.fstat(stream.fileno()).st_mtime, _parsed(stream.read(LARGEST_NOTE))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        if service.host != socket.gethostname():
            continue  # whether its process is alive is unknown here
        if is_alive(service.pid):
            dated.append((began, service))
        else:
            with contextlib.suppress(OSError):
                note.unlink()
    return [service for _, service in sorted(dated, key=lambda pair: -pair[0])]


def _folder() -> Path | None:
    folder = folder_of_user("XDG_STATE_HOME", ".local/state", os.environ)
    return folder and folder / "services"


def _parsed(content: bytes) -> Service:
    """The service that `announce` wrote; ValueError, TypeError or KeyError for any other content."""
    fields: Mapping[str, Any] = json.loads(content)
    runs = tuple(ServedRun(**{**run, "landscapes": tuple(run["landscapes"])}) for run in fields["runs"])
    service = Service(**{**fields, "runs": runs})
    names_runs = all(isinstance(served.run, str) for served in runs)
    if type(service.pid) is not int or not service.url.startswith("http") or not names_runs:
        raise ValueError("no service")
    return service
