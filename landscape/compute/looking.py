"""What `observe` of a problem returns, seen on this machine before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from landscape.core.errors import JobError
from landscape.core.plan import Plan, default_plan
from landscape.evaluation.dry_run import FirstLook, first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.job.job import Job
from landscape.model.parameters import State, holds_bfloat16
from landscape.problem.samples import Samples
from landscape.problem.supervised import ordered_names
from landscape.problem.terms import Problem
from landscape.surface.derived import check_derived

FEW, AT_ONCE = 16, 2  # samples whose losses tell a trained network from another; no more memory than the first look


def look_at(problem: Problem, samples: Samples, job: Job, here: torch.device) -> tuple[FirstLook, bool]:
    """What `observe` returns, and whether it was seen to: code for GPUs alone fails on a driver that has none.

    Raises:
        JobError: it fails where it should run, or returns something else than one value per sample, or than it names.
    """
    named = ordered_names(problem.observables) if problem.observables else None
    try:
        look = first_look(problem.model, problem.observe, samples, job.precision, here)
    except JobError as error:
        # A cause says that it did not run; without one it ran, and what it returned is wrong on any device.
        elsewhere = job.device == "cuda" and here.type == "cpu" and error.__cause__ is not None
        if elsewhere and named:
            rounds = job.precision == "bfloat16" and holds_bfloat16(problem.model)
            return FirstLook(named, bfloat16_weights=rounds), False
        if elsewhere:
            raise JobError(
                f"{error}; if it runs on GPUs alone, name what it returns for the workers to look: "
                "Problem(..., observables=('loss', ...))"
            ) from error
        raise
    if named and look.names != named:
        raise JobError(
            f"observables: the problem names {', '.join(named)}, observe returns {', '.join(look.names)}; "
            "mend one of them"
        )
    check_derived(problem.derived, look.names)
    return look, True


def losses_of_few(problem: Problem, samples: Samples, here: torch.device, states: Sequence[State]) -> list[float]:
    """The mean loss of the first few samples at several sets of weights, in float32.

    Raises:
        LandscapeError, RuntimeError: they are not computed; user code raises what it likes.
    """
    few = samples.few(FEW)
    plan = default_plan(AT_ONCE, here.type, "float32", Plan.batch_norm, 0, None, None)
    evaluator = Evaluator(problem.model, few, problem.observe, plan, here, states[0], ())
    return [float(evaluator.evaluate_states([state]).mean["loss"][0]) for state in states]
