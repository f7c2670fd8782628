"""What a run remembers of its training: the function, the command that goes on with it, how the last start ended."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cluster.training.job import TrainingJob
from landscape.core.errors import Interrupted, JobError, LandscapeError, message_of
from landscape.core.folders import open_folder
from landscape.model.run_files import (
    DONE,
    FAILED,
    INTERRUPTED,
    Launch,
    checkpoint_numbers,
    now,
    read_info,
    read_launch,
    read_problem,
    write_launch,
)


@contextlib.contextmanager
def launched(job: TrainingJob, workers: int, command: str) -> Iterator[None]:
    """Record in the run that a training runs while the block does, then how it ended.

    A start that is refused, and so has changed nothing, leaves the record of the one before it. A driver that is killed
    leaves its training recorded as running, with a lock that nobody holds.

    Raises:
        LandscapeError: the run cannot be written.
    """
    run = job.run_path
    former, kept = read_launch(run), checkpoint_numbers(open_folder(run))
    launch = Launch(job.what.name, workers, command, now())
    write_launch(run, launch)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(LandscapeError):  # of a store that does not answer now: what is raised came first
            refused = isinstance(error, JobError) and checkpoint_numbers(open_folder(run)) == kept
            write_launch(run, former if refused and former else _ended(launch, error))
        raise
    write_launch(run, replace(launch, outcome=DONE))


def _ended(launch: Launch, error: BaseException) -> Launch:
    if isinstance(error, (Interrupted, KeyboardInterrupt)) or not isinstance(error, Exception):
        return replace(launch, outcome=INTERRUPTED)
    return replace(launch, outcome=FAILED, reason=message_of(error))


def former_function(job: TrainingJob, overwrite: bool) -> str:
    """The function that the run was trained by, where it was another one than now; empty where that says nothing."""
    former = None if overwrite else read_launch(job.run_path)
    return former.function if former is not None and former.function != job.what.name else ""


def command_of(job: TrainingJob, workers: int | None, address: str | None = None, allow_open: bool = False) -> str:
    """The command that goes on with a training; empty where none can name its function or one of its options.

    Args:
        workers: how many ranks; None for a training in the process of the command.
    """
    options = {name: value for name, value in job.options.items() if name != "seed"}
    texts = {name: option_text(value) for name, value in options.items()}
    if not (job.what.module or job.what.is_recipe) or None in texts.values():
        return ""
    words = ["landscape", "train", job.what.name, "--run", job.run_path]
    words += ["--serial"] if workers is None else ["--workers", str(workers)]
    words += ["--folder", str(job.folder)] if job.what.module else []
    words += [] if job.gpus_per_worker is None else ["--gpus-per-worker", f"{job.gpus_per_worker:g}"]
    words += [] if address is None else ["--address", address]
    words += ["--allow-open"] if allow_open else []
    words += [f"--seed={job.seed}"] if job.seed else []
    words += [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]
    return shlex.join(words)


def option_text(value: Any) -> str | None:
    """The value of an option as a word of a command; None where it has none, as a function.

    >>> option_text(0.1), option_text(True), option_text([[0, 1, 2]]), option_text(print)
    ('0.1', 'true', '[[0, 1, 2]]', None)
    """
    if value is None:
        return "none"
    if isinstance(value, (str, Path)):
        return str(value)
    try:
        return json.dumps(value.item() if isinstance(value, np.generic) else value)
    except (TypeError, ValueError, RecursionError):
        return None


def next_line(run: str) -> str:
    """Which commands look at a run that has been trained."""
    name = shlex.quote(run)
    if not read_info(run):  # without a collector there is nothing to draw
        return f"next: landscape status {name}"
    problem = "" if read_problem(run) else " and the problem"
    return f"next: landscape view {name}; its landscapes: landscape run JOB, a file with `run: {name}`{problem}"
