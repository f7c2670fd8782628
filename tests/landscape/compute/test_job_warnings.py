"""Warnings of a job and of what it has computed: a line each, with the reason and the remedy."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job, quadratic_problem, wandering, write_trajectory
from torch import Tensor, nn

from cluster.driver.landscape_states import LandscapeState
from cluster.runtime.status import run_status, status_text
from landscape import Job, JobError, Problem, import_surface, open_run, run
from landscape.compute.job_warnings import origin_warnings
from landscape.compute.landscape_context import Weights
from landscape.compute.planning import plan_job, plan_text
from landscape.compute.prepare import prepare
from landscape.compute.tasks import create_landscape
from landscape.job.landscape import Landscape
from landscape.model.packed_snapshots import trajectory_of
from landscape.model.parameters import norm
from landscape.store.examination import has_constant_loss
from landscape.store.landscape import LandscapeStore
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.words import caption, value_with_error

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


SAID = "the loss is the same, to the last bit, at all points: "


class Adapter(nn.Module):
    """A layer that is frozen, and an adapter B·A beside it, with B = 0 as adapters begin; and a bias without effect."""

    def __init__(self, b: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(3, 2).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.full((2, 2), b))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, batch: Tensor) -> Tensor:
        return self.base(batch) + batch @ self.a.T @ self.b.T


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {"loss": model(batch).square().mean(1)}


def job_of(folder: Path, b: float = 0.0, **direction: object) -> Job:
    def problem() -> Problem:
        return Problem(Adapter(b), torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), observe)

    landscapes = [{"name": "plane", "size": 4, "directions": [{"kind": "random", **direction}, {"kind": "random"}]}]
    return make_job(folder / "run", problem, landscapes, num_samples=8, tile=2)


def test_an_adapter_that_is_not_trained_is_named_once_and_wherever_the_landscape_is_read(tmp_path, caplog):
    job = job_of(tmp_path)
    surface = run(job)["plane"]
    assert len(set(surface.loss.flat)) == 1
    [said] = [message for message in caplog.messages if SAID in message]
    assert said.startswith("landscape 'plane': ")
    assert "the directions leave b at zero" in said
    assert "take trained weights, or `normalise: none`" in said
    assert said.endswith("; `landscape inspect RUN plane --at=0,0` says whether a layer is dead")
    run(job)
    assert sum(SAID in message for message in caplog.messages) == 1, "nothing was computed the second time"
    status = run_status(job.run_path)
    assert status["landscapes"][0]["constant"] is True
    same = value_with_error(surface.loss[0, 0], surface.stderr()[0, 0])
    assert f"the same loss {same} at all points" in status_text(status)
    [told] = [
        part for part in caption(surface, "loss") if part.startswith("The same loss at all points shown: nothing ")
    ]
    assert told.endswith("; `landscape inspect RUN plane --at=0,0` says whether a layer is dead")
    assert prepare_figure(surface).scale.levels_note == "no contour line, as all values are the same"
    assert status_text(status).endswith(f"why the same loss: landscape inspect {job.run_path} plane --at=0,0")


def test_parameters_without_effect_are_another_reason(tmp_path, caplog):
    direction = {name: torch.full_like(tensor, name == "unused") for name, tensor in Adapter().state_dict().items()}
    save_file(direction, tmp_path / "d.safetensors")
    job = job_of(tmp_path, b=0.5)
    line = {"name": "line", "directions": [{"kind": "file", "path": str(tmp_path / "d.safetensors")}], "size": 3}
    run(job.replace(landscapes=[line]))
    [said] = [message for message in caplog.messages if SAID in message]
    assert "nothing that the directions move changes it; check that observe uses the model" in said
    assert "no layer computes with a copy of its weights (such as LoRA's, merged on `eval()`)" in said


@pytest.mark.parametrize("options", [{"b": 0.5}, {"normalise": "none"}])
def test_nothing_is_said_of_a_landscape_that_rises(tmp_path, caplog, options):
    job = job_of(tmp_path, **options)
    surface = run(job)["plane"]
    assert not any(SAID in message for message in caplog.messages)
    status = run_status(job.run_path)
    assert status["landscapes"][0]["constant"] is False
    assert "lowest loss" in status_text(status)
    assert not any("same loss" in part for part in caption(surface, "loss"))


def test_a_driver_says_it_when_the_last_task_is_settled(tmp_path, caplog):
    """And not before: of the tiles that are there all are the same, too."""
    job = job_of(tmp_path)
    prepared = prepare(job)
    state = LandscapeState(prepared.landscapes[0], create_landscape(prepared, prepared.landscapes[0], (2, 2)))
    store = LandscapeStore.open(job.run_path, "plane")
    for task in state.tasks:
        assert not any(SAID in message for message in caplog.messages)
        values = {name: np.full(4, 0.25) for name in ("loss", "loss_stderr", "loss_rise_stderr")}
        values["moments"] = np.zeros((4, store.arrays["moments"].shape[-1]))
        state.store.write_tiles([(store.tile(task.tile), values)])
        state.settle()
    assert sum(SAID in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    "values, constant",
    [([0.5], False), ([0.5, 0.5], True), ([0.5, 0.5 + 1e-15], False), ([np.nan, 0.5], False), ([0.5, np.nan], False)],
)
def test_one_point_is_no_constant_and_points_that_are_not_finite_are_none(tmp_path, values, constant):
    np.savez(tmp_path / "a.npz", x=np.arange(float(len(values))), loss=np.array(values))
    import_surface(tmp_path / "a.npz", tmp_path / "run")
    assert has_constant_loss(LandscapeStore.open(str(tmp_path / "run"), "a").arrays) is constant
    told = [part for part in caption(open_run(tmp_path / "run")["a"], "loss") if "same loss" in part]
    assert bool(told) is constant
    assert not any("inspect" in part for part in told), "no network of it is known"
    assert "inspect" not in status_text(run_status(str(tmp_path / "run")))


def test_a_landscape_that_is_begun_is_not_constant_yet(tmp_path):
    prepared = prepare(make_job(tmp_path, quadratic_problem, [{"name": "a", "size": 4}], num_samples=8, tile=2))
    store = create_landscape(prepared, prepared.landscapes[0], (2, 2)).store
    assert not has_constant_loss(store.arrays)


def model_of(dtype=torch.bfloat16) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def problem_of(model: nn.Module) -> Problem:
    return Problem(model, torch.ones(4, 6), lambda m, batch: {"loss": m(batch).float().square().sum(1)})


def prepared(folder, model=None, precision="bfloat16", **spec):
    landscape = {"name": "a", "directions": [{"kind": "random"}], "size": 3} | spec
    return prepare(make_job(folder, lambda: problem_of(model or model_of()), [landscape], precision=precision))


@pytest.mark.parametrize(
    "range, size, start",
    [
        ([-1, 1], 3, ""),
        ([-0.1, 0.1], 3, ""),
        ([-0.05, 0.1], 3, ""),  # the farther end counts
        ([-0.08, 0.08], 3, "range: alpha of landscape 'a' moves the weights by 0.08 of their norm: below 0.1"),
        ([-0.03, 0.03], 3, "range: alpha of landscape 'a' moves the weights by 0.03 of their norm: below 0.1"),
        ([-0.1, 0.1], 51, "size: neighbouring points on alpha of landscape 'a' differ by 0.004 of the weights'"),
    ],
)
@pytest.mark.parametrize("normalise", ["filter", "layer"])
def test_ranges_that_may_show_the_rounding_are_told(tmp_path, range, size, start, normalise):
    directions = [{"kind": "random", "normalise": normalise}]
    found = prepared(tmp_path, range=range, size=size, directions=directions).warnings
    assert len(found) == bool(start)
    assert all(warning.startswith(start) for warning in found)


def test_a_range_below_what_bfloat16_resolves_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(
        JobError, match=r"range: alpha of landscape 'a' moves the weights by 0\.02 .*float32"
    ) as refused:
        prepared(tmp_path / "run", range=[-0.01, 0.02])
    assert "widen the range" in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype, precision", [(torch.float32, "bfloat16"), (torch.bfloat16, "float32")])
def test_weights_in_float32_have_no_such_bound(tmp_path, dtype, precision):
    found = prepared(tmp_path, model_of(dtype), precision, range=[-0.001, 0.001])
    assert not any(warning.startswith("range") for warning in found.warnings)
    assert not found.landscapes[0].plan.rounds_weights


def test_every_axis_is_asked(tmp_path):
    with pytest.raises(JobError, match="beta of landscape"):
        prepared(tmp_path, directions=[{"kind": "random"}] * 2, range=[[-1, 1], [-0.01, 0.01]])


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_other_directions_count_by_how_far_they_move_the_weights(tmp_path, share):
    model = model_of()
    state = {name: each.detach().float() for name, each in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    step = {name: torch.randn(each.shape, generator=generator) for name, each in state.items()}
    scale = share * norm(state) / norm(step)
    target = {name: (each + scale * step[name]).bfloat16() for name, each in state.items()}
    save_file(target, tmp_path / "target.safetensors")
    directions = [{"kind": "towards", "target": str(tmp_path / "target.safetensors")}]
    spec = {"directions": directions, "range": [0, 1]}
    if share < 0.03:
        with pytest.raises(JobError, match=r"moves the weights by 0\.01"):
            prepared(tmp_path / "run", model, **spec)
    else:
        assert len(prepared(tmp_path / "run", model, **spec).warnings) == (share < 0.1)


def test_what_is_held_in_float32_is_left_out_of_account(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.Linear(8, 2))
    directions = [{"kind": "file", "path": str(tmp_path / "d.safetensors")}]
    still = {name: torch.zeros(each.shape) for name, each in model.named_parameters()}
    save_file(still | {"1.weight": 1e-4 * torch.ones(2, 8)}, tmp_path / "d.safetensors")
    found = prepared(tmp_path / "run", model, directions=directions)
    assert found.landscapes[0].plan.rounds_weights
    assert found.warnings == ()


def test_a_range_beyond_float32_is_refused_and_float64_has_it(tmp_path):
    model = model_of(torch.float32)
    with pytest.raises(JobError, match=r"range: must be within ±3.4e\+38, which float32 can hold, not 1e\+300"):
        prepared(tmp_path, model, "float32", range=[-1e300, 1])
    assert prepared(tmp_path, model, "float64", range=[-1e300, 1]).landscapes[0].grid.coordinates[0][0] == -1e300


@pytest.mark.parametrize("raises", [True, False], ids=["raises beside the origin", "has no logarithm"])
def test_what_a_plan_warns_of_a_run_warns_of_too(raises, tmp_path, caplog):
    model = nn.Linear(4, 2)
    origin = model.weight.detach().clone()

    def observe(model, batch):
        if raises and not torch.equal(model.weight, origin):
            raise ValueError("other weights")
        outputs = model(batch)[:, 0]
        return {"loss": outputs.square() if raises else outputs.abs().neg().log()}

    job = make_job(tmp_path, lambda: Problem(model, torch.randn(8, 4), observe), [SPEC], num_samples=8)
    (warning,) = plan_job(job)["warnings"]
    assert ("a point beside the centre raises" if raises else "the loss at its origin is nan") in warning
    run(job, progress=False)
    assert warning in caplog.messages
