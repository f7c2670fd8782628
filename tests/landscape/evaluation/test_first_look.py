"""What is found in the first look at `observe`: state of its own, another model, code that ends the process."""

from __future__ import annotations

import sys

import pytest
import torch
from small_models import make_job
from torch import nn

from landscape import JobError, Problem, run
from landscape.compute.prepare import prepare
from landscape.evaluation.dry_run import first_look
from landscape.surface.surface import QUARANTINED

CPU = torch.device("cpu")
SAMPLES = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def look(observe, model=None, samples=SAMPLES):
    return first_look(nn.Linear(3, 1) if model is None else model, observe, samples, "float32", CPU)


def losses(model, batch):
    return {"loss": model(batch)[:, 0]}


# -- state of observe's own ----------------------------------------------------------------------------------


class Counting:
    def __init__(self) -> None:
        self.turns, self.matters = 0, True

    def __call__(self, model, batch):
        self.turns += 1
        return {"loss": model(batch)[:, 0] + (self.turns if self.matters else 0)}

    def method(self, model, batch):
        return self(model, batch)


def closure():
    seen = []

    def observe(model, batch):
        seen.append(batch.sum())
        return {"loss": model(batch)[:, 0] + len(seen)}

    return observe


def cell():
    count = [0]

    def observe(model, batch):
        count[0] += 1
        return {"loss": model(batch)[:, 0] + count[0]}

    return observe


TURNS = 0


def with_a_global(model, batch):
    global TURNS
    TURNS += 1
    return {"loss": model(batch)[:, 0] * TURNS}


STATEFUL = {
    "object": Counting(), "method": Counting().method, "closure": closure(), "cell": cell(), "global": with_a_global,
}  # fmt: skip
NAMES = {"object": "turns", "method": "turns", "closure": "seen", "cell": "count", "global": "TURNS"}


@pytest.mark.parametrize("case", STATEFUL)
def test_an_observe_whose_values_depend_on_what_it_did_before_is_refused_by_name(case):
    with pytest.raises(JobError, match=rf"^observe: must give the same values .* it changes {NAMES[case]};"):
        look(STATEFUL[case])


def test_one_that_only_counts_is_none_of_it():
    observe = Counting()
    observe.matters = False
    assert look(observe).names == ("loss",)
    assert observe.turns > 1


def test_draws_are_seeded_and_state_of_the_model_is_put_back():
    class Noisy(nn.Linear):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x) + self.calls + torch.rand(1)

    assert look(losses, Noisy(3, 1)).warnings == ()


# -- another model -------------------------------------------------------------------------------------------


def test_an_observe_that_uses_another_model_is_refused():
    other = nn.Sequential(nn.Linear(3, 1))
    with pytest.raises(JobError, match=r"^observe: must use the model that it is given, not another Sequential"):
        look(lambda model, batch: {"loss": other(batch)[:, 0]})


def test_nor_is_it_one_that_uses_both():
    other = nn.Linear(3, 1)
    assert look(lambda model, batch: {"loss": (model(batch) - other(batch))[:, 0]}).warnings == ()


def test_a_model_that_is_used_without_being_called_is_used():
    assert look(lambda model, batch: {"loss": (batch @ model.weight.T)[:, 0]}).warnings == ()


@pytest.mark.parametrize(
    "observe", [lambda m, b: {"loss": b[:, 0]}, lambda m, b: {"loss": b[:, 0] + 0 * m(b)[:, 0]}], ids=["unused", "flat"]
)
def test_losses_that_nothing_moves_are_told_in_the_plan(tmp_path, observe):
    model = nn.Linear(3, 1)
    (warning,) = prepare(make_job(tmp_path, lambda: Problem(model, SAMPLES, observe), [{"name": "a"}])).warnings
    assert warning.startswith("observe: the losses of the first 2 samples are the same, to the last bit")


def test_a_head_of_zeros_and_half_precision_are_not_taken_for_flat():
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    assert look(losses, model).warnings == ()
    assert look(losses, nn.Linear(3, 1).bfloat16()).warnings == ()


def test_user_code_that_raises_at_other_weights_is_left_to_the_points_to_tell():
    def observe(model, batch):
        assert float(model.weight.abs().max()) < 1
        return losses(model, batch)

    assert look(observe).names == ("loss",)


# -- code that ends the process ------------------------------------------------------------------------------


class Stop(BaseException):
    pass


ENDS = {"exit": lambda: sys.exit(0), "code": lambda: sys.exit(3), "close": GeneratorExit, "own": Stop}


def end(case):
    found = ENDS[case]()
    raise found


@pytest.mark.parametrize("case", ENDS)
def test_code_that_ends_the_process_at_once_is_refused_and_says_where(case):
    def observe(model, batch):
        end(case)

    with pytest.raises(JobError, match=r"^observe: (called sys.exit|raised).*test_first_look.py:\d+\) on the first"):
        look(observe)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("part", ["observe", "model", "hook"])
def test_code_that_ends_the_process_at_some_point_fails_the_tile_and_says_where(tmp_path, part, case):
    model = nn.Linear(3, 1)

    def forward(module, inputs, outputs=None):
        if float(module.weight.norm()) > limit:
            end(case)

    def observe(given, batch):
        if part == "observe":
            forward(given, batch)
        return losses(given, batch)

    limit = 1.5 * float(model.weight.detach().norm())
    if part == "hook":
        model.register_forward_hook(forward)
    if part == "model":
        model = Guarded(model, forward)
    spec = {"name": "a", "directions": [{"kind": "random", "seed": 1, "normalise": "filter"}], "size": 9}
    spec |= {"range": [-3, 3]}
    surface = run(make_job(tmp_path, lambda: Problem(model, SAMPLES, observe), [spec], tile=[1], num_samples=8))["a"]
    assert 0 < (surface.status == QUARANTINED).sum() < 9
    (cause,) = {each["cause"] for each in surface.attributes["failures"]}
    assert "test_first_look.py:" in cause
    assert "sys.exit" in cause or "raised" in cause


class Guarded(nn.Module):
    def __init__(self, inner, guard) -> None:
        super().__init__()
        self.inner, self.guard = inner, guard

    def forward(self, x):
        self.guard(self.inner, x)
        return self.inner(x)
