"""Landscapes of which a check has nothing to judge by: it says why, and no check fails for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import Counter, Quadratic, conv_problem, make_job, quadratic_problem, quadratic_samples

from cluster.runtime.status import run_status, status_text
from landscape import Problem, import_surface, open_run, run
from landscape.analysis.checks.table import CHECKS, check_landscape, keep_checks
from landscape.core.errors import Interrupted, JobError, NotFoundError
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.views.prepare.words import caption

FIELDS = {"num_samples": 20, "batch_size": 8, "engine": "eager"}


def states(folder: Path, name: str = "a", problem=quadratic_problem) -> dict[str, str]:
    """What is found of each, the reasons of what is not judged in place of the state."""
    checks = check_landscape(folder, name, problem=problem)
    assert len(checks.results) == len(CHECKS)
    return {check.number: check.text if check.state == "unjudged" else check.state for check in checks.results}


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_line_and_a_volume_are_judged_too(tmp_path, axes):
    directions = [{"kind": "random", "seed": seed} for seed in range(1, axes + 1)]
    run(make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 5, "directions": directions}], **FIELDS))
    found = states(tmp_path)
    assert found["3"] == found["8"] == found["15"] == "holds"
    assert found["10"] == "batch norm: the model has no batch norm layers"
    assert found["11"] == "path: no path is drawn"
    assert "nothing says what it should be" in found["2"]


@pytest.mark.parametrize(("dtype", "state"), [(torch.float32, "reservation"), (torch.float64, "holds")])
def test_a_range_in_which_rounding_shows_has_a_reservation(tmp_path, dtype, state):
    spec = {"name": "a", "size": 5, "range": [-1e-5, 1e-5]}
    precision = str(dtype).removeprefix("torch.")
    run(make_job(tmp_path, lambda: quadratic_problem(dtype), [spec], precision=precision, **FIELDS))
    assert states(tmp_path, problem=lambda: quadratic_problem(dtype))["3"] == state


def test_a_network_of_zeros_is_flat_and_what_goes_through_it_is_named(tmp_path):
    def zero() -> Problem:
        problem = quadratic_problem()
        for each in problem.model.parameters():
            torch.nn.init.zeros_(each)
        return problem

    run(make_job(tmp_path, zero, [{"name": "a", "size": 3}], **FIELDS))
    found = {check.number: check for check in check_landscape(tmp_path, "a", problem=zero).results}
    assert found["5"].remedy == f"does observe use its model? is a layer dead? landscape inspect {tmp_path} a --at=0,0"
    assert found["8"].text == "curvature: the direction of alpha and of beta is zero, so that nothing moves"


def test_a_centre_that_is_dead_itself_says_nothing_of_the_range(tmp_path):
    spec = {"name": "a", "size": 3, "range": [-4, 4]}
    run(make_job(tmp_path, conv_problem, [spec], **FIELDS | {"num_samples": 29}))
    found = {check.number: check for check in check_landscape(tmp_path, "a", problem=conv_problem).results}
    assert "no better than guessing" in found["2"].text
    assert found["12"].text.endswith("the centre itself loses as much as guessing")
    surface = open_run(tmp_path)["a"]
    said = f", no better than guessing ({surface.record.guessing:.4g})"
    assert f" (2 s.e.){said}" in status_text(run_status(str(tmp_path)))
    assert any(part.startswith("Loss there: ") and part.endswith(said) for part in caption(surface, "loss"))
    assert surface.record.changed(origin_loss=0.9 * surface.record.guessing).guessing_in_words == ""
    assert surface.record.changed(guessing=None).guessing_in_words == "", "as of an older landscape"


@pytest.mark.parametrize("size", [17, 16])  # the second one has no point at the centre
def test_an_imported_surface_is_judged_by_its_values_alone(tmp_path, size):
    file = tmp_path / "bowl.npz"
    x = np.linspace(-1, 1, size)
    np.savez(file, alpha=x, beta=x, loss=x[:, None] ** 2 + x**2)
    import_surface(file, tmp_path / "run")
    (name,) = open_run(tmp_path / "run")
    checks = check_landscape(tmp_path / "run", name)
    found = {check.number: check for check in checks.results}
    assert found["6"].state == found["15"].state == "holds"
    unjudged = {number for number, check in found.items() if "no job computed it" in check.text}
    assert unjudged >= {"1", "3", "4", "7", "8"}
    assert ("2" in unjudged) == ("13" in unjudged) == (size == 16)
    assert not checks.fails
    assert not checks.not_judged
    assert checks.verdict.startswith("nothing in its values speaks against it")
    assert not any("--problem" in check.remedy for check in checks.results), "there is no callback to name"
    assert found["14"].text == "axes: the cosines of the axes are not recorded"
    keep_checks(tmp_path / "run", name, checks)
    assert open_run(tmp_path / "run")[name].record.checks == checks


def test_an_unfinished_landscape_has_holes(tmp_path):
    job = make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 9}], tile=3, **FIELDS)
    with pytest.raises(Interrupted):
        run(
            job,
            stop=lambda: "a" in landscape_names(str(tmp_path)) and LandscapeStore.open(tmp_path, "a").counts()[1] > 8,
        )
    found = states(tmp_path)
    assert found["15"] == "fails"
    assert found["1"] == "holds"
    assert found["3"] == "holds"


def test_a_model_that_cannot_be_doubled_or_differentiated_is_judged_by_the_rest(tmp_path):
    def observe(model, batch):
        with torch.no_grad():
            return {"loss": model(batch.float().to(torch.float32)).float()}

    def problem() -> Problem:
        return Problem(Quadratic(), quadratic_samples(), observe)

    directions = [{"kind": "random", "seed": seed} for seed in (7, 8)]  # of 18 numbers, few are at right angles
    run(make_job(tmp_path, problem, [{"name": "a", "size": 5, "directions": directions}], **FIELDS))
    found = states(tmp_path, problem=problem)
    assert "so it has no derivatives" in found["8"]
    assert "Error" not in found["8"]  # the names of exceptions say nothing to those who read this
    assert found["3"] == found["14"] == "holds"


def test_a_callback_that_is_gone_leaves_the_values_to_judge(tmp_path):
    run(make_job(tmp_path, lambda: quadratic_problem(), [{"name": "a", "size": 5}], **FIELDS))
    checks = check_landscape(tmp_path, "a")
    assert "a function that cannot be found by its name" in checks.results[0].text
    assert checks.evaluations == 0
    with pytest.raises(JobError, match="problem"):
        check_landscape(tmp_path, "a", problem="no_such_module:problem")
    with pytest.raises(NotFoundError):
        check_landscape(tmp_path, "b")


def test_the_default_checks_cost_a_tenth_of_a_grid_of_41(tmp_path):
    counter = Counter(conv_problem().observe)

    def problem() -> Problem:
        found = conv_problem()
        return Problem(found.model, found.data, counter)

    run(make_job(tmp_path, problem, [{"name": "a", "size": 5}], num_samples=29, batch_size=29, engine="eager"))
    counter.calls = 0
    checks = check_landscape(tmp_path, "a", problem=problem)
    assert counter.calls <= checks.evaluations <= 0.1 * 41**2
    assert f"{checks.evaluations} evaluations" in checks.text("a")


def test_what_is_found_stays_with_the_landscape_and_changes_no_value(tmp_path):
    run(make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 5}], **FIELDS))
    before = open_run(tmp_path)["a"]
    checks = check_landscape(tmp_path, "a", problem=quadratic_problem)
    keep_checks(tmp_path, "a", checks)
    after = open_run(tmp_path)["a"]
    assert after.record.checks == checks
    assert after.record.digest == before.record.digest
    assert after.loss.tobytes() == before.loss.tobytes()
    run(make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 5}], **FIELDS))  # it goes on, with nothing to do


class Merged(torch.nn.Module):
    """A layer that computes with a copy of its factors, as LoRA's does once it is merged, and one after it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5, 3))
        self.register_buffer("merged", (self.b @ self.a).detach())
        self.head = torch.nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(x @ self.merged.T)).square().mean(1)


def test_weights_that_move_and_take_no_part_in_the_loss_are_named(tmp_path):
    def merged() -> Problem:
        x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
        return Problem(Merged(), x, lambda model, batch: {"loss": model(batch)})

    run(make_job(tmp_path, merged, [{"name": "a", "size": 5}], **FIELDS))
    found = {check.number: check for check in check_landscape(tmp_path, "a", problem=merged).results}
    assert found["14"].state == "reservation"
    assert found["14"].text.startswith("a and b take no part in the loss of the samples: 27 of the 32 numbers")
    assert "merged or cached weights" in found["14"].remedy


def test_weights_that_a_few_samples_alone_use_take_part(tmp_path):
    def experts() -> Problem:
        model = torch.nn.ModuleList([torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)])
        x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
        x[:, 0] = (torch.arange(20) == 7).float()

        def observe(model: torch.nn.ModuleList, batch: torch.Tensor) -> dict[str, torch.Tensor]:
            losses = torch.empty(len(batch))
            for k, expert in enumerate(model):
                chosen = batch[:, 0] == k
                if chosen.any():
                    losses = losses.masked_scatter(chosen, expert(batch[chosen]).square().mean(1))
            return {"loss": losses}

        return Problem(model, x, observe)

    run(make_job(tmp_path, experts, [{"name": "a", "size": 5}], **FIELDS))
    found = {check.number: check for check in check_landscape(tmp_path, "a", problem=experts).results}
    assert "no part" not in found["14"].text
