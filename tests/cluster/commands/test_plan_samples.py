"""What `plan` says of the samples: of each term its own number, and what of them an extension adds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from small_models import Quadratic, make_job, quadratic_samples
from torch import Tensor

from landscape import Problem, run
from landscape.compute.extend import More, extension_job
from landscape.compute.planning import plan_job, plan_text


def terms_problem() -> Problem:
    sets = {"inside": quadratic_samples(40), "edge": quadratic_samples(13), "data": quadratic_samples(5)}
    return Problem.terms(Quadratic(), {name: (points, Quadratic.forward) for name, points in sets.items()})


def test_each_term_is_named_with_its_points_and_those_that_an_extension_adds(tmp_path: Path) -> None:
    job = make_job(tmp_path, terms_problem, [{"name": "a", "size": 3}], num_samples=8, batch_size=4, tile=3)
    planned = plan_job(job)
    assert "samples a point: 8 of inside, 8 of edge, 5 of data; " in plan_text(planned)
    run(job)
    more = plan_job(extension_job(tmp_path, "a", More(num_samples=40), terms_problem))
    [extended] = more["landscapes"]
    assert extended["sample_share"] == (32 + 5 + 0) / (40 + 13 + 5)
    assert "extends a: 9 points are evaluated, on 32 of inside, 5 of edge, 0 of data each: 63.8 %" in plan_text(more)


class Odd(Quadratic):
    """A network that raises away from its own weights, or whose loss is NaN at them."""

    raises = True

    def forward(self, x: Tensor) -> Tensor:
        loss = super().forward(x)
        if not self.raises:
            return loss * float("nan")
        if any(
            not torch.equal(mine, own) for mine, own in zip(self.parameters(), Quadratic().parameters(), strict=True)
        ):
            raise RuntimeError("too far")
        return loss


class NotFinite(Odd):
    raises = False


def odd_problem(model: type[Odd]) -> Problem:
    return Problem(model(), quadratic_samples(20), lambda network, batch: {"loss": network(batch)})


def test_a_point_that_raises_is_not_timed_and_a_loss_that_is_not_finite_is_told(tmp_path: Path) -> None:
    for model in (Odd, NotFinite):
        job = make_job(
            tmp_path / model.__name__, partial(odd_problem, model), [{"name": "a", "size": 3}], num_samples=8
        )
        text = plan_text(plan_job(job))
        raises = model is Odd
        assert ("not timed, since the point raises" in text) == raises
        assert ("raises RuntimeError: too far" in text) == raises
        assert ("the loss at its origin is nan, not finite" in text) != raises
