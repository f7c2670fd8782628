"""The choice of samples, the structures of data, supervised problems, and callbacks that go wrong."""

from __future__ import annotations

import functools
import random
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from chosen import chosen_rows
from hypothesis import given
from hypothesis import strategies as st
from small_models import make_job
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from landscape import JobError, Problem, run
from landscape.compute.prepare import prepare
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.job.job import Job
from landscape.problem.batches import batch_edges, batch_length, map_tensors, samples_digest, tensors_of
from landscape.problem.callback import import_callback, load_problem
from landscape.problem.supervised import check_observed

INPUTS, TARGETS = torch.arange(60.0).reshape(20, 3), torch.arange(20)


class Rows(Dataset):
    """The same samples as a map-style data set; counts what is read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        self.read.append(index)
        return INPUTS[index], int(TARGETS[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows())


# -- which samples -------------------------------------------------------------------------------------------


def test_the_choice_is_that_of_the_seed_alone():
    first = chosen_rows((INPUTS, TARGETS), 8, 3)
    torch.manual_seed(5)
    torch.rand(9)
    again = chosen_rows((INPUTS, TARGETS), 8, 3)
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], chosen_rows((INPUTS, TARGETS), 8, 4)[1])
    assert len(set(first[1].tolist())) == 8
    assert first[1].tolist() == sorted(first[1].tolist())
    assert torch.equal(first[0], INPUTS[first[1]])


SOURCES = {
    "tensors": lambda: (INPUTS, TARGETS),
    "list": lambda: [INPUTS, TARGETS],
    "numpy": lambda: (INPUTS.numpy(), TARGETS.numpy()),
    "tensor data set": lambda: TensorDataset(INPUTS, TARGETS),
    "data set": Rows,
    "loader": lambda: DataLoader(Rows(), batch_size=6),
    "shuffling loader": lambda: DataLoader(Rows(), batch_size=7, shuffle=True, drop_last=True),
    "list of pairs of a loader": lambda: DataLoader([(x, int(y)) for x, y in zip(INPUTS, TARGETS, strict=True)]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_samples_come_from_every_kind_of_source_with_a_known_length(source):
    found = chosen_rows(SOURCES[source](), 8, 3)
    expected = chosen_rows((INPUTS, TARGETS), 8, 3)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_only_the_chosen_samples_of_a_data_set_are_read():
    rows = Rows()
    found = chosen_rows(rows, 5, 0)
    assert sorted(rows.read) == found[1].tolist()


def batches(size: int):
    return ((INPUTS[i : i + size], TARGETS[i : i + size]) for i in range(0, 20, size))


@given(size=st.integers(1, 25))
def test_the_choice_from_batches_does_not_depend_on_their_size(size):
    found = chosen_rows(batches(size), 8, 3)
    expected = chosen_rows(batches(20), 8, 3)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0], INPUTS[found[1]])
    assert found[1].tolist() == sorted(set(found[1].tolist()))


@pytest.mark.long
def test_the_choice_from_batches_is_uniform():
    counts = np.zeros(20)
    for seed in range(200):
        counts[chosen_rows(batches(6), 5, seed)[1].numpy()] += 1
    expected = 200 * 5 / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-squared of 19 degrees, 0.1 %


def test_streams_come_through_a_loader_or_are_refused_in_words():
    found = chosen_rows(DataLoader(Stream(), batch_size=6), 20, 3)
    assert torch.equal(found[0], INPUTS)
    with pytest.raises(JobError, match=r"data: .*DataLoader"):
        chosen_rows(Stream(), 8, 3)


def test_a_loader_that_does_not_batch_hands_over_its_batches():
    class Batches(Dataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index):
            return INPUTS[4 * index : 4 * index + 4], TARGETS[4 * index : 4 * index + 4]

    found = chosen_rows(DataLoader(Batches(), batch_size=None), 8, 3)
    assert torch.equal(found[0], INPUTS[found[1]])
    assert len(found[1]) == 8


def test_a_loader_over_a_subset_stays_in_it():
    sampler = SubsetRandomSampler([3, 15, 4, 9])
    assert chosen_rows(DataLoader(Rows(), sampler=sampler), 3, 0, at_most=True)[1].tolist() in (
        [3, 4, 9], [3, 4, 15], [3, 9, 15], [4, 9, 15],
    )  # fmt: skip
    with pytest.raises(JobError, match="at most the 4 samples"):
        chosen_rows(DataLoader(Rows(), sampler=sampler), 5, 0)


def test_batches_are_joined_by_key_not_by_order():
    data = iter([{"x": TARGETS[:9], "y": -TARGETS[:9]}, {"y": -TARGETS[9:], "x": TARGETS[9:]}])
    found = chosen_rows(data, 20, 0)
    assert torch.equal(found["x"], TARGETS)
    assert torch.equal(found["y"], -TARGETS)


def test_a_list_of_numpy_batches_is_an_iterable_of_batches():
    data = [(INPUTS[i : i + 6].numpy(), TARGETS[i : i + 6].numpy()) for i in range(0, 20, 6)]
    found = chosen_rows(data, 8, 3)
    assert torch.equal(found[1], chosen_rows(batches(6), 8, 3)[1])


@pytest.mark.parametrize("source", [lambda: (INPUTS, TARGETS), Rows, lambda: batches(6)])
def test_too_few_samples_are_refused_unless_fewer_will_do(source):
    with pytest.raises(JobError, match=r"num_samples: must be at most the 20 samples that the data has, not 21"):
        chosen_rows(source(), 21, 0)
    found = chosen_rows(source(), 2048, 0, at_most=True)
    assert torch.equal(found[1], TARGETS)
    assert torch.equal(chosen_rows(source(), 20, 0)[1], TARGETS)


@pytest.mark.parametrize("data", [(INPUTS[:0], TARGETS[:0]), [], iter(())])
def test_no_samples_are_refused(data):
    with pytest.raises(JobError, match="data: holds no samples"):
        chosen_rows(data, 3, 0, at_most=True)


def test_the_default_number_of_samples_is_what_there_is_at_most_2048(tmp_path):
    problem = Problem(nn.Linear(3, 1), INPUTS, lambda model, batch: {"loss": model(batch)[:, 0]})
    spec = {"name": "a", "size": 3}
    assert run(make_job(tmp_path / "few", lambda: problem, [spec]))["a"].attributes["num_samples"] == 20
    many = Problem(problem.model, torch.randn(2100, 3), problem.observe)
    assert run(make_job(tmp_path / "many", lambda: many, [spec]))["a"].attributes["num_samples"] == 2048
    with pytest.raises(JobError, match="num_samples: must be at most the 20"):
        run(make_job(tmp_path / "asked", lambda: problem, [spec], num_samples=2048))
    assert not (tmp_path / "asked").exists()


# -- structures ----------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_structures_are_kept():
    data = {"a": INPUTS, "rest": Pair(TARGETS, [TARGETS + 1])}
    found = chosen_rows(data, 4, 0)
    assert set(found) == {"a", "rest"}
    assert isinstance(found["rest"], Pair)
    assert isinstance(found["rest"].y, list)
    assert torch.equal(found["rest"].y[0], found["rest"].x + 1)
    assert batch_length(found) == 4
    assert [tensor.shape[0] for tensor in tensors_of(found)] == [4, 4, 4]
    doubled = map_tensors(lambda tensor: 2 * tensor, found)
    assert torch.equal(doubled["a"], 2 * found["a"])


def test_a_data_set_of_named_tuples_and_dicts_keeps_them():
    found = chosen_rows(DataLoader([Pair(x, y) for x, y in zip(INPUTS, TARGETS, strict=True)]), 4, 0)
    assert isinstance(found, Pair)
    found = chosen_rows(DataLoader([{"x": x} for x in INPUTS]), 4, 0)
    assert found["x"].shape == (4, 3)


def test_a_problem_that_names_other_observables_than_it_returns_is_refused(tmp_path):
    problem = Problem(
        nn.Linear(3, 1), INPUTS, lambda model, batch: {"loss": model(batch)[:, 0]}, observables=["loss", "accuracy"]
    )
    job = Job(run=str(tmp_path / "run"), problem=lambda: problem, num_samples=4)
    with pytest.raises(JobError, match="the problem names loss, accuracy, observe returns loss; mend one"):
        prepare(job)


@pytest.mark.parametrize("returned", [{"loss": torch.ones(1)}, {"accuracy": torch.ones(2)}])
def test_what_is_wrong_on_any_device_is_refused_on_a_driver_without_a_gpu(tmp_path, returned):
    problem = Problem(nn.Linear(3, 1), INPUTS, lambda model, batch: returned, observables=["loss"])
    job = Job(run=str(tmp_path / "run"), problem=lambda: problem, num_samples=4, device="cuda")
    with pytest.raises(JobError, match="observe: "):
        prepare(job)


def test_supervised_names_its_observables():
    problem = Problem.supervised(nn.Linear(3, 4), (INPUTS, TARGETS), metrics=["top5", "accuracy"])
    assert problem.observables == ("loss", "top5", "accuracy")


BAD_DATA = {
    "lengths": ((INPUTS, TARGETS[:5]), ["first dimension", "(20, 3)", "(5,)"]),
    "scalar": ((INPUTS, torch.tensor(1)), ["first dimension", "()"]),
    "strings": ({"x": INPUTS, "y": ["a"] * 20}, ["tensors", "str"]),
    "number": (5, ["data: must be", "int"]),
    "nothing": (None, ["data: must be", "NoneType"]),
    "ragged batches": (iter([INPUTS[:3], torch.ones(3, 5)]), ["shapes", "read again"]),
    "batches of other structure": (iter([INPUTS[:3], (INPUTS[:3], TARGETS[:3])]), ["data:", "structure"]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_data_of_no_known_kind_is_refused_in_words(case):
    data, words = BAD_DATA[case]
    with pytest.raises(JobError) as caught:
        chosen_rows(data, 3, 0)
    for word in ["data: ", *words]:
        assert word in str(caught.value)


@given(count=st.integers(1, 200), size=st.integers(1, 64))
def test_batches_hold_every_sample_once_and_differ_by_one_at_most(count, size):
    samples = torch.arange(count)
    found = [samples[start:stop] for start, stop in batch_edges(count, size)]
    assert torch.cat(found).tolist() == list(range(count))
    lengths = {len(each) for each in found}
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1


def test_the_samples_digest_tells_values_shapes_and_types():
    variants = [INPUTS, INPUTS + 1e-6, INPUTS.reshape(20, 3, 1), INPUTS.double(), (INPUTS, TARGETS)]
    assert len({samples_digest(each) for each in variants}) == len(variants)


# -- supervised ----------------------------------------------------------------------------------------------


def observed(problem: Problem) -> dict[str, float]:
    made = Evaluator(problem.model, problem.data, problem.observe, Plan(4, 1, "cpu"), torch.device("cpu"), {}, ())
    return {name: float(values[0]) for name, values in made.evaluate(np.zeros((1, 0))).mean.items()}


X, Y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3


@pytest.mark.parametrize(
    "criterion",
    [nn.functional.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(reduction="sum")],
)
def test_classification_is_cross_entropy_and_accuracy(criterion):
    model = nn.Linear(4, 3)
    found = observed(Problem.supervised(model, (X, Y), criterion))
    with torch.no_grad():
        outputs = model(X)
        smoothing = getattr(criterion, "label_smoothing", 0.0)
        expected = nn.functional.cross_entropy(outputs, Y, label_smoothing=smoothing)
    assert found == pytest.approx(
        {"loss": float(expected), "accuracy": float((outputs.argmax(1) == Y).double().mean())}, rel=1e-6
    )
    if isinstance(criterion, nn.Module):
        assert criterion.reduction in ("mean", "sum"), "the caller's criterion stays as it was"


def test_regression_averages_over_outputs_and_has_no_accuracy():
    model, targets = nn.Linear(4, 3), torch.randn(10, 3)
    for criterion in (
        nn.MSELoss(),
        nn.functional.mse_loss,
        lambda o, t: (o - t) ** 2,
        lambda o, t: ((o - t) ** 2).mean(1),
    ):
        found = observed(Problem.supervised(model, (X, targets), criterion))
        with torch.no_grad():
            expected = float(((model(X) - targets) ** 2).mean())
        assert found == pytest.approx({"loss": expected}, rel=1e-6)


@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.functional.l1_loss, functools.partial(nn.functional.huber_loss, delta=0.5)]
)
@pytest.mark.parametrize(
    ("outputs", "shape", "message"),
    [
        (1, (10,), r"outputs \(N, 1\), not \(N,\); unsqueeze them"),
        (1, (10, 1, 1), r"outputs \(N, 1\), not \(N, 1, 1\); squeeze them"),
        (3, (10,), r"outputs \(N, 3\), not \(N,\); give one target for each output"),
    ],
)
def test_targets_that_would_be_broadcast_are_refused(criterion, outputs, shape, message):
    problem = Problem.supervised(nn.Linear(4, outputs), (X, torch.zeros(shape)), criterion)
    with pytest.raises(JobError, match=rf"^data: targets must have the shape of the {message}$"):
        observed(problem)


def test_a_loss_of_ones_own_may_take_targets_of_any_shape():
    class Squeezed(nn.MSELoss):
        def forward(self, outputs, targets):
            return super().forward(outputs.squeeze(1), targets)

    model, targets = nn.Linear(4, 1), torch.randn(10)
    with torch.no_grad():
        expected = float((model(X).squeeze(1) - targets).square().mean())
    for criterion in (Squeezed(), lambda o, t: (o.squeeze(1) - t) ** 2):
        assert observed(Problem.supervised(model, (X, targets), criterion))["loss"] == pytest.approx(expected)


def test_a_criterion_that_is_no_function_is_refused():
    with pytest.raises(JobError, match=r"criterion: must be a loss module, such as .* not 7"):
        Problem.supervised(nn.Linear(2, 2), (torch.zeros(3, 2), torch.zeros(3)), criterion=7)


def test_a_criterion_that_averages_over_samples_is_refused():
    def averaged(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(JobError, match=r"criterion: averaged must return one value per sample, .* not one number"):
        observed(Problem.supervised(nn.Linear(4, 3), (X, Y), averaged))
    with pytest.raises(JobError, match=r"metrics: averaged must return one value per sample"):
        observed(Problem.supervised(nn.Linear(4, 3), (X, Y), metrics={"entropy": averaged}))


def test_metrics_by_name_and_by_function():
    model = nn.Linear(4, 12)
    found = observed(Problem.supervised(model, (X, Y), metrics=("accuracy", "error", "top5")))
    with torch.no_grad():
        order = model(X).argsort(1, descending=True).tolist()
    hits = [int(y) in row[:1] for row, y in zip(order, Y, strict=True)]
    five = [int(y) in row[:5] for row, y in zip(order, Y, strict=True)]
    assert found["accuracy"] == pytest.approx(np.mean(hits))
    assert found["error"] == pytest.approx(1 - np.mean(hits))
    assert found["top5"] == pytest.approx(np.mean(five))
    found = observed(
        Problem.supervised(model, (X, Y), metrics={"size": lambda o, t: o.abs().sum(1), "whole": lambda o, t: t})
    )
    assert found["whole"] == pytest.approx(Y.double().mean())
    assert set(found) == {"loss", "size", "whole"}
    with pytest.raises(JobError, match=r"unknown metric 'acuracy'; did you mean 'accuracy'"):
        Problem.supervised(model, (X, Y), metrics=("acuracy",))


def test_pixelwise_classification_averages_over_pixels():
    model, images, labels = nn.Conv2d(1, 3, 1), torch.randn(6, 1, 4, 4), torch.randint(0, 3, (6, 4, 4))
    found = observed(Problem.supervised(model, (images, labels)))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(images), labels)
        hits = (model(images).argmax(1) == labels).double().mean()
    assert found == pytest.approx({"loss": float(expected), "accuracy": float(hits)}, rel=1e-6)


def test_supervised_needs_pairs():
    with pytest.raises(JobError, match=r"data: Problem.supervised needs batches \(inputs, targets\), not dict"):
        observed(Problem.supervised(nn.Linear(4, 3), {"x": X, "y": Y}))


# -- the callback --------------------------------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder for modules beside a job file; names and paths are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


GOOD = """
from torch import nn
from landscape import Problem
def problem():
    return Problem(nn.Linear(1, 1), None, print)
"""


def test_a_callback_beside_the_job_file_needs_no_installation(beside):
    (beside / "mine_ok.py").write_text(GOOD)
    assert isinstance(load_problem("mine_ok:problem", beside), Problem)
    assert isinstance(load_problem(lambda: Problem(nn.Linear(1, 1), None, print)), Problem)
    assert callable(import_callback("mine_ok:problem", beside))


BAD_CALLBACKS = {
    "no module": ("", "absent_module:problem", ["'absent_module'", "does not import", "sys.path"]),
    "syntax": ("def problem(:", "mine_syntax:problem", ["does not import", "SyntaxError"]),
    "import raises": ("1 / 0", "mine_import:problem", ["does not import", "ZeroDivisionError"]),
    "no function": (GOOD, "mine_typo:problm", ["no function 'problm'", "did you mean 'problem'"]),
    "no function of that name": (GOOD, "mine_names:xyz", ["no function 'xyz'; known: problem"]),
    "not callable": ("problem = 3", "mine_value:problem", ["no function 'problem'"]),
    "raises": ("def problem():\n    raise KeyError('x')", "mine_raise:problem", ["mine_raise:problem raised KeyError"]),
    "multi-line": ("def problem():\n    raise ValueError('a\\nb\\nc')", "mine_lines:problem", ["ValueError: a b c"]),
    "nothing": ("def problem():\n    pass", "mine_none:problem", ["must return a landscape.Problem, not NoneType"]),
    "a model": ("import torch\ndef problem():\n    return torch.nn.Linear(1, 1)", "mine_model:problem", ["not Linear"]),
    "arguments": ("def problem(x):\n    pass", "mine_args:problem", ["raised TypeError", "called alone"]),
    "no model": (
        GOOD.replace("nn.Linear(1, 1)", "3"),
        "mine_three:problem",
        ["model must be a torch.nn.Module, not int"],
    ),
    "no observe": (GOOD.replace("print", "None"), "mine_obs:problem", ["observe must be callable, not NoneType"]),
}


@pytest.mark.parametrize("case", BAD_CALLBACKS)
def test_a_callback_that_goes_wrong_is_told_in_words_before_anything_is_written(beside, case, monkeypatch):
    source, reference, words = BAD_CALLBACKS[case]
    if source:
        (beside / f"{reference.split(':')[0]}.py").write_text(source)
    monkeypatch.chdir(beside)  # the folder of a job that is made, not read
    job = make_job(beside / "run", reference, [{"name": "a"}])
    with pytest.raises(JobError) as caught:
        run(job)
    message = str(caught.value)
    assert message.startswith("problem: ")
    assert message.count("\n") <= 1
    for word in words:
        assert word in message
    assert not (beside / "run").exists()


def drawing_problem() -> Problem:
    """Weights of torch's, numpy's and Python's unseeded draws."""
    model = nn.Linear(3, 1)
    model.bias.data.fill_(random.random() + np.random.rand())  # noqa: NPY002
    return Problem(model, INPUTS, lambda model, batch: {"loss": model(batch)[:, 0]})


def test_a_callback_draws_the_same_weights_in_every_process_and_leaves_the_process_as_it_was():
    found = []
    for seed in (1, 2):  # two processes, in different states
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)  # noqa: NPY002
        states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
        found.append(load_problem(drawing_problem).model)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
        assert random.getstate() == states[2]
    assert torch.equal(found[0].weight, found[1].weight)
    assert torch.equal(found[0].bias, found[1].bias)


DRAWN_AT_IMPORT = """
from torch import nn
from landscape import Problem
model = nn.Linear(3, 1)
def problem():
    return Problem(model, None, print)
"""


def test_a_module_that_draws_while_it_is_imported_draws_the_same_weights(beside):
    (beside / "mine_drawn.py").write_text(DRAWN_AT_IMPORT)
    found = []
    for seed in (1, 2):
        sys.modules.pop("mine_drawn", None)
        torch.manual_seed(seed)
        found.append(load_problem("mine_drawn:problem", beside).model.weight)
    assert found[0] is not found[1]
    assert torch.equal(*found)


@pytest.mark.long
def test_a_callable_object_serves_as_well(tmp_path):
    def make(width: int) -> Problem:
        return Problem(nn.Linear(width, 1), INPUTS, lambda model, batch: {"loss": model(batch)[:, 0] ** 2})

    class Maker:
        def __call__(self) -> Problem:
            return make(3)

    for k, callback in enumerate((functools.partial(make, 3), Maker(), lambda: make(3))):
        found = run(make_job(tmp_path / str(k), callback, [{"name": "a", "size": 3}]))["a"]
        assert (found.status == 1).all()
        assert isinstance(found.attributes["job"]["problem"], str)


@pytest.mark.parametrize("model", [nn.Linear(2, 2).to("meta"), nn.LazyLinear(2)])
def test_a_model_without_numbers_is_refused(model):
    with pytest.raises(JobError, match=r"model: 'weight' holds no numbers .* load its weights"):
        load_problem(lambda: Problem.supervised(model, (torch.zeros(3, 2), torch.zeros(3))))


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((4, 4), r"\[N, 1\] and \[N\] do"),
        ((4, 3), r"flatten\(1\)"),
        ((12,), r"view\(4, -1\)"),
        ((), "reduction='none'"),
    ],
)
def test_a_loss_of_another_shape_is_refused_with_the_remedy_for_it(shape, remedy):
    with pytest.raises(JobError, match=remedy):
        check_observed({"loss": torch.ones(shape)}, 4)


# -- terms and lengths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights, text",
    [
        ({}, "must be a dict of at least one term"),
        ({"interior": -1.0}, "the weight of 'interior' must be a positive finite number, not -1.0"),
        ({"interior": 0}, "positive finite number, not 0"),
        ({"interior": float("nan")}, "positive finite number, not nan"),
        ({"interior": True}, "positive finite number, not True"),
        ({"loss": 1.0}, "'loss' is what"),
        ({"status": 1.0}, "cannot name an observable"),
    ],
)
def test_weights_of_terms_are_positive_numbers_by_usable_names(weights, text):
    with pytest.raises(JobError, match=text):
        Problem(nn.Linear(1, 1), torch.zeros(4, 1), lambda model, batch: {}, term_weights=weights)


def test_a_length_is_a_function():
    with pytest.raises(JobError, match="length: must be a function"):
        Problem(nn.Linear(1, 1), torch.zeros(4, 1), lambda model, batch: {}, length=4)
