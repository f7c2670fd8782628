"""Report to the console and the log what a search does now."""

from __future__ import annotations

import logging

from landscape.evaluation.tuning.questions import Candidate

stages = logging.getLogger("landscape.stages.search")  # shown as what a job is doing now


def report_candidate(candidate: Candidate, number: int, candidates: int, seconds_left: float) -> None:
    """Log which candidate is set up and timed now.

    Args:
        number: of the candidates that were tried so far, this one included.
        candidates: about how many will be tried.
    """
    stages.info(
        "engine %d of about %d: %s, batches of %d; %.0f s left",
        number, candidates, candidate.engine, candidate.batch_size, seconds_left,
        extra={"event": "search", "fields": {
            "candidate": number, "candidates": candidates, "engine": str(candidate.engine),
            "batch_size": candidate.batch_size, "seconds_left": round(seconds_left, 1),
        }},
    )  # fmt: skip
