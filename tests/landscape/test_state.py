"""What user code changes between points must not be seen in the values: they depend on the point alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import Quadratic, quadratic_samples
from torch import nn

from landscape import JobError, Problem
from landscape.arithmetic import Plan
from landscape.evaluation import Evaluator
from landscape.parameters import state_of

CPU = torch.device("cpu")


def evaluator(model, samples, observe, directions=(), **fields) -> Evaluator:
    plan = Plan(**({"batch_size": 4, "threads": 1, "device": "cpu"} | fields))
    found = Evaluator(model, samples, observe, plan, CPU)
    found.load(state_of(model), list(directions))
    return found


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
