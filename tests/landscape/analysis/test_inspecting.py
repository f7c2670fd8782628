"""A point inspected: its loss to the bit, statistics against plain ones, what breaks where, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exponential import Exponential
from small_models import ConvNet, conv_problem, make_job
from torch import Tensor, nn

from landscape import JobError, Problem, open_run, run
from landscape.analysis.inspection import inspect, inspection_text, plain_inspection
from landscape.core.errors import NotFoundError
from landscape.surface.surface import NOT_FINITE

WIDE = {"name": "wide", "size": [5, 3], "range": [[-40, 40], [-1, 1]]}


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(23, 6, generator=generator), torch.randint(0, 3, (23,), generator=generator)


def problem() -> Problem:
    return Problem.supervised(Exponential(), samples(), nn.CrossEntropyLoss(), [])


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inspected")
    run(make_job(folder, problem, [WIDE], num_samples=23, batch_size=9, tile=2, engine="eager"))
    return folder


def test_the_first_grey_cell_is_told_why_it_is_grey(computed):
    surface = open_run(computed)["wide"]
    row, column = np.argwhere(surface.status == NOT_FINITE)[0]
    found = inspect(computed, "wide", problem=problem)
    assert found.point == (surface.alpha[column], surface.beta[row])
    assert not math.isfinite(found.loss)
    assert (found.first.layer, found.first.rule) == ("exp()", "tensor_overflow")
    text = inspection_text(found)
    assert "breaks first: exp(): tensor_overflow (NaN or Inf: share not finite" in text
    assert "; by the operation exp" in text
    data = json.loads(json.dumps(plain_inspection(found), allow_nan=False))
    assert data["first"]["operation"] == "exp"
    assert data["loss"] is None
    layers = ["fc1", "relu()", "fc2", "exp()", "fc3", "observe.log_softmax()", "observe.nll_loss_forward()"]
    assert [layer["name"] for layer in data["layers"]] == layers


def test_the_loss_is_the_landscapes_to_the_bit_and_so_anywhere(computed):
    surface = open_run(computed)["wide"]
    assert np.isfinite(surface.loss[1, 2])
    for row, column in np.argwhere(surface.status != NOT_FINITE):
        found = inspect(computed, "wide", at=(surface.alpha[column], surface.beta[row]), problem=problem)
        assert found.loss == surface.loss[row, column]
        assert found.stderr == surface.stderr("loss")[row, column]
        assert found.origin_loss == surface.loss[1, 2]


def test_statistics_are_those_of_all_samples_at_once(computed):
    found = inspect(computed, "wide", at=(0, 0), problem=problem, gradients=True)
    model, (inputs, targets), outputs = Exponential(), samples(), {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _, __, output, name=name: outputs.__setitem__(name, output.detach()))
    nn.functional.cross_entropy(model(inputs), targets).backward()
    seen = {layer.name: layer.statistics for layer in found.here.layers}
    for name, values in outputs.items():
        values, known = values.double(), seen[name]
        assert known.count == values.numel()
        assert known.low == pytest.approx(values.min().item(), rel=1e-6)
        assert known.high == pytest.approx(values.max().item(), rel=1e-6)
        assert known.mean == pytest.approx(values.mean().item(), rel=1e-5, abs=1e-7)
        assert known.spread == pytest.approx(values.std(correction=0).item(), rel=1e-6)
        assert known.magnitude == pytest.approx(values.abs().mean().item(), rel=1e-6)
    assert seen["relu()"].zeros == int((outputs["fc1"] <= 0).sum())
    for gradient in found.here.gradients:
        expected = model.get_parameter(gradient.layer).grad
        assert gradient.statistics.magnitude == pytest.approx(expected.abs().mean().item(), rel=1e-5)
    assert found.findings == ()
    assert "no rule fires" in inspection_text(found)


def test_a_point_beyond_the_grid_is_exact_too(computed):
    found = inspect(computed, "wide", at=(55, 7.5), problem=problem)
    assert found.first.layer == "exp()"
    assert found.first.layer not in {each.layer for each in found.at_origin}


def test_statistics_taken_anew_have_a_pass_that_does_not_count(tmp_path):
    plane = {"name": "plane", "size": 3, "range": [-0.5, 0.5]}
    job = make_job(tmp_path, conv_problem, [plane], num_samples=29, batch_size=8, batch_norm="recalibrate", tile=2)
    surface = run(job)["plane"]
    found = inspect(tmp_path, "plane", at=(0.5, -0.5), problem=conv_problem, gradients=True)
    assert found.loss == surface.loss[0, 2]
    layers = {layer.name: layer for layer in found.here.layers}
    assert layers["conv"].statistics.count == 29 * 4 * 16
    assert list(layers) == ["conv", "bn", "relu()", "linear", "observe.log_softmax()", "observe.nll_loss_forward()"]
    assert "batch_norm" in found.here.no_gradients


class Told(nn.Module):
    """Returns what is no tensor, calls a layer twice, raises on demand."""

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.twice, self.pair, self.net = nn.Linear(6, 6), nn.GRU(6, 6, batch_first=True), ConvNet()
        self.raises = raises

    def forward(self, x: Tensor) -> dict[str, object]:
        hidden = self.twice(self.twice(x))
        if self.raises and hidden.abs().max() > 20:
            self.net(hidden)
        outputs, last = self.pair(hidden[:, None])
        return {"logits": outputs[:, 0, :3], "more": SimpleNamespace(last=last)}


def dicts(raises: bool = False) -> Problem:
    def observe(model, batch):
        inputs, targets = batch
        return {"loss": nn.functional.cross_entropy(model(inputs)["logits"], targets, reduction="none")}

    return Problem(Told(raises=raises), samples(), observe)


def test_layers_that_are_called_twice_or_return_no_tensor(tmp_path):
    run(make_job(tmp_path, dicts, [{"name": "line", "size": 3, "directions": [{"kind": "random"}]}], num_samples=23))
    names = [layer.name for layer in inspect(tmp_path, "line", at=[0.5], problem=dicts).here.layers]
    assert names[:4] == ["twice", "twice #2", "pair[0]", "pair[1]"]
    assert "the model[logits]" in names


def test_user_code_that_raises_is_named_with_its_layer(tmp_path):
    line = {"name": "line", "size": 3, "directions": [{"kind": "random"}]}
    run(make_job(tmp_path, dicts, [line], num_samples=23, engine="eager"))
    with pytest.raises(JobError, match=r"point 500: the network in layer net\.conv raised RuntimeError") as caught:
        inspect(tmp_path, "line", at=[500.0], problem=lambda: dicts(raises=True))
    assert "\n" not in str(caught.value)


class Halved(nn.Module):
    """Overflows in bfloat16, float16 alike, behind a mask of -Inf that is none of its business."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((6, 6), -math.inf).triu(1)
        scores = (self.linear(x)[:, :, None] + mask).softmax(-1)
        return scores.sum(-1)[:, :3]


class Lowest(Halved):
    """Masks by numbers that are finite, as transformers do."""

    lowest = torch.finfo(torch.float32).min

    def forward(self, x: Tensor) -> Tensor:
        mask = (1 - torch.ones(6, 6).tril()) * self.lowest
        return (self.linear(x)[:, :, None] + mask).softmax(-1).sum(-1)[:, :3]


class Billion(Lowest):
    lowest = -1e9


@pytest.mark.parametrize("model", [Lowest, Billion])
def test_masks_of_finite_numbers_are_no_fault(tmp_path, model):
    masked = lambda: Problem.supervised(model(), samples(), nn.CrossEntropyLoss(), [])  # noqa: E731
    line = {"name": "line", "size": 3, "directions": [{"kind": "random"}], "layers": True}
    done = run(make_job(tmp_path, masked, [line], num_samples=23))
    assert not done["line"].observables["first_layer"].any()
    (added,) = [layer for layer in inspect(tmp_path, "line", at=[0], problem=masked).here.layers if "add" in layer.name]
    assert added.statistics.low <= -1e9
    assert added.unmasked.magnitude < 10


class Forward(nn.Module):
    """Adds its derivative along an axis, in which those by the weights are zeros that have no memory."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return sum(torch.func.jvp(self.linear, (x,), (torch.ones_like(x),)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by which torch makes rules of derivatives
def test_derivatives_that_are_zero_are_left_alone(tmp_path):
    made = lambda: Problem.supervised(Forward(), samples(), nn.CrossEntropyLoss(), [])  # noqa: E731
    run(make_job(tmp_path, made, [{"name": "line", "size": 3, "directions": [{"kind": "random"}]}], num_samples=23))
    found = inspect(tmp_path, "line", at=[0], problem=made)
    assert found.findings == ()
    assert "linear" in [layer.name for layer in found.here.layers]


class Logarithm(Halved):
    """Masks by the logarithm of zeros and ones."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(6, 6).tril().log()[None].expand(len(x), 6, 6)
        return torch.cat([self.linear(x)[:, :, None] + mask]).softmax(-1).sum(-1)[:, :3]


class Unmasked(Logarithm):
    """No softmax takes its -Inf up."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x[:, :3] > 99).float().log()


class AllMasked(Halved):
    """A row of a softmax with nothing but -Inf is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x)[:, :3] + torch.zeros(3).log()).softmax(-1)


@pytest.mark.parametrize(("model", "layer"), [(Unmasked, "log() #2"), (AllMasked, "log()")])
def test_a_logarithm_of_zeros_that_nothing_takes_up_is_a_fault(tmp_path, model, layer):
    broken = lambda: Problem.supervised(model(), samples(), nn.CrossEntropyLoss(), [])  # noqa: E731
    run(make_job(tmp_path, broken, [{"name": "line", "size": 3, "directions": [{"kind": "random"}]}], num_samples=23))
    found = inspect(tmp_path, "line", at=[0], problem=broken)
    assert (found.first.layer, found.first.rule) == (layer, "tensor_overflow")
    assert [each.layer for each in found.findings if each.layer.startswith("log()")] == [layer]


class InPlace(Halved):
    """The last of its operations overflows, and overwrites what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x)[:, :3] * 1e30).relu_().mul_(1e30)


def test_an_operation_that_overwrites_what_it_was_given_is_a_fault_too(tmp_path):
    broken = lambda: Problem.supervised(InPlace(), samples(), nn.CrossEntropyLoss(), [])  # noqa: E731
    run(make_job(tmp_path, broken, [{"name": "line", "size": 3, "directions": [{"kind": "random"}]}], num_samples=23))
    found = inspect(tmp_path, "line", at=[0], problem=broken)
    assert next(each.layer for each in found.findings if each.rule == "tensor_overflow") == "mul() #2"


class InPlaceMask(Halved):
    """Its mask is made, added and taken up in place."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(6, 6).tril().log_()[None].expand(len(x), 6, 6)
        return self.linear(x)[:, :, None].repeat(1, 1, 6).add_(mask).exp_().sum(-1)[:, :3]


@pytest.mark.parametrize("model", [Halved, Logarithm, InPlaceMask])
def test_masks_of_infinities_are_no_fault(tmp_path, model):
    masked = lambda: Problem.supervised(model(), samples(), nn.CrossEntropyLoss(), [])  # noqa: E731
    run(make_job(tmp_path, masked, [{"name": "line", "size": 3, "directions": [{"kind": "random"}]}], num_samples=23))
    found = inspect(tmp_path, "line", at=[0], problem=masked)
    assert found.findings == ()
    assert {layer.name: layer.statistics.infinite > 0 for layer in found.here.layers}["add()"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": (0.3,)}, "at: must have a number for each of the axes alpha, beta, not 1"),
        ({"at": (0.3, math.nan)}, r"at: must be finite numbers, not \[0.3, nan\]"),
        ({"at": (0.3, True)}, "at: must be finite numbers"),
        (
            {"at": (1e300, 0)},
            r"at: must be within ±3.4e\+38, which float32 can hold, not 1e\+300; choose",
        ),
        ({"rules": ["tensor_overflo"]}, "rules: unknown rule 'tensor_overflo'; did you mean 'tensor_overflow'"),
        ({"rules": {"weights": 3.0}}, "rules.weights: must be left without a threshold"),
        ({"rules": {"relu_zeros": math.inf}}, "rules.relu_zeros: must be a finite number of at least 0, not inf"),
        ({"rules": ["changes"]}, "rules: must name rules of weights, outputs or gradients, not \\['changes'\\]"),
        ({"problem": "gone:problem"}, "problem: module 'gone' does not import"),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_a_line(computed, options, message):
    with pytest.raises(JobError, match=message) as caught:
        inspect(computed, "wide", **{"problem": problem, "at": (0, 0)} | options)
    assert "\n" not in str(caught.value)


def test_a_run_on_a_disk_that_is_mounted_read_only_is_inspected(computed, monkeypatch):
    monkeypatch.setattr("landscape.core.files.LocalFolder.refuse_unwritable", lambda folder: pytest.fail("written"))
    assert inspect(computed, "wide", at=(0, 0), problem=problem).point == (0, 0)


def test_a_landscape_that_is_not_there_is_told(computed):
    with pytest.raises(NotFoundError, match="did you mean 'wide'"):
        inspect(computed, "wid", problem=problem)
