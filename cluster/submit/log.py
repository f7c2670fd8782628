"""The log of a Ray job, as far as it is written or until the job ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from cluster.runtime.logs import LONGEST_LINE
from cluster.submit.attempts import ENDED
from cluster.submit.jobs import POLL_SECONDS, info, outcome
from cluster.submit.ray_jobs import translated_errors
from cluster.submit.submission import first_line
from landscape.core.errors import ClusterUnreachableError, masked, printable

# A log whose connection breaks this many times in a row without a new line is given up; the job goes on.
RECONNECTS = 20
# Only Ray's job manager writes to a job's log; a line of this form by another module is the user's own.
RAYS_REMARK = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\t(?:DEBUG|INFO) job_manager\.py:\d+ -- .*\n?", re.MULTILINE)

Write = Callable[[str], None]


def log_so_far(client: Any, submission_id: str) -> str:
    """The log as far as it is written."""
    with translated_errors(client.get_address(), submission_id):
        return fit_to_show(str(client.get_job_logs(submission_id)))


def fit_to_show(text: str) -> str:
    """A log without Ray's own lines, keys and control characters."""
    return printable(masked(RAYS_REMARK.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))))


class WholeLines:
    """Writes a text that comes in pieces line by line, as a key that is to be masked may come in two pieces."""

    def __init__(self, write: Write) -> None:
        self._write, self._begun = write, ""

    def __call__(self, text: str) -> None:
        self._begun += text
        end = self._begun.rfind("\n") + 1 or (len(self._begun) if len(self._begun) > LONGEST_LINE else 0)
        if end:
            self._write(fit_to_show(self._begun[:end]))
            self._begun = self._begun[end:]

    def end(self) -> None:
        """Write the last line, which has no end."""
        if self._begun:
            self._write(fit_to_show(self._begun))
            self._begun = ""


def follow(client: Any, submission_id: str, write: Write) -> int:
    """Write the job's log as it grows, until the job ends; its exit code."""
    lines = WholeLines(write)
    try:
        return _follow(client, submission_id, lines)
    finally:
        lines.end()


def _follow(client: Any, submission_id: str, write: Write) -> int:
    written, failures = 0, 0
    told_waiting = False
    while True:
        found = info(client, submission_id)
        if found.status.value == "PENDING":
            if found.message and not told_waiting:
                write(f"{first_line(found.message)}\n")
                told_waiting = True
            time.sleep(POLL_SECONDS)
            continue
        before, whole = written, False
        with contextlib.suppress(OSError, RuntimeError):  # the connection broke: ask how the job is, then try again
            for text in _tail(client, submission_id, written):
                write(text)
                written += len(text)
            whole = True
        found = info(client, submission_id)
        failures = failures + 1 if written == before else 0
        if found.status.value in ENDED and (whole or failures > RECONNECTS):
            if found.status.value == "FAILED" and found.driver_exit_code is None and found.message:
                write(f"{first_line(found.message)}\n")
            return outcome(found)
        if failures > RECONNECTS:
            raise ClusterUnreachableError(
                f"the log of {submission_id} broke off; the job goes on: landscape logs {submission_id} --follow"
            )
        time.sleep(POLL_SECONDS)


def _tail(client: Any, submission_id: str, skip: int) -> Iterator[str]:
    """The log from its character `skip` on; each connection sends it from the beginning."""
    with asyncio.Runner() as runner:
        lines = client.tail_job_logs(submission_id)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                text = runner.run(_next(lines))
                if len(text) > skip:
                    yield text[skip:]
                skip = max(0, skip - len(text))


async def _next(lines: Any) -> str:
    return str(await anext(lines))
