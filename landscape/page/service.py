"""Questions that are handed on to a service of `landscape serve`, over HTTP, within limits of time and of size.

A browser never talks to the service: it would need the service's token, and the page allows it no other server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from landscape.core.errors import LandscapeError, few_lines
from landscape.core.folders import open_folder
from landscape.core.http import Service, services_of

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 60.0  # for an answer, or for the next row of a patch
LARGEST_ANSWER, LONGEST_LINE = 1 << 20, 4 << 20  # bytes
LONGEST_SENTENCE = 500  # characters


class ServiceError(LandscapeError):
    """No service answers the question; the message says why, and what helps."""


class NoServiceError(ServiceError):
    """Nothing listens where the service was."""


@dataclass(frozen=True)
class Served:
    """A landscape at a service that answers for it.

    Attributes:
        path: what stands before the kind of the question in its addresses.
    """

    service: Service
    path: str


def serve_command(run: str) -> str:
    """The command that starts a service for a run."""
    return f"landscape serve {shlex.quote(run)}"


def landscapes_served(run: str) -> list[str]:
    """The landscapes of a run that a service answers for."""
    place = open_folder(run).name
    served = [each for service in services_of(run) for each in service.runs if each.run == place]
    return sorted({name for each in served for name in each.landscapes})


def served_by(run: str, landscape: str) -> list[Served]:
    """The services that answer for a landscape, the latest first; of several versions of a run the last one."""
    place, found = open_folder(run).name, list[Served]()
    for service in services_of(run):
        versions = [each for each in service.runs if each.run == place and landscape in each.landscapes]
        if versions:
            found.append(Served(service, quote(versions[-1].address(landscape))))
    return found


def answer_of(run: str, landscape: str, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a service answers.

    Args:
        kind: `points`, `gradient` or `curvature`.

    Raises:
        ServiceError: none answers, or the one that there is refuses.
    """
    with contextlib.closing(_first(run, landscape, lambda served: Request(served, kind, asked))) as request:
        return request.whole()


def rows_of(run: str, landscape: str, asked: Mapping[str, Any]) -> Request:
    """The rows of a patch; whoever asks closes it.

    Raises:
        ServiceError: none answers, or the one that there is refuses.
    """
    return _first(run, landscape, lambda served: Request(served, "patch", {**asked, "stream": True}))


def _first(run: str, landscape: str, ask: Callable[[Served], Request]) -> Request:
    """The request to the first service that listens."""
    services = served_by(run, landscape)
    for served in services:
        with contextlib.suppress(NoServiceError):
            return ask(served)
    if services:
        raise NoServiceError(f"the service does not answer any more; start it again: {serve_command(run)}")
    raise NoServiceError(f"no service answers for this landscape; start one: {serve_command(run)}")


class Request:
    """A request that was sent, and whose answer has begun.

    Raises:
        NoServiceError: nothing listens there.
        ServiceError: the service refuses it, or says nothing in time.
    """

    def __init__(self, served: Served, kind: str, asked: Mapping[str, Any]) -> None:
        place = urlsplit(served.service.url)
        token = served.service.token
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=CONNECT_SECONDS)
        self._socket: socket.socket | None = None
        try:
            with _said():
                try:
                    self._connection.connect()
                except OSError as error:
                    raise NoServiceError(f"the service does not answer: {error}") from None
                self._socket = self._connection.sock
                self._socket.settimeout(ANSWER_SECONDS)
                self._connection.request("POST", f"{served.path}/{kind}", json.dumps(asked), headers)
                self._answer = self._connection.getresponse()
                if self._answer.status != HTTPStatus.OK:
                    raise ServiceError(self._refusal())
        except BaseException:
            self.close()
            raise

    def whole(self) -> Mapping[str, Any]:
        """The answer as one document.

        Raises:
            ServiceError: it does not come, or is none.
        """
        with _said():
            return _document(self._answer.read(LARGEST_ANSWER + 1), LARGEST_ANSWER)

    def next(self) -> Mapping[str, Any]:
        """The next row of an answer that comes in rows.

        Raises:
            ServiceError: it does not come, or the service says why there are no more.
        """
        with _said():
            line = self._answer.readline(LONGEST_LINE + 1)
            if not line:  # also where the connection has ended: Python takes that for the end of the answer
                raise EOFError
            row = _document(line, LONGEST_LINE)
        if "error" in row:
            raise ServiceError(_sentence(row))
        return row

    def close(self) -> None:
        """End the connection, by which the service stops computing; another thread that reads from it gets no more."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _refusal(self) -> str:
        """Why the service does not answer, in one sentence."""
        answer = self._answer
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return "the service does not take the token that it has noted; start it again"
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            pause = answer.headers.get("retry-after", "")
            return f"the service has too much to do; ask again in {pause if pause.isdecimal() else 'some'} s"
        try:
            return _sentence(_document(answer.read(LARGEST_ANSWER + 1), LARGEST_ANSWER))
        except ServiceError:
            return f"the service answers with {answer.status}; its terminal says why"


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Within the block what goes wrong with a connection is said in a sentence.

    Raises:
        ServiceError: says it.
    """
    try:
        yield
    except TimeoutError:
        raise ServiceError(f"the service has not answered for {ANSWER_SECONDS:.0f} s; ask again, or for less") from None
    except (OSError, EOFError, http.client.HTTPException, ValueError):
        raise ServiceError("the service broke off its answer; it may have ended, its terminal says why") from None


def _document(content: bytes, most: int) -> Mapping[str, Any]:
    """The JSON object of an answer.

    Raises:
        ServiceError: it is none.
    """
    try:
        found = json.loads(content) if len(content) <= most else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServiceError("the service answers what this version does not understand; start it again by this version")
    return found


def _sentence(document: Mapping[str, Any]) -> str:
    return few_lines(str(document.get("error", "the service gives no reason"))[:LONGEST_SENTENCE])
