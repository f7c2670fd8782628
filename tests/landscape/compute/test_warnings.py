"""What preparation finds that may be meant otherwise: shown by a plan, said once before the first value."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from cluster.commands.planning import plan_job, plan_text
from landscape import Problem, run
from landscape.compute.job_warnings import origin_warnings
from landscape.compute.landscape_context import Weights
from landscape.compute.prepare import prepare
from landscape.job.landscape import Landscape
from landscape.model.packed_snapshots import trajectory_of

SPEC = {"name": "mine", "size": 3}


@pytest.fixture
def collected(tmp_path):
    """A run with a trajectory, and a problem whose own weights are others."""
    problem = quadratic_problem()
    write_trajectory(tmp_path, wandering(problem.model, 4, 0.3))
    return tmp_path, lambda: problem


def test_a_trajectory_that_takes_the_place_of_the_callbacks_weights_is_told(collected):
    folder, problem = collected
    (warning,) = prepare(make_job(folder, problem, [SPEC, SPEC | {"name": "other"}])).warnings
    assert warning.startswith("origin: epoch 4 of the trajectory is the origin of mine, other")
    assert "`origin: problem` in a landscape" in warning


@pytest.mark.parametrize(
    "spec", [SPEC | {"origin": "problem"}, SPEC | {"origin": "last"}, {"name": "path", "trajectory": "all", "size": 3}]
)
def test_an_origin_that_was_named_needs_no_word(collected, spec):
    assert prepare(make_job(*collected, [spec])).warnings == ()


def test_nor_does_a_trajectory_that_ends_at_the_callbacks_weights(tmp_path):
    problem = quadratic_problem()
    write_trajectory(tmp_path, wandering(problem.model, 3, 0.3) | {9: problem.model.state_dict()})
    assert prepare(make_job(tmp_path, lambda: problem, [SPEC])).warnings == ()


@pytest.mark.parametrize(("scale", "told"), [(9.0, False), (0.1, True)])
def test_nor_does_a_callback_whose_own_weights_nobody_trained(tmp_path, scale, told):
    """As of most callbacks, which make the network anew; one that loads other trained weights is another thing."""
    trained, generator = quadratic_problem().model.state_dict(), torch.Generator().manual_seed(5)
    write_trajectory(tmp_path, wandering(quadratic_problem().model, 2, 0.1))

    def problem() -> Problem:
        made = quadratic_problem()
        with torch.no_grad():
            for name, each in made.model.named_parameters():
                each.copy_(trained[name] + scale * torch.randn(each.shape, generator=generator))
        return made

    assert bool(prepare(make_job(tmp_path, problem, [SPEC])).warnings) is told


def test_where_guessing_is_known_its_loss_tells_whether_the_callbacks_weights_are_trained(tmp_path):
    """A last snapshot that lost all over the place is no measure."""
    seen = []

    def losses(states):
        seen.append(len(states))
        return [1.0, 0.1]

    weights = Weights(quadratic_problem(), trajectory_of_two(tmp_path), tmp_path)
    specs = [Landscape(name="mine")]
    assert origin_warnings(specs, weights, losses, lambda: 1.1, implied=False) == []
    assert len(origin_warnings(specs, weights, losses, lambda: 2.3, implied=False)) == 1
    assert seen == [2, 2]


def trajectory_of_two(folder):
    write_trajectory(folder, wandering(quadratic_problem().model, 2, 0.3))
    return trajectory_of(str(folder), None, folder)


def test_nor_does_a_callback_that_the_training_recorded_itself(collected, monkeypatch):
    folder, _ = collected
    (folder / "recorded_one.py").write_text("from small_models import quadratic_problem as problem\n")
    monkeypatch.syspath_prepend(folder)
    job = make_job(folder, "recorded_one:problem", [SPEC])
    assert len(prepare(job).warnings) == 1
    file = folder / "run.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {"problem": "recorded_one:problem"}))
    assert prepare(job).warnings == ()


def test_a_plan_shows_the_warnings_in_its_text_and_its_json(collected):
    found = plan_job(make_job(*collected, [SPEC]))
    (warning,) = found["warnings"]
    assert plan_text(found).splitlines()[-1] == f"warning: {warning}"


def test_a_run_says_them_once_before_the_first_value(collected, caplog):
    said = []
    with caplog.at_level(logging.WARNING, "landscape"):
        run(make_job(*collected, [SPEC]), observer=lambda progress: said.append(len(caplog.messages)))
    assert [each for each in caplog.messages if each.startswith("origin: epoch 4")] == caplog.messages
    assert set(said) == {1}
