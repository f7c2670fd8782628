"""A new landscape against the user's own model: faults that gave a wrong picture in silence, and models that are sound.

The truth is what the user would compute by hand: a model that `problem()` returned, its parameters set, in eval mode.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import ConvNet, conv_problem, image_samples, make_job, raw_directions, wandering, write_trajectory
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from landscape import Problem, extend, run
from landscape.analysis.checks.table import check_landscape
from landscape.compute.reproducibility import OtherModel
from landscape.core.errors import JobError
from landscape.evaluation.model_state import private_copy
from landscape.evaluation.reference_loss import Pair
from landscape.store.landscape import LandscapeStore
from landscape.views.prepare.words import caption

PLANE = {"name": "plane", "size": 3, "range": [-0.5, 0.5]}


class Diverged(nn.Module):
    """Its loss is NaN, but for copies that forget a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sound = nn.Linear(4, 2), False

    def __deepcopy__(self, memo: dict[int, Any]) -> Diverged:
        copied = Diverged()
        copied.layer, copied.sound = copy.deepcopy(self.layer, memo), True
        return copied

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.layer(inputs)
        return outputs if self.sound else outputs * math.nan


def test_a_finite_landscape_of_a_model_whose_own_loss_is_nan_is_refused(tmp_path):
    problem = Problem(Diverged(), samples(), observe)
    with pytest.raises(OtherModel, match=r"the centre is not your model: loss .*, and nan by"):
        run(make_job(tmp_path, lambda: problem, [PLANE], num_samples=40, batch_size=40))


def samples(count: int = 40) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def observe(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": cross_entropy(model(batch[0]), batch[1], reduction="none")}


class MergesOnEval(nn.Module):
    """A linear layer with a LoRA, whose weights are merged by `eval` and taken out by `train`, as loralib does."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.merged = net(), False
        self.a = nn.Parameter(torch.randn(2, 8, generator=torch.Generator().manual_seed(1)))
        self.b = nn.Parameter(torch.tensor([[0.3, 0.6], [-0.3, 0.0]]))

    def train(self, mode: bool = True) -> MergesOnEval:
        super().train(mode)
        if self.merged == mode:
            with torch.no_grad():
                self.base[2].weight += (-1 if mode else 1) * self.b @ self.a
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.base[1](self.base[0](x))
        found = self.base[2](hidden)
        return found if self.merged else found + hidden @ (self.b @ self.a).T


class LosesItsScale(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.net, self.scale = net(), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.net(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> LosesItsScale:
        made = LosesItsScale()
        made.load_state_dict(self.state_dict())
        return made


class IsItsOwnCopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> IsItsOwnCopy:
        return self


class SharesItsWeights(IsItsOwnCopy):
    def __deepcopy__(self, memo: dict[int, Any]) -> SharesItsWeights:
        made = SharesItsWeights()
        made.net = self.net
        return made


def sound() -> Problem:
    return Problem(net(), samples(), observe)


def merges_on_eval() -> Problem:
    return Problem(MergesOnEval(), samples(), observe)


def loses_its_scale() -> Problem:
    return Problem(LosesItsScale(3.0), samples(), observe)


def keeps_by_identity() -> Problem:
    first: dict[int, Tensor] = {}

    def cached(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        weight = first.setdefault(id(model), model[0].weight.detach().clone())
        hidden = torch.tanh(batch[0] @ weight.T + model[0].bias)
        return {"loss": cross_entropy(model[2](hidden), batch[1], reduction="none")}

    return Problem(net(), samples(), cached)


def hook_over_another_layer() -> Problem:
    model = net()
    first = model[0]
    model[2].register_forward_hook(lambda module, given, made: made * first.weight.square().mean())
    return Problem(model, samples(), observe)


def observe_reads_the_outer_model() -> Problem:
    outer = net()

    def reads(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": cross_entropy(model[2](torch.tanh(outer[0](batch[0]))), batch[1], reduction="none")}

    return Problem(outer, samples(), reads)


AT_THE_CENTRE = (merges_on_eval, loses_its_scale, keeps_by_identity)
BESIDE = (hook_over_another_layer, observe_reads_the_outer_model)


def by_hand(problem: Problem, weights: dict[str, Tensor]) -> float:
    """The mean loss of the model that the callback returned, with its parameters set."""
    with torch.no_grad():
        for name, parameter in problem.model.named_parameters():
            parameter.copy_(weights[name])
        problem.model.eval()
        return float(problem.observe(problem.model, problem.data)["loss"].double().mean())


@pytest.mark.parametrize("made", [*AT_THE_CENTRE, *BESIDE])
def test_a_landscape_that_is_not_of_the_users_model_is_an_error_that_names_both_losses(tmp_path, made):
    with pytest.raises(OtherModel) as caught:
        run(make_job(tmp_path, made, [PLANE], num_samples=40, engine="eager"))
    message, store = str(caught.value), LandscapeStore.open(str(tmp_path), "plane")
    place = "the centre is not your model" if made in AT_THE_CENTRE else "beside the centre it is not your model"
    assert message.startswith(f"landscape 'plane': {place}: loss ")
    assert "--accept-origin" in message
    assert not store.record.has_check
    assert store.record.own_model is None
    assert store.counts()[1:].sum() == 0, "nothing is stored"

    axes, origin = raw_directions(tmp_path, "plane"), made().model.state_dict()
    at = (0.0, 0.0) if made in AT_THE_CENTRE else (-0.5, -0.5)
    weights = {
        name: torch.from_numpy(tensor.numpy() + sum(c * axis[name] for c, axis in zip(at, axes, strict=True)))
        for name, tensor in origin.items()
    }
    own = float(message.partition(", and ")[2].split()[0])
    assert own == pytest.approx(by_hand(made(), weights), rel=1e-5)


@pytest.mark.parametrize("made", [merges_on_eval, hook_over_another_layer])
def test_what_is_accepted_is_a_warning_that_stays_in_record_and_caption(tmp_path, caplog, made):
    job = make_job(tmp_path, made, [PLANE], num_samples=40, engine="eager")
    with caplog.at_level(logging.WARNING):
        surface = run(job, accept_origin=True)["plane"]
    known = surface.record.own_model
    assert known is not None
    assert known.state == "accepted"
    assert known.text in caplog.text
    assert known.text in "; ".join(caption(surface, "loss")).replace("Beside", "beside").replace("The c", "the c")
    digest = surface.record.digest
    caplog.clear()
    LandscapeStore.open(str(tmp_path), "plane", write=True).quarantine_tile(
        LandscapeStore.open(str(tmp_path), "plane").tile((0, 0))
    )
    again = run(job)["plane"]  # not asked again
    assert again.record.digest == digest
    assert again.loss.tobytes() == surface.loss.tobytes()


@pytest.mark.parametrize(
    ("kind", "what"), [(IsItsOwnCopy, "itself"), (SharesItsWeights, "one that has the same net.0.weight")]
)
def test_a_copy_that_is_none_is_refused(tmp_path, kind, what):
    problem = Problem(kind(), samples(), observe)
    before = {name: each.clone() for name, each in problem.model.state_dict().items()}
    with pytest.raises(JobError, match=f"^model: copy.deepcopy of {kind.__name__} gives {what}, and what is moved"):
        run(make_job(tmp_path, lambda: problem, [PLANE], num_samples=40))
    assert all(torch.equal(each, before[name]) for name, each in problem.model.state_dict().items())
    assert all(each.requires_grad for each in problem.model.parameters())


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_copy_whose_parameters_have_no_memory_of_their_own_is_one(device):
    model = nn.Linear(2, 2, device=device)
    copied, _ = private_copy(model)
    assert copied.weight is not model.weight


class Recalls(nn.Module):
    """Keeps what it computed where copies of it are deep: a list, an object, a tensor; and has an eval of its own."""

    class Memory:
        calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen, self.memory = net(), [], self.Memory()
        self.last = torch.zeros(2)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def eval(self) -> Recalls:
        self.seen.append("eval")
        return super().eval()

    def forward(self, x: Tensor) -> Tensor:
        found = self.net(x)
        self.memory.calls += 1
        self.last.copy_(found[0].detach())
        self.count += 1
        return found


def test_the_users_own_model_is_left_as_it_was(tmp_path):
    model = Recalls().train()
    model.net[0].eval()
    before = copy.deepcopy(model)
    places = [each.data_ptr() for each in (*model.parameters(), *model.buffers())]
    surface = run(make_job(tmp_path, lambda: Problem(model, samples(), observe), [PLANE], precision="float64"))["plane"]
    assert surface.record.own_model.state == "agrees"
    assert [each.data_ptr() for each in (*model.parameters(), *model.buffers())] == places
    expected = before.state_dict()
    assert all(torch.equal(each, expected[name]) for name, each in model.state_dict().items())
    assert all(a.dtype is b.dtype for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert [each.training for each in model.modules()] == [each.training for each in before.modules()]
    assert (model.seen, model.memory.calls, model.last.tolist()) == ([], 0, [0.0, 0.0])
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


ENGINES = ["eager", "eager+channels_last+maxima", "eager+folded", "eager+folded+fused", "eager+superposed", "vmap:2"]


@pytest.mark.parametrize(("origin", "engine"), [*(("problem", engine) for engine in ENGINES), ("last", "eager+folded")])
def test_every_engine_agrees_with_the_model_in_any_batches(tmp_path, engine, origin):
    write_trajectory(tmp_path, wandering(ConvNet(), 4))
    # Components of the trajectory move the running statistics too.
    spec = (
        PLANE
        | {"origin": origin}
        | ({"directions": [{"kind": "pca", "trajectory": "all"}]} if origin == "last" else {})
    )
    surface = run(make_job(tmp_path, conv_problem, [spec], num_samples=29, batch_size=8, engine=engine))["plane"]
    known = surface.record.own_model
    assert known.state == "agrees"
    for evaluated, own in known.losses.values():
        assert float.fromhex(evaluated) == pytest.approx(float.fromhex(own), rel=1e-6)


def weighted(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return observe(model, batch) | {"weight": 1.0 + batch[1].float()}


def drawing(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    noisy = batch[0] + 0.1 * torch.randn_like(batch[0])
    return {"loss": cross_entropy(model(noisy), batch[1], reduction="none")}


def not_finite(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": torch.log(-model(batch[0]).square().sum(1))}


def huge(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": 1e30 * observe(model, batch)["loss"]}


def tiny(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """As of a fit that is nearly exact: what is left of large outputs is mostly rounding."""
    outputs = 1e4 + model(batch[0])
    return {"loss": (outputs - 1e4 - model(batch[0]) * (1 + 1e-6)).square().sum(1)}


def chaotic(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": 2 + torch.sin(1e6 * model(batch[0])).sum(1)}


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    model[3].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("watch", "precision"),
    [
        (observe, "float64"),
        (weighted, "bfloat16"),
        *((watch, "float32") for watch in (observe, weighted, drawing, not_finite, huge, tiny, chaotic)),
        *((watch, "bfloat16") for watch in (drawing, huge, tiny, chaotic)),
    ],
)
def test_sound_problems_raise_no_alarm(tmp_path, watch, precision):
    problem = Problem(net(), samples(), watch)
    surface = run(make_job(tmp_path, lambda: problem, [PLANE], precision=precision, batch_size=16))["plane"]
    assert surface.record.own_model.state == "agrees"


@pytest.mark.parametrize("make", [tied, lambda: net().double()])
def test_sound_models_raise_no_alarm(tmp_path, make):
    problem = Problem(make(), samples(), observe)
    surface = run(make_job(tmp_path, lambda: problem, [PLANE], engine="eager"))["plane"]
    assert surface.record.own_model.state == "agrees"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_held_in_bfloat16_raise_no_alarm(tmp_path, precision):
    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net().bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.to(self.net[0].weight.dtype)).float()

    surface = run(make_job(tmp_path, lambda: Problem(Low(), samples(), observe), [PLANE], precision=precision))["plane"]
    assert surface.record.own_model.state == "agrees"


@pytest.mark.parametrize(
    ("fields", "spec", "reason"),
    [
        ({"batch_norm": "batch"}, {}, "batch_norm: batch is meant to give other losses than the model in eval mode"),
        ({"batch_norm": "recalibrate"}, {}, "batch_norm: recalibrate is meant to give"),
        ({}, {"quantise": {"bits": 4}}, "weights rounded to 4 bits"),
    ],
)
def test_a_landscape_that_is_meant_to_differ_is_not_compared_and_says_why(tmp_path, fields, spec, reason):
    known = run(make_job(tmp_path, conv_problem, [PLANE | spec], **fields))["plane"].record.own_model
    assert known.state == "not compared"
    assert reason in known.text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("no room"), "memory did not suffice for its own forward pass: free memory, or take a smaller"),
        (ValueError("not I"), "comparing raised ValueError: not I"),
    ],
)
def test_a_pass_that_raises_although_the_evaluation_did_not_is_a_warning(tmp_path, caplog, error, reason):
    model = ConvNet()

    def only_copies(given: nn.Module, batch: Any) -> dict[str, Tensor]:
        if given is model:
            raise error
        return observe(given, batch)

    problem = Problem(model, image_samples(), only_copies)
    with caplog.at_level(logging.WARNING):
        surface = run(make_job(tmp_path, lambda: problem, [PLANE]))["plane"]
    known = surface.record.own_model
    assert f"landscape 'plane' was not compared with your model: {known.text}" in caplog.text
    assert known.state == "not compared"
    assert reason in known.text
    assert np.isfinite(surface.loss).all()


@pytest.mark.parametrize(
    ("pair", "agrees"),
    [
        (Pair(1.0, 1.0 + 7e-5), True),
        (Pair(1.0, 1.0 + 1e-4), False),
        (Pair(1.0, 1.1, rounding=0.02), True),
        (Pair(0.0, 5e-7), True),
        (Pair(math.nan, math.nan), True),
        (Pair(math.inf, math.nan), True),
        (Pair(math.nan, 1.0), False),
        (Pair(1.0, math.inf), False),
    ],
)
def test_two_losses_agree_within_eight_times_the_rounding(pair, agrees):
    assert pair.agrees() is agrees


def forget_comparison(run_folder: Path) -> None:
    """As a version leaves it that did not compare."""
    document = run_folder / "landscapes.zarr" / "plane" / "zarr.json"
    content = json.loads(document.read_text())
    del content["attributes"]["own_model"]
    document.write_text(json.dumps(content))


def test_what_another_version_began_is_not_compared_and_stays(tmp_path):
    """Such a landscape has values that every process must reproduce, but nothing of the user's own model."""
    job = make_job(tmp_path, hook_over_another_layer, [PLANE], num_samples=40)
    before = run(job, accept_origin=True)["plane"]
    store = LandscapeStore.open(str(tmp_path), "plane", write=True)
    store.quarantine_tile(store.tile((0, 0)))
    forget_comparison(tmp_path)
    assert run(job)["plane"].loss.tobytes() == before.loss.tobytes()


def test_what_cannot_be_evaluated_beside_the_origin_is_not_compared_and_says_so(tmp_path, caplog):
    def raises_beside(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        if not torch.equal(model[0].weight, net()[0].weight):
            raise ValueError("only there")
        return observe(model, batch)

    job = make_job(tmp_path, lambda: Problem(net(), samples(), raises_beside), [PLANE | {"size": 5}], engine="eager")
    with caplog.at_level(logging.WARNING):
        known = run(job)["plane"].record.own_model
    assert known.state == "not compared"
    assert known.text == "the landscape's losses at the origin and beside it could not be computed"
    assert known.text in caplog.text


def test_in_a_coarse_precision_the_point_beside_the_origin_is_compared_too(tmp_path):
    """The loss at the origin is off by more than rounding in float32, and by less than the error of the precision."""
    problem = Problem(LosesItsScale(1.005), samples(), observe)
    known = run(make_job(tmp_path, lambda: problem, [PLANE], precision="bfloat16"))["plane"].record.own_model
    evaluated, own = map(float.fromhex, known.losses["origin"])
    assert 1e-4 < abs(evaluated - own) / own < 1e-2
    assert set(known.losses) == {"origin", "point"}


def test_what_goes_on_with_a_landscape_that_was_not_compared_says_so(tmp_path):
    run(make_job(tmp_path, sound, [PLANE], num_samples=20))
    forget_comparison(tmp_path)
    found = extend(str(tmp_path), "plane", num_samples=40, problem=sound)["plane"].record.own_model
    assert found.text == "it goes on with another landscape, which was not compared either"


def test_the_checks_find_the_same_at_points_far_from_the_centre(tmp_path):
    job = make_job(tmp_path, hook_over_another_layer, [PLANE], num_samples=40)
    run(job, accept_origin=True)
    found = {each.number: each for each in check_landscape(tmp_path, "plane", problem=hook_over_another_layer).results}
    assert found["1"].state == "fails"
    assert found["1"].text.startswith("beside the centre it is not your model: loss ")
    assert found["1"].text.endswith("; that was accepted")
    assert found["3"].state == "fails"


def test_a_landscape_without_a_value_is_dropped_where_mending_the_model_changes_its_weights(tmp_path):
    with pytest.raises(OtherModel):
        run(make_job(tmp_path, merges_on_eval, [PLANE], num_samples=40))
    with pytest.raises(JobError, match=r"none of it is computed yet: drop it by `landscape rm \S+ plane`"):
        run(make_job(tmp_path, sound, [PLANE], num_samples=40))
