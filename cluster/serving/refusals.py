"""What a service does not answer, and why: an HTTP status and one sentence, the same for REST and gRPC."""

from __future__ import annotations

import math

from landscape.compute.reproducibility import NotReproduced
from landscape.core.errors import (
    ClusterUnreachableError,
    Interrupted,
    JobError,
    LandscapeError,
    NotFoundError,
    StoreError,
    few_lines,
    one_line,
)

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, NOT_ALLOWED, TOO_SLOW, TOO_LARGE, BUSY = 400, 401, 404, 405, 408, 413, 429
FAILED, UNAVAILABLE = 500, 503


class Refusal(Exception):
    """A request that is not answered. It is picklable, as replicas return it.

    Args:
        status: of HTTP.
        sentence: the rule, what was asked for, and the remedy.
        retry_after: seconds after which the same request may be answered; None where asking again does not help.
    """

    def __init__(self, status: int, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(status, sentence, retry_after)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after

    def __str__(self) -> str:
        return self.sentence

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer that says so."""
        if self.status == UNAUTHORIZED:
            return {"www-authenticate": "Bearer"}
        if self.status == TOO_SLOW:
            return {"connection": "close"}  # the rest of the request may still come
        return {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told of an error."""
    match error:
        case Refusal():
            return error
        case NotReproduced():  # the request is right, and this machine is wrong
            return Refusal(UNAVAILABLE, few_lines(str(error)))
        case NotFoundError():
            return Refusal(NOT_FOUND, few_lines(str(error)))
        case JobError():
            return Refusal(BAD_REQUEST, few_lines(str(error)))
        case StoreError() | ClusterUnreachableError() | Interrupted():
            return Refusal(UNAVAILABLE, few_lines(str(error)), 1.0)
        case LandscapeError():
            return Refusal(FAILED, few_lines(str(error)))
    return Refusal(FAILED, f"{one_line(error)}; the service's own log says more")
