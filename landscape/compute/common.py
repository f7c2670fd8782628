"""What all landscapes of a job are prepared from."""

from __future__ import annotations

from dataclasses import dataclass

from landscape.compute.eigen_stores import Solver
from landscape.compute.prepared import PreparedJob
from landscape.compute.ranging import RangeFinder
from landscape.compute.weights import Weights
from landscape.core.plan import Reduction
from landscape.evaluation.dry_run import FirstLook
from landscape.evaluation.reduction import moment_rows, terms_of
from landscape.job.directions.base import Workers
from landscape.job.job import Job
from landscape.problem.samples import Samples
from landscape.problem.terms import Problem
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_parts import RandomData


@dataclass(frozen=True)
class Common:
    """What all landscapes of a job share."""

    job: Job
    problem: Problem
    weights: Weights
    samples: Samples
    samples_digest: str
    look: FirstLook
    device: str
    randomness: RandomData
    workers: Workers
    reduction: Reduction
    extended: LandscapeStore | None
    bare: PreparedJob
    solver: Solver
    finder: RangeFinder

    @property
    def moment_rows(self) -> tuple[str, ...]:
        """What moments are kept of; nothing in landscapes of earlier versions."""
        if self.reduction == "whole":
            return ()
        return moment_rows(self.observables, terms_of(self.problem.observe))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is observed."""
        return self.look.names

    @property
    def num_samples(self) -> int:
        """How many samples were taken: the data may have fewer than the job asks for."""
        return self.samples.length
