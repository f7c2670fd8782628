"""Services of `landscape serve` that run for this user: each leaves a note of where it answers, and for which runs.

A note holds the token of its service, so that only its owner can read it. It goes with the service; one that was left
by a service that was killed is removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError
from landscape.core.files import folder_of_user, open_plain, partial_path
from landscape.core.folders import open_folder
from landscape.core.processes import is_alive

LARGEST_NOTE = 1 << 20  # bytes


@dataclass(frozen=True)
class ServedRun:
    """A run that a service answers for.

    Attributes:
        model, version: how its addresses call it.
        run: its absolute folder, or its URL.
        landscapes: their names.
    """

    model: str
    version: int
    run: str
    landscapes: tuple[str, ...]

    def address(self, landscape: str) -> str:
        """The path below the service's address under which a landscape is asked for points.

        >>> ServedRun("lenet", 2, "/runs/lenet", ("minimum",)).address("minimum")
        '/v1/models/lenet/versions/2/landscapes/minimum'
        """
        return f"/v1/models/{self.model}/versions/{self.version}/landscapes/{landscape}"


@dataclass(frozen=True)
class Service:
    """A service that runs.

    Attributes:
        url: http://host:port, as this machine reaches it.
        grpc: host:port; empty where it has none.
        token: what requests bring as `Authorization: Bearer TOKEN`; empty where none is asked for.
        pid: its process.
        host: the machine that it runs on: several may share the folder of notes.
    """

    url: str
    grpc: str
    token: str = field(repr=False)
    pid: int
    runs: tuple[ServedRun, ...]
    host: str = field(default_factory=socket.gethostname)


@contextlib.contextmanager
def announce(service: Service) -> Iterator[None]:
    """Within the block, `services_of` finds this service. Without a home folder nobody does, and it runs all the same.

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
    place = open_folder(run).name
    return [service for service in services() if any(served.run == place for served in service.runs)]


def services() -> list[Service]:
    """All services of this user that run on this machine, the latest first; notes of those that ended are removed."""
    folder, found = _folder(), list[tuple[float, Service]]()
    for note in folder.glob("*.json") if folder is not None and folder.is_dir() else ():
        try:
            with open_plain(note) as stream:
                began, service = os.fstat(stream.fileno()).st_mtime, _parsed(stream.read(LARGEST_NOTE))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        if service.host != socket.gethostname():
            continue  # whether its process lives is not known here
        if is_alive(service.pid):
            found.append((began, service))
        else:
            with contextlib.suppress(OSError):
                note.unlink()
    return [service for _, service in sorted(found, key=lambda pair: -pair[0])]


def _folder() -> Path | None:
    folder = folder_of_user("XDG_STATE_HOME", ".local/state", os.environ)
    return folder and folder / "services"


def _parsed(content: bytes) -> Service:
    """Raises ValueError, TypeError or KeyError for what `announce` did not write."""
    known: Mapping[str, Any] = json.loads(content)
    runs = tuple(ServedRun(**{**each, "landscapes": tuple(each["landscapes"])}) for each in known["runs"])
    service = Service(**{**known, "runs": runs})
    if type(service.pid) is not int or not service.url.startswith("http"):
        raise ValueError("no service")
    return service
