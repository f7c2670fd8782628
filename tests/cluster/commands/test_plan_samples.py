"""What `plan` says of the samples: of each term its own number, and what of them an extension adds."""

from __future__ import annotations

from pathlib import Path

from small_models import Quadratic, make_job, quadratic_samples

from cluster.planning import plan_job, plan_text
from landscape import Problem, run
from landscape.extending import More, extension_job


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
