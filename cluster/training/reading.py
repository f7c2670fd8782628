"""The log of a rank, read from its run: so far, or as it grows."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable

from landscape.core.errors import NotFoundError, shown
from landscape.core.folders import open_folder
from landscape.model.run_files import read_launch

FOLDER = "logs"
NAME = re.compile(r"rank-(\d+)\.log")
PART = 1 << 20  # bytes that are read at once of a log that is followed
LOOK_SECONDS = 0.5  # between two looks at a log that is followed


def log_path(rank: int) -> str:
    """The path of a rank's log in the run."""
    return f"{FOLDER}/rank-{rank}.log"


def read_log(run: str, rank: int) -> str:
    """The log of a rank so far.

    Raises:
        NotFoundError: there is no such run, or the rank has no log in it; lists those that have one.
    """
    folder = open_folder(run)
    content = folder.read(log_path(rank))
    if content is None:
        if not folder.exists():
            raise NotFoundError(f"run {shown(run)} does not exist; look with landscape list, or give another")
        ranks = sorted(int(match[1]) for match in map(NAME.fullmatch, folder.names(FOLDER)) if match)
        known = f"it has logs of ranks {', '.join(map(str, ranks))}" if ranks else "no training has logged there yet"
        raise NotFoundError(f"rank: run {shown(run)} has no log of rank {rank}; {known}")
    return content.decode(errors="replace")


def follow_log(run: str, rank: int, write: Callable[[str], object], is_over: Callable[[], bool]) -> None:
    """Write the log of a rank as it grows, until the training is over and all of it is written.

    While the training runs, a log that is not there yet is waited for.

    Raises:
        NotFoundError: as `read_log`; or the training has fewer ranks.
    """
    folder, written = open_folder(run), 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be half written
    while True:
        over = is_over()  # before the look: what is logged meanwhile is still seen
        try:
            part = folder.read_range(log_path(rank), written, PART)
        except FileNotFoundError:
            if over:
                read_log(run, rank)  # raises, and says which logs there are
            launch = read_launch(run)
            if launch is not None and rank >= launch.workers:
                raise NotFoundError(
                    f"rank: must be below {launch.workers}, the workers that run {shown(run)} is trained by, not {rank}"
                ) from None
            part = b""
        written += len(part)
        write(decoder.decode(part, final=over and not part))
        if part:
            continue
        if over:
            return
        time.sleep(LOOK_SECONDS)
