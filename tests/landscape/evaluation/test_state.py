"""What user code changes between points must not be seen in the values: they depend on the point alone."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from changing import CPU, POINTS, along, by_hand, evaluator, observe_squares, vectors
from small_models import Quadratic, make_job, quadratic_samples
from torch import nn

from landscape import JobError, Problem, run
from landscape.core.plan import Plan
from landscape.evaluation import model_state
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.model_state import ModuleState, private_copy
from landscape.model.parameters import state_of

# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["batch", "point"])
def test_observables_keep_their_columns_whatever_the_order_of_their_names(of):
    calls = []

    def observe(model, batch):
        calls.append(0)
        turned = len(calls) % 2 if of == "batch" else len(calls) > 4
        values = {"loss": model(batch), "one": torch.ones(len(batch)), "two": torch.full((len(batch),), 2.0)}
        return dict(reversed(values.items())) if turned else values

    made = evaluator(Quadratic(), quadratic_samples(16), observe, batch_size=4)
    found = made.evaluate(np.zeros((3, 0)))
    assert list(found.mean) == ["loss", "one", "two"]
    assert found.mean["one"].tolist() == [1.0] * 3
    assert found.mean["two"].tolist() == [2.0] * 3
    assert len(set(found.mean["loss"].tolist())) == 1


@pytest.mark.parametrize("late", [1, 4])
def test_other_names_for_another_batch_or_point_are_refused(late):
    calls = []

    def observe(model, batch):
        calls.append(0)
        return {"loss": model(batch)} | ({"extra": model(batch)} if len(calls) > late else {})

    made = evaluator(Quadratic(), quadratic_samples(16), observe, batch_size=4)
    with pytest.raises(
        JobError, match=r"observe: must return the same names.*not \['loss'\] for one and \['loss', 'extra'\] for"
    ):
        made.evaluate(np.zeros((2, 0)))


METRICS = {
    "loss": ({"loss": lambda o, t: o}, r"metrics: 'loss' is what the criterion gives"),
    "reserved": ({"status": lambda o, t: o}, r"metrics: 'status' cannot name an observable: the store uses it"),
    "stderr": ({"loss_stderr": lambda o, t: o}, r"metrics: 'loss_stderr' cannot"),
    "no word": ({"top 5": lambda o, t: o}, r"metrics: 'top 5' cannot.*plain word"),
    "number": ({5: lambda o, t: o}, r"metrics: 5 cannot.*must be a word, not int"),
    "not callable": ({"hit": 3}, r"metrics: 'hit' must be a function .*, not int"),
    "twice": (["accuracy", "accuracy"], r"metrics: must name each once, not 'accuracy' 2 times"),
    "one word": ("accuracy", r"metrics: must be a list of names, not str"),
    "a number": (3, r"metrics: must be a list of names, not int"),
}


@pytest.mark.parametrize("case", METRICS)
def test_a_metric_that_would_replace_something_is_refused_by_name(case):
    metrics, message = METRICS[case]
    with pytest.raises(JobError, match=message):
        Problem.supervised(nn.Linear(3, 2), None, metrics=metrics)


@pytest.mark.parametrize(
    "names, message",
    [
        (["loss", "hit", "hit"], "observables: must name each once, not 'hit' 2 times"),
        (["loss", "path_loss"], "observables: 'path_loss' cannot name an observable"),
        (["accuracy"], r"observables: must name 'loss', not only \['accuracy'\]"),
        ([], r"observables: must name 'loss', not only \[\]"),
        ("loss", "observables: must be a list of names, not str"),
    ],
)
def test_observables_that_cannot_be_are_refused_by_name(names, message):
    with pytest.raises(JobError, match=message):
        Problem(nn.Linear(3, 2), None, print, names)


# -- state ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    calls: int = 0


class Private(Tally):
    __slots__ = ("__calls",)

    def count(self) -> int:
        self.__calls = getattr(self, "_Private__calls", 0) + 1
        return self.__calls


class Body(nn.Module):
    """A linear layer that moves and one that does not; what else it does with them is a subclass's `disturb`."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weight = nn.Parameter(torch.randn(3, 4, generator=generator))
        self.frozen = nn.Parameter(torch.randn(4, 4, generator=generator), requires_grad=False)
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("hidden", torch.ones(1), persistent=False)
        self.inner = nn.Identity()
        self.calls, self.memory, self.cache, self.plain = 0, [], {}, torch.ones(2)
        self.table = [0] * 5000
        self.scaling, self.layers = torch.ones(2, requires_grad=True), [nn.Linear(1, 1, bias=False)]
        nn.init.ones_(self.layers[0].weight)
        self.counts, self.one, self.zero = defaultdict(int, kept=2.0), 1, 0.0
        self.tally, self.private = Tally(), Private()
        self.array = np.ones(2, np.float32)
        self.own, self.other, self.flags = self._state_dict_hooks, {0: 0}, {1: True}
        self.middle = self.weight.detach()[0, 0] + 0.5 * along(self, "weight")["weight"][0, 0]
        self.draws = torch.Generator().manual_seed(1)
        self.dice, self.rolls = random.Random(1), np.random.default_rng(1)

    def forward(self, x):
        scale = self.disturb(x)
        return (x @ self.frozen) @ self.weight.T * scale

    def disturb(self, x):
        return 1.0


def assigned_buffer(self, x):
    self.kept = self.kept + 0.1
    return self.kept


def assigned_hidden_buffer(self, x):
    self.hidden = self.hidden * 1.1
    return self.hidden


def written_buffer(self, x):
    return self.kept.mul_(1.1)


def buffer_written_past_its_version(self, x):
    self.kept.data.mul_(1.1)
    return self.kept


def hidden_buffer_written_past_its_version(self, x):
    self.hidden.numpy()[:] *= 1.1
    return self.hidden


def frozen_weight_written(self, x):
    self.frozen.mul_(1.01)
    return 1.0


def frozen_weight_written_past_its_version(self, x):
    self.frozen.data.mul_(1.01)
    return 1.0


def frozen_weight_pointed_elsewhere(self, x):
    self.frozen.data = self.frozen.data * 1.01
    return 1.0


def counter(self, x):
    self.calls += 1
    return 1 + 0.1 * self.calls


def counter_of_a_submodule(self, x):
    self.inner.calls = getattr(self.inner, "calls", 0) + 1
    return 1 + 0.1 * self.inner.calls


def growing_list(self, x):
    self.memory.append(len(x))
    return 1 + 0.01 * len(self.memory)


def growing_dict(self, x):
    self.cache[len(self.cache)] = x
    return 1 + 0.01 * len(self.cache)


def large_list_written(self, x):
    self.table[1] += 1
    return 1 + 0.1 * self.table[1]


def large_list_growing(self, x):
    self.table.append(1)
    return 1 + 0.1 * (len(self.table) - 5000)


def plain_tensor_written(self, x):
    return self.plain.mul_(1.1)[0]


def plain_tensor_written_past_its_version(self, x):
    self.plain.data.mul_(1.1)
    return self.plain[0]


def numpy_array_written(self, x):
    self.array *= 1.1
    return float(self.array[0])


def attribute_removed(self, x):
    before = hasattr(self, "plain")
    if before:
        del self.plain
    return 1.0 if before else 2.0


def weight_cached_at_the_first_call(self, x):
    if not hasattr(self, "norm"):
        self.norm = self.weight.norm()
    return self.norm


def other_module_put_in_place(self, x):
    found = 1.0 if isinstance(self.inner, nn.Identity) else 2.0
    self.inner = nn.Linear(1, 1)
    return found


def own_generators(self, x):
    return torch.rand(1, generator=self.draws) + self.dice.random() + self.rolls.random()


def training_mode(self, x):
    was = self.training
    self.train()
    return 2.0 if was else 1.0


def registry_put_in_place(self, x):
    found = len(self._state_dict_hooks)
    self._state_dict_hooks = dict.fromkeys(range(found + 1))
    return 1 + 0.1 * found


def registry_put_in_place_and_counted(self, x):
    self.calls += 1
    return registry_put_in_place(self, x)


def hook_registered(self, x):
    self.inner.register_forward_hook(print)
    return 1 + 0.1 * len(self.inner._forward_hooks)


def counted_by_default(self, x):
    self.counts["calls"] += 1
    return 1 + 0.1 * self.counts["calls"]


def default_taken_away(self, x):
    found = self.counts.pop("kept", 1.0)
    self.counts["other"] = 0
    return found


def equal_number_of_another_type(self, x):
    found = 1.0 if isinstance(self.one, int) else 2.0
    self.one = 1.0
    return found


def slot_counted(self, x):
    self.tally.calls += 1
    return 1 + 0.1 * self.tally.calls


def private_slot_filled_and_counted(self, x):
    return 1 + 0.1 * self.private.count()


def is_in_the_middle(self):
    """At one of `POINTS` that is neither the first nor the last."""
    return float(self.weight[0, 0]) == float(self.middle)


def slot_counted_in_the_middle(self, x):
    self.tally.calls += is_in_the_middle(self)
    return 1 + 0.1 * self.tally.calls


def registry_swapped_in_the_middle_and_put_back(self, x):
    found = 1 + len(self._state_dict_hooks)
    self.__dict__["_state_dict_hooks"] = self.other if is_in_the_middle(self) else self.own
    return found


def key_replaced_in_the_middle_and_put_back(self, x):
    found = 1 + 0.1 * next(iter(self.flags))
    self.flags.clear()
    self.flags[1 + is_in_the_middle(self)] = True
    return found


def sign_of_zero(self, x):
    self.zero = -self.zero
    return 2 + math.copysign(1, self.zero)


def frozen_weight_negated_past_its_version(self, x):
    self.frozen.data.neg_()
    return 2 + float(self.frozen[0, 0].sign())


def large_list_toggled(self, x):
    self.table[1] ^= 1
    return 1 + 0.1 * self.table[1]


def tensor_that_wants_a_gradient_written(self, x):
    self.scaling.data.mul_(1.1)
    return self.scaling[0]


def layer_in_a_plain_list_written(self, x):
    self.layers[0].weight.mul_(1.1)
    return self.layers[0].weight[0, 0]


def gradients_kept(self, x):
    found = 0.0 if self.weight.grad is None else float(self.weight.grad.norm())
    with torch.enable_grad():
        self.weight.requires_grad_(True)
        (x @ self.weight.T).square().mean().backward()
    return 1 + found


DISTURBANCES = [
    assigned_buffer, assigned_hidden_buffer, written_buffer, buffer_written_past_its_version,
    hidden_buffer_written_past_its_version, frozen_weight_written, frozen_weight_written_past_its_version,
    frozen_weight_pointed_elsewhere, counter, counter_of_a_submodule, growing_list, growing_dict, large_list_written,
    large_list_growing, plain_tensor_written,
    plain_tensor_written_past_its_version, numpy_array_written, attribute_removed, weight_cached_at_the_first_call,
    other_module_put_in_place, own_generators, training_mode, gradients_kept, registry_put_in_place,
    registry_put_in_place_and_counted, hook_registered, counted_by_default, default_taken_away,
    equal_number_of_another_type, sign_of_zero, frozen_weight_negated_past_its_version, large_list_toggled,
    tensor_that_wants_a_gradient_written, layer_in_a_plain_list_written, slot_counted, private_slot_filled_and_counted,
    slot_counted_in_the_middle, registry_swapped_in_the_middle_and_put_back, key_replaced_in_the_middle_and_put_back,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda each: each.__name__)
def test_what_the_model_changes_is_put_back_before_every_point(disturb):
    kind = type("Disturbed", (Body,), {"disturb": disturb})
    model, samples = kind(), vectors()
    direction = along(model, "weight")
    expected = by_hand(model, direction, POINTS, observe_squares, samples)
    straight = evaluator(model, samples, observe_squares, [direction]).evaluate(POINTS).mean["loss"]
    made = evaluator(model, samples, observe_squares, [direction])
    backward = np.concatenate([made.evaluate(point[None]).mean["loss"] for point in POINTS[::-1]])[::-1]
    np.testing.assert_array_equal(straight, backward)
    np.testing.assert_allclose(straight, expected, rtol=1e-5)


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda each: each.__name__)
def test_so_is_what_it_changes_where_observe_reads_it_and_whole_weights_are_evaluated(disturb):
    model, samples = type("Disturbed", (Body,), {"disturb": disturb})(), vectors()
    made = evaluator(model, samples, observe_squares, [along(model, "weight")])
    expected = made.evaluate(np.array([[0.0]])).mean["loss"]
    made.evaluate(POINTS)
    origin = state_of(model)
    found = made.evaluate_states([origin, origin]).mean["loss"]
    np.testing.assert_array_equal(found, np.repeat(expected, 2))
    np.testing.assert_array_equal(made.evaluate(np.array([[0.0]])).mean["loss"], expected)


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda each: each.__name__)
def test_several_points_at_once_have_the_same_values_or_are_refused(disturb):
    kind = type("Disturbed", (Body,), {"disturb": disturb})
    model, samples = kind(), vectors()
    direction = along(model, "weight")
    made = evaluator(model, samples, observe_squares, [direction], engine="vmap:2")
    refused = ""
    try:
        found = made.evaluate(POINTS).mean["loss"]
    except JobError as error:
        refused = str(error)
    except (RuntimeError, ValueError):  # torch's own, of what vmap cannot do
        refused = "vmap"
    if refused:
        assert refused == "vmap" or refused.startswith("engine: vmap computes several points at once, and the model")
    else:
        np.testing.assert_allclose(found, by_hand(model, direction, POINTS, observe_squares, samples), rtol=1e-5)


def test_a_model_that_changes_nothing_has_no_container_compared_by_itself(monkeypatch):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(20)))
    state, compared = ModuleState(model, [model]), []
    unpatched = model_state.NamedMembers.changed
    monkeypatch.setattr(model_state.NamedMembers, "changed", lambda each: compared.append(each.name) or unpatched(each))
    state.restore()
    assert compared == []
    model[3][0].calls = 1
    state.restore()
    assert "3.0" in compared
    assert not hasattr(model[3][0], "calls")
    compared.clear()
    state.restore()
    assert compared == []
    assert not state.unnoticed()


def two_dicts() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.first, model.second, model.last = {"a": 0}, {"b": True, "c": 1}, True
    return model


def key_renamed(model):
    del model.second["c"]
    model.second["d"] = 1


def attribute_renamed(model):
    del model.last
    model.final = True


def member_moved_to_the_dict_beside_it(model):
    moved, rest = model.second.popitem(), dict(model.first)
    model.first.clear()
    model.first.update([moved], **rest)


def key_that_cannot_be_compared(model):
    del model.second["c"]
    model.second[torch.ones(2)] = 1


def attribute_added_as_an_engine_gives_back_the_calls(model):
    del model[0].forward
    model[0].seen = True


CHANGES = [
    key_renamed, attribute_renamed, member_moved_to_the_dict_beside_it, key_that_cannot_be_compared,
    attribute_added_as_an_engine_gives_back_the_calls,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_change_that_leaves_lengths_or_values_alone_is_put_back_too(change):
    model = two_dicts()
    before = [dict(each) for each in (vars(model), model.first, model.second, vars(model[0]))]
    state = ModuleState(model, [model])
    state.restore()
    model[0].forward = model[0].forward  # as an engine takes over the calls
    state.restore()
    change(model)
    state.restore()
    vars(model[0]).pop("forward", None)
    assert [vars(model), model.first, model.second, vars(model[0])] == before
    assert not state.unnoticed()


def test_a_copy_may_leave_out_a_submodule_and_keep_private_slots():
    class Cached(nn.Module):
        __slots__ = ("__calls",)

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cache, self.__calls = nn.Linear(2, 2), nn.Linear(2, 2), 3

        def __deepcopy__(self, memo):
            found = memo[id(self)] = Cached()
            del found.cache
            return found

    copied, _ = private_copy(Cached())
    assert not hasattr(copied, "cache")
    assert copied._Cached__calls == 3
    del Cached.__deepcopy__
    with pytest.raises(JobError, match=r"^model: Cached._Cached__calls is in __slots__, which copies of a module lose"):
        private_copy(Cached())


# -- samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1])
def test_what_is_taken_out_of_a_batch_or_put_into_it_is_as_before_at_the_next_point(limit):
    def observe(model, batch):
        inputs, shifts = batch.pop("inputs"), batch["rest"].pop()
        batch["inputs"] = inputs * 2
        return {"loss": model(inputs).square().sum(1) + shifts}

    model, samples = nn.Linear(4, 3), {"inputs": vectors(), "rest": [torch.arange(10.0)]}
    plan = Plan(batch_size=4, threads=1, device="cpu")
    made = Evaluator(model, samples, observe, plan, CPU, state_of(model), [along(model, "weight")], limit=limit)
    straight = made.evaluate(POINTS).mean["loss"]
    np.testing.assert_array_equal(made.evaluate(POINTS[::-1].copy()).mean["loss"], straight[::-1])


def test_samples_may_be_differentiated_by_and_are_as_before_at_the_next_point():
    def observe(model, batch):
        before = 0.0 if batch.grad is None else float(batch.grad.norm())
        with torch.enable_grad():
            loss = model(batch.requires_grad_()).square().sum(1)
            loss.sum().backward()
        return {"loss": loss + before}

    model = nn.Linear(4, 3)
    made = evaluator(model, vectors(), observe, [along(model, "weight")])
    straight = made.evaluate(POINTS).mean["loss"]
    np.testing.assert_array_equal(made.evaluate(POINTS[::-1].copy()).mean["loss"], straight[::-1])


IN_PLACE = {
    "operation": lambda batch: batch.add_(1),
    "through data": lambda batch: batch.data.add_(1),
    "through numpy": lambda batch: np.add(batch.numpy(), 1, out=batch.numpy()),
    "reversed through data": lambda batch: batch.data.copy_(batch.flip(0)),
    "transposed": lambda batch: batch.t_(),
    "pointed elsewhere": lambda batch: setattr(batch, "data", batch * 2),
}


@pytest.mark.parametrize("late", [0, 2, 7])
@pytest.mark.parametrize("case", IN_PLACE)
def test_a_batch_that_is_changed_in_place_at_any_point_is_refused(case, late):
    calls = []

    def observe(model, batch):
        calls.append(0)
        if len(calls) > late:
            IN_PLACE[case](batch)
        return {"loss": model(batch.view(4, 4)).square().sum(1)}

    model = nn.Linear(4, 3)
    made = evaluator(model, vectors(12), observe, [along(model, "weight")])
    with pytest.raises(JobError, match=r"observe: must not change its batch in place.*clone"):
        made.evaluate(POINTS)


def test_changed_samples_end_the_job_and_are_no_failure_of_a_tile(tmp_path):
    calls = []

    def observe(model, batch):
        calls.append(0)
        if len(calls) > 20:
            batch.mul_(2)
        return {"loss": model(batch).square().sum(1)}

    problem = Problem(nn.Linear(4, 3), vectors(12), observe)
    with pytest.raises(JobError, match="observe: must not change its batch in place"):
        run(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 9}], tile=[3], num_samples=12))
