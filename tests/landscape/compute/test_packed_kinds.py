"""Every kind of problem, packed: the same values as its source, derivatives, engines, devices, precisions."""

import copy
import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from packed_scene import PLANE, images_and_labels, members_of, new_folder, packed, small_file, small_problem
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from landscape import Job, JobError, Problem, run
from landscape.compute.pack import pack
from landscape.compute.prepare import prepare
from landscape.job.reading import read_job
from landscape.model.packed_model import PortableModel
from landscape.model.parameters import describe_parameters
from landscape.problem.callback import load_problem
from landscape.problem.supervised import Supervised


class Language(nn.Module):
    """A transformer of one block: tied weights, a buffer that is not saved, positions made where the tokens are."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.attention, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.tensor(1.5), persistent=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids):
        count, length = ids.shape
        positions = torch.arange(length, device=ids.device)[None, :, None] * torch.tensor([0.01] * 8)
        hidden = self.tokens(ids) * self.scale + positions
        parts = self.attention(self.norm(hidden)).view(count, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        return self.head(hidden + self.dropout(self.out(mixed.transpose(1, 2).reshape(count, length, 8))))


def language():
    torch.manual_seed(0)
    return Problem.causal_lm(Language(), torch.randint(11, (20, 6)))


def sequences():
    torch.manual_seed(0)
    return Problem.causal_lm(Language(), [torch.randint(11, (3 + k % 5,)) for k in range(24)])


def residual(model, points):
    value = model(points)
    slope = torch.autograd.grad(value.sum(), points, create_graph=True)[0]
    second = torch.autograd.grad(slope[:, 1].sum(), points, create_graph=True)[0][:, 1]
    return (slope[:, 0] + value[:, 0] * slope[:, 1] - 0.01 * second).square()


def physics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    edge = torch.rand(9, 2), lambda model, points: (model(points) - points[:, :1]).square(), 10.0
    return Problem.terms(model, {"inside": (torch.rand(24, 2), residual, 1.0), "edge": edge})


def observe_weighted(model, batch):
    outputs = model(batch["inputs"])
    loss = F.cross_entropy(outputs, batch["labels"], reduction="none")
    return {"loss": loss, "margin": outputs.amax(1) - outputs.amin(1), "weight": batch["weight"]}


def weighted():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3))
    data = {"inputs": torch.randn(24, 4), "labels": torch.randint(3, (24,)), "weight": torch.rand(24) + 0.5}
    return Problem(model, data, observe_weighted, derived={"perplexity": "exp(loss)"})


class Shared(nn.Module):
    """One layer under two names, a parameter that is not trained, and a plain one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.others = nn.ModuleList([self.first, nn.Linear(4, 4)])
        self.scale, self.fixed = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, inputs):
        for layer in (self.first, *self.others):
            inputs = torch.tanh(layer(inputs)) * self.scale + self.fixed
        return inputs


CLASSES = nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0, 0.1]))


def shared():
    torch.manual_seed(0)
    return Problem.supervised(
        Shared(), (torch.randn(24, 4), torch.randint(4, (24,))), nn.CrossEntropyLoss(torch.rand(4))
    )


class Pictures(nn.Module):
    """What `LAYERS` of portable problems has beside the small network: transposed, grouped, padded as the size asks."""

    def __init__(self):
        super().__init__()
        self.down, self.same = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.around = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.norm, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 4, 2, stride=2)

    def forward(self, images):
        hidden = F.gelu(self.norm(self.around(self.same(self.down(images)))))
        return self.up(F.relu(hidden, inplace=True))


def pictures():
    torch.manual_seed(0)
    return Problem.supervised(Pictures(), (images_and_labels(24)[0], torch.randint(4, (24, 4, 4))))


def recurrent():
    torch.manual_seed(0)
    return Problem(nn.GRU(3, 4, batch_first=True), torch.randn(24, 5, 3), observe_recurrent)


def observe_recurrent(model, batch):
    return {"loss": model(batch)[0].square().mean((1, 2))}


KINDS = {each.__name__: each for each in (language, sequences, physics, weighted, shared, pictures, recurrent)}


@cache
def packed_kind(name):
    return packed(KINDS[name], name, num_samples=20)


IN_FULL = ("pictures", "recurrent", "sequences")  # sequences differ from language in their lengths alone


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.faults] * (name in IN_FULL)) for name in KINDS])
def test_the_values_are_those_of_the_source(tmp_path, name):
    made = packed_kind(name)
    assert made.compared.equal
    source = Job(run=str(tmp_path / "source"), problem=KINDS[name], num_samples=20, landscapes=[PLANE], batch_size=8)
    mine = run(source)["plane"]
    theirs = run(read_job(made.path, run=str(tmp_path / "packed"), batch_size=8))["plane"]
    assert list(mine.observables) == list(theirs.observables)
    for observable, values in mine.observables.items():
        assert np.array_equal(values, theirs.observables[observable]), observable


@pytest.mark.parametrize("name", [name for name in KINDS if name != "sequences"])
def test_what_directions_know_of_the_parameters_is_kept(name):
    mine, theirs = KINDS[name]().model, load_problem(str(packed_kind(name).path)).model
    assert describe_parameters(theirs) == describe_parameters(mine)
    assert list(theirs.state_dict()) == list(mine.state_dict())
    assert [each for each, _ in theirs.named_buffers()] == [each for each, _ in mine.named_buffers()]
    assert [each for each, _ in theirs.named_parameters()] == [each for each, _ in mine.named_parameters()]


@pytest.mark.parametrize("name", ["language", "physics"])
def test_it_has_derivatives(name):
    gradients = []
    for problem in (KINDS[name](), load_problem(str(packed_kind(name).path))):
        samples = prepare(
            Job(run="nowhere", problem=lambda problem=problem: problem, num_samples=20, landscapes=[PLANE])
        ).samples
        model = copy.deepcopy(problem.model).eval()
        observed = problem.observe(model, samples.batch(0, 7))
        sum(value.sum() for key, value in observed.items() if value.requires_grad).backward()
        gradients.append({key: each.grad for key, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.allclose(gradients[0][key], gradients[1][key], rtol=1e-5, atol=1e-7) for key in gradients[0])


class Checkpointed(nn.Sequential):
    """One of its layers is computed again in the backward pass."""

    def forward(self, x):
        first, second, last = self
        return last(checkpoint(second, first(x).tanh(), use_reentrant=True).tanh())


def checkpointed():
    torch.manual_seed(0)
    model = Checkpointed(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    return Problem.supervised(model, (torch.randn(20, 6), torch.randint(3, (20,))), nn.CrossEntropyLoss())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_what_is_checkpointed_has_derivatives_too():
    gradients = []
    for problem in (checkpointed(), load_problem(str(packed(checkpointed, "checkpointed", num_samples=20).path))):
        problem.observe(problem.model.eval(), (torch.ones(7, 6), torch.arange(7) % 3))["loss"].sum().backward()
        gradients.append([each.grad for each in problem.model.parameters()])
    assert all(torch.allclose(*pair, rtol=1e-5, atol=1e-7) for pair in zip(*gradients, strict=True))


def test_outputs_and_losses_stay_apart():
    """As products with the Gauss-Newton matrix need them, and the check against guessing."""
    observe = load_problem(str(small_file())).observe
    assert isinstance(observe, Supervised)
    assert observe.classifies


@pytest.mark.parametrize("engine", ["vmap:3", "eager+superposed", "eager+folded", "eager+fused+folded+maxima"])
def test_engines_change_the_packed_model_as_its_source(tmp_path, engine):
    source = Job(run=str(tmp_path / "source"), problem=small_problem, num_samples=24, landscapes=[PLANE], engine=engine)
    mine = run(source)["plane"]
    theirs = run(read_job(small_file(), run=str(tmp_path / "packed"), engine=engine))["plane"]
    assert np.array_equal(mine.loss, theirs.loss)


def test_another_precision(tmp_path):
    precision = "bfloat16"
    made = packed(small_problem, precision, precision=precision)
    assert made.compared.equal
    source = Job(
        run=str(tmp_path / "source"), problem=small_problem, num_samples=24, landscapes=[PLANE], precision=precision
    )
    assert np.array_equal(run(source)["plane"].loss, run(read_job(made.path, run=str(tmp_path / "x")))["plane"].loss)


def test_a_graph_that_names_types_keeps_its_precision(tmp_path):
    with pytest.raises(JobError, match="precision: must be float32, in which the problem was packed and whose types"):
        prepare(read_job(packed_kind("language").path, run=str(tmp_path / "run"), precision="float64"))
    prepare(read_job(small_file(), run=str(tmp_path / "run"), precision="float64"))  # names none


def test_what_it_makes_itself_is_made_where_its_inputs_are():
    problem = load_problem(str(packed_kind("language").path))
    assert isinstance(problem.model, PortableModel)
    ids = torch.zeros(3, 6, dtype=torch.long, device="meta")
    observed = problem.model.to("meta")({"input_ids": ids})
    assert {value.device.type for value in observed.values()} == {"meta"}


@pytest.mark.parametrize("count", [1, 2, 9])
def test_any_number_of_samples_is_taken(count):
    problem = load_problem(str(packed_kind("language").path))
    observed = problem.observe(problem.model, {"input_ids": torch.zeros(count, 6, dtype=torch.long)})
    assert all(value.shape == (count,) for value in observed.values())


def test_layers_of_torch_stay_layers():
    nodes = json.loads(members_of(small_file())["graphs/0.json"])["nodes"]
    assert [name for kind, name, *_ in nodes if kind == "layer"] == ["conv", "norm", "head"]


class Ours(nn.Module):
    def forward(self, inputs):
        return torch.ops.aten.resize_(inputs.clone(), [inputs.shape[0], 4])


def test_an_operation_that_no_graph_may_hold_is_named():
    model, words = Ours(), "model: must be made of operations that a packed graph may hold, not 'aten.resize_.default'"
    model.layer = nn.Linear(4, 2)
    data = torch.randn(24, 4), torch.randint(2, (24,))
    with pytest.raises(JobError) as refused:
        packed(lambda: Problem.supervised(nn.Sequential(model, model.layer), data), "ours")
    assert words in str(refused.value)
    assert "test_packed_kinds.py:" in str(refused.value)
    assert not (new_folder() / "ours.landscape").exists()


def test_samples_that_are_collated_are_refused():
    lists = [(torch.ones(1 + k % 3), k % 2) for k in range(24)]
    loader = torch.utils.data.DataLoader(lists, collate_fn=lambda items: torch.tensor([len(each[0]) for each in items]))

    def observe(model, batch):
        return {"loss": model(batch.float()[:, None])[:, 0]}

    with pytest.raises(JobError, match="data: samples must be tensors of one shape to be packed"):
        packed(lambda: Problem(nn.Linear(1, 1), loader, observe), "collated")


class Encoder(nn.Module):
    """Torch's own encoder, with a mask that it looks at: it takes another kernel where the mask is causal."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.tokens, self.layers = nn.Embedding(11, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, ids):
        return self.head(self.layers(self.tokens(ids), mask=self.mask)[:, -1])


def encoder():
    torch.manual_seed(0)
    return Problem.supervised(Encoder(), (torch.randint(11, (24, 6)), torch.randint(11, (24,))))


@pytest.mark.faults
def test_torchs_own_encoder_has_the_values_of_its_source_but_for_rounding(tmp_path):
    made = packed(encoder, "encoder")
    assert made.compared.difference <= 1e-6
    mine = run(Job(run=str(tmp_path / "source"), problem=encoder, num_samples=24, landscapes=[PLANE]))["plane"]
    theirs = run(read_job(made.path, run=str(tmp_path / "packed")))["plane"]
    np.testing.assert_allclose(theirs.loss, mine.loss, rtol=1e-6)


class OwnNorm(nn.BatchNorm1d):
    """Of a class of its own, so that it is exported as operations."""


class OwnLinear(nn.Linear):
    """Likewise."""


def own_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), OwnNorm(4), nn.ReLU(), OwnLinear(4, 3))
    return Problem.supervised(model, (torch.randn(24, 4), torch.randint(3, (24,))))


@cache
def packed_own_layers():
    return packed(own_layers, "own-layers").path


@pytest.mark.parametrize("mode", ["batch", "recalibrate"])
def test_statistics_that_became_constants_are_refused_another_mode(tmp_path, mode):
    words = f"batch_norm: must be eval, not {mode}, for a packed problem that holds the layer '1' as plain operations"
    with pytest.raises(JobError, match=words):
        prepare(read_job(packed_own_layers(), run=str(tmp_path / "run"), batch_norm=mode))
    with pytest.raises(JobError, match=words):
        packed(own_layers, "other-statistics", batch_norm=mode)
    assert not (new_folder() / "other-statistics.landscape").exists()


def test_activations_of_layers_that_became_operations_are_not_rounded_silently():
    rounded = {**PLANE, "quantise": {"bits": 4, "activations": "calibrated"}}
    with pytest.raises(JobError, match=r"quantise.activations: must be false, for a packed problem .* layer '3'"):
        packed(own_layers, "rounded", landscapes=[rounded])
    assert packed(own_layers, "rounded-weights", landscapes=[{**PLANE, "quantise": {"bits": 4}}]).compared.equal


def test_what_became_operations_is_known_also_when_it_is_packed_again(tmp_path):
    again = pack(read_job(packed_own_layers(), run=str(tmp_path / "run")), tmp_path / "again.landscape")
    model = load_problem(str(again.path)).model
    assert model.inlined == {"norms": ("1",), "rounded": ("3",)}
    assert load_problem(str(small_file())).model.inlined == {"norms": (), "rounded": ()}


@pytest.mark.parametrize("more", [{"convexity": True}, {"layers": True}])
def test_a_landscape_with_more_than_observe_returns_may_stand_first(tmp_path, more):
    line = {"name": "line", "directions": PLANE["directions"][:1], "size": 3, "range": [-1e-5, 1e-5], **more}
    asked = {"num_samples": 24, "landscapes": [line]}
    made = packed(small_problem, f"more-{next(iter(more))}", **asked)
    mine = run(Job(run=str(tmp_path / "source"), problem=small_problem, **asked))["line"]
    theirs = run(read_job(made.path, run=str(tmp_path / "packed")))["line"]
    assert len(mine.observables) > 5
    assert mine.observables.keys() == theirs.observables.keys()
    for name, values in mine.observables.items():
        assert np.array_equal(values, theirs.observables[name], equal_nan=True), name


def test_which_layer_breaks_is_not_packed_where_the_layers_are_others():
    with pytest.raises(JobError, match=r"layers: must be left out of .*'plane' to be packed, .* such as '1\."):
        packed(own_layers, "layers", landscapes=[{**PLANE, "layers": True}])


class Transposed(nn.Module):
    """Every way of torch to transpose a matrix of weights, each an operation of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3, 5))

    def forward(self, inputs):
        hidden = torch.tanh(inputs @ self.first.T)
        hidden = hidden + hidden @ self.first @ self.first.mT + hidden @ self.first @ self.first.mH
        hidden = hidden + hidden @ self.first @ self.first.H + hidden @ self.first @ self.first.adjoint()
        return (self.head @ hidden.T).T + hidden @ self.head.t()


class Spectral(nn.Module):
    """A layer of a neural operator: weights of complex numbers times the low frequencies."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat) / 3)

    def forward(self, inputs):
        frequencies = torch.fft.rfft(self.first(inputs), norm="ortho")
        mixed = torch.cat([frequencies[:, :3] @ self.weight.mH, frequencies[:, 3:]], 1)
        return torch.fft.irfft(mixed, n=inputs.shape[-1], norm="ortho")


@pytest.mark.parametrize(("model", "inputs", "outputs"), [(Transposed, 4, 3), (Spectral, 8, 8)])
def test_models_that_transpose_and_transform_are_packed_with_the_same_bits(model, inputs, outputs):
    torch.manual_seed(0)
    data = torch.randn(24, inputs), torch.randn(24, outputs)
    made = packed(lambda: Problem.supervised(model(), data, nn.MSELoss()), f"{model.__name__}-packed")
    assert made.compared.equal


def scattered(outputs, targets):
    """The losses of some samples, the others 0."""
    kept, losses = targets != 2, F.cross_entropy(outputs, targets, reduction="none")
    return torch.zeros_like(losses).index_put((kept,), losses[kept] * 2)


def put(outputs, targets):
    losses = outputs.square().sum(1)
    losses[outputs[:, 0] > 0] = 0.5
    return losses


def added(outputs, targets):
    (places,) = torch.where(targets != 2)
    return torch.zeros(outputs.shape[0]).index_add(0, places, outputs[places].square().sum(1))


def masked_mean(outputs, targets):
    kept = targets != 2
    return F.cross_entropy(outputs[kept], targets[kept]).expand(outputs.shape[0])


PICKS = {
    "scattered": scattered, "put": put, "added": added, "masked_mean": masked_mean,
    "select": lambda outputs, targets: targets * torch.masked_select(outputs, outputs > 0.1).square().sum(),
    "nonzero": lambda outputs, targets: outputs[torch.nonzero(outputs > 0, as_tuple=True)].sum() * outputs[:, 0],
    "argwhere": lambda outputs, targets: torch.argwhere(outputs > 0).sum() * outputs[:, 0].square(),
    "rows": lambda outputs, targets: outputs[outputs > -99].view(-1, 3).square().sum(1),
    "columns": lambda outputs, targets: outputs[targets != 2, 1].square().mean() * outputs[:, 0].square(),
}  # fmt: skip


def picking(losses):
    torch.manual_seed(0)
    data = torch.randn(70, 4), torch.randint(3, (70,))
    return Problem(nn.Linear(4, 3), data, lambda model, batch: {"loss": losses(model(batch[0]), batch[1])})


@pytest.mark.parametrize("losses", PICKS.values(), ids=list(PICKS))
def test_what_picks_by_a_mask_is_packed_with_the_same_bits(losses):
    made = packed(lambda: picking(losses), "picks", num_samples=70)
    assert made.compared.equal


@pytest.mark.parametrize("engine", ["auto", pytest.param("eager", marks=pytest.mark.faults), "vmap:3"])
def test_what_picks_by_a_mask_of_the_labels_is_computed_by_all_engines(tmp_path, engine):
    """Under `vmap` torch takes masks that are the same for all points."""
    source = Job(run=str(tmp_path / "source"), problem=lambda: picking(scattered), landscapes=[PLANE], engine=engine)
    file = pack(source, tmp_path / "picks.landscape").path
    theirs = run(read_job(file, run=str(tmp_path / "packed"), engine=engine))["plane"]
    assert np.array_equal(run(source)["plane"].loss, theirs.loss)


NAMED = {
    "multi_dot": (lambda x, t: torch.linalg.multi_dot([x, x.T, x]).sum(1), "becomes a constant by 'linalg_multi_dot'"),
    "take": (lambda x, t: torch.take_along_dim(x, t[:, None], 1)[:, 0], "becomes a constant by 'take_along_dim'"),
    "length": (lambda x, t: x.sum(1) / len(x), "becomes a constant by len() of a tensor"),
    "cov": (lambda x, t: x.sum(1) * torch.cov(x.T).sum(), "operations that torch exports, not 'aten.equal.default'"),
    "ctc": (
        lambda x, t: F.ctc_loss(x.expand(7, *x.shape), t[:, None], t * 0 + 7, t * 0 + 1, reduction="none"),
        "operations that torch exports, not 'aten._ctc_loss.Tensor'",
    ),
    "out": (lambda x, t: torch.add(x, 1, out=torch.empty_like(x)).sum(1), "not 'aten.add.out'"),
    "unique": (lambda x, t: x.sum(1) * torch.unique(t).sum(), "not 'aten._unique2.default'"),
    "histogram": (lambda x, t: x.sum(1) * torch.histc(x).sum(), "not 'aten.histc.default'"),
}  # fmt: skip


@pytest.mark.parametrize(("losses", "words"), NAMED.values(), ids=list(NAMED))
def test_what_no_packed_graph_may_hold_is_named_with_its_line_and_no_temporary_file(losses, words):
    with pytest.raises(JobError) as refused:
        packed(lambda: picking(losses), "unpacked")
    text = str(refused.value)
    assert words in text
    assert re.search(rf"\(\S*test_packed_kinds\.py:{losses.__code__.co_firstlineno}\)", text), text
    assert ".landscape'" not in text
    assert "copy the file again" not in text


def test_what_the_reader_refuses_is_said_of_the_model_and_not_of_a_temporary_file(monkeypatch):
    monkeypatch.setattr("landscape.model.packed_operations.ALLOWED", frozenset())
    with pytest.raises(JobError, match=r"^model: cannot be packed: its model holds the operation '[a-z_0-9.]+', which"):
        packed(small_problem, "unread")
