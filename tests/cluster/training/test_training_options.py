"""What is trained, and its options: named right, of the right type, or refused in a line before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cluster.commands.submit import own_options
from cluster.training.options import (
    check_options,
    describe_options,
    named_function,
    option_lines,
    parameters_of,
    read_words,
)
from cluster.training.train import command_of, make_job, may_train_here, train
from landscape.core.errors import JobError
from landscape.recipes.settings import OPTIMIZERS, PRECISIONS, SCHEDULES
from landscape.recipes.table import RECIPES
from landscape.training.thor.formulas import FORMULAS
from landscape.training.thor.inverses import RULES


def function(
    training,
    epochs: int = 3,
    lr: float = 0.1,
    optimizer: Literal["sgd", "adam"] = "sgd",
    nesterov: bool = False,
    limit: int | None = None,
    intervals: list[list[int]] | None = None,
    widths: tuple[int, ...] = (1,),
    name: str = "a",
    guess=7,
):
    """Trains nothing."""


def options(texts=True, of=function, **given):
    return check_options(named_function(of), of, given, ("run", "workers"), texts=texts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ({"epochs": "20"}, 20),
        ({"lr": "1e-3"}, 1e-3),
        ({"lr": "2"}, 2.0),
        ({"optimizer": "adam"}, "adam"),
        ({"nesterov": "true"}, True),
        ({"nesterov": "no"}, False),
        ({"limit": "none"}, None),
        ({"limit": "5"}, 5),
        ({"intervals": "[[1, 2, 3]]"}, [[1, 2, 3]]),
        ({"widths": "[1, 2]"}, (1, 2)),
        ({"widths": "1,2"}, (1, 2)),
        ({"name": "12"}, "12"),
        ({"guess": "8"}, 8),
    ],
)
def test_words_become_values_of_the_type_that_the_signature_names(text, value):
    (found,) = options(**text).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": "3"}, r"epoch: is no option of .*function; did you mean 'epochs'\? known: epochs, lr, "),
        ({"epochs": "three"}, "epochs: must be a whole number, not 'three'"),
        ({"epochs": "2.5"}, r"epochs: must be a whole number, not 2\.5"),
        ({"lr": "fast"}, "lr: must be a number, not 'fast'"),
        ({"optimizer": "sgdm"}, "optimizer: must be one of sgd, adam, not 'sgdm'"),
        ({"nesterov": "perhaps"}, "nesterov: must be true or false, not 'perhaps'"),
        ({"limit": "x"}, "limit: must be a whole number or none, not 'x'"),
        ({"intervals": "[1"}, r"intervals: must be a list of lists of whole numbers or none, not '\[1'"),
        ({"guess": "many"}, "guess: must be a whole number, not 'many'"),
        (
            {"intervals": "[{is not YAML: 1, is not YAML: 2}]"},
            "intervals: key 'is not YAML' stands twice, first in line 1; keep one",
        ),
    ],
)
def test_wrong_options_are_refused_in_a_line(given, message):
    with pytest.raises(JobError, match=message):
        options(**given)


def test_values_from_python_keep_their_type_or_are_refused():
    assert options(texts=False, epochs=np.int64(4), lr=1, widths=[1, 2]) == {"epochs": 4, "lr": 1.0, "widths": (1, 2)}
    for wrong in ({"epochs": "4"}, {"epochs": True}, {"epochs": 1.5}, {"nesterov": 1}):
        with pytest.raises(JobError, match="must be"):
            options(texts=False, **wrong)


def test_a_function_says_what_it_needs():
    def needs(training, data: Path, *, more=None):
        """Trains nothing."""

    def all_of_them(training, **more):
        """Trains nothing."""

    with pytest.raises(JobError, match=r"data: is required by .*needs; give it a value"):
        options(of=needs)
    assert options(of=needs, data="a/b") == {"data": Path("a/b")}
    assert options(of=all_of_them, anything="3") == {"anything": 3}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("lambda: None", "must take a Training as its first argument"),
        ("lambda *, training: None", "must take a Training as its first argument"),
        ("lambda training, workers: None", "has an option workers, which is one of train's own"),
        ("lambda training, x, /: None", "must take x by name; leave out the '/'"),
    ],
)
def test_a_function_that_cannot_be_trained_is_refused(code, message):
    with pytest.raises(JobError, match=message):
        options(of=eval(code))


def test_what_trains_nothing_when_it_is_called_is_refused():
    async def later(training):
        """Is never awaited."""

    def parts(training):
        yield 1

    class Trainer:
        def __init__(self, training):
            """Trains nothing."""

    for code in (later, parts, Trainer):
        with pytest.raises(JobError, match="must train when it is called"):
            options(of=code)


def test_a_run_stays_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = make_job(lambda training: None, "run", {}, texts=False)
    monkeypatch.chdir("/")  # as a function may
    assert job.run_path == str(tmp_path / "run")


def test_the_options_of_a_recipe_have_the_types_that_they_share():
    what = named_function("lenet-digits")
    given = {"warmup_epochs": "0.5", "base_batch": "none", "schedule": "cosine", "intervals": "[[1, 2, 3]]"}
    found = check_options(what, what.load(), given, texts=True)
    assert found == {"warmup_epochs": 0.5, "base_batch": None, "schedule": "cosine", "intervals": [[1, 2, 3]]}
    for name in ("device", "report", "overwrite"):  # which train itself decides
        with pytest.raises(JobError, match=f"{name}: is no option of lenet-digits"):
            check_options(what, what.load(), {name: "x"}, ("overwrite",), texts=True)


def test_the_options_are_listed():
    described = describe_options(named_function(function), function)
    assert described[0] == {"name": "--epochs", "type": "a whole number", "default": "3"}
    lines = option_lines(described)
    assert lines[0] == "--epochs  a whole number; default: 3"
    assert lines[2] == "--optimizer  one of sgd, adam; default: 'sgd'"
    assert lines[5].startswith("--intervals  a list of lists of whole numbers or none; ")


def test_the_options_of_a_recipe_list_the_names_that_its_loop_knows():
    what = named_function("lenet-digits")
    listed = {line.split()[0]: line for line in option_lines(describe_options(what, what.load()))}
    known = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "refresh": RULES, "factors": FORMULAS}
    known["precision"] = PRECISIONS
    for name, values in known.items():
        assert f"one of {', '.join(values)}; " in listed[f"--{name}"]


def test_the_options_of_a_recipe_list_the_default_that_applies_with_each_optimiser():
    def listed(name):
        what = named_function(name)
        return {line.split()[0]: line.split("; ", 1)[1] for line in option_lines(describe_options(what, what.load()))}

    cifar10, photographs = listed("resnet-cifar10"), listed("resnet50-imagefolder")
    rates = "default: 0.1, 0.01 with adagrad, 0.001 with adam, 0.002 with thor"
    assert cifar10["--learning-rate"] == rates
    assert cifar10["--damping"] == "default: 0.001; only with optimizer thor"
    assert cifar10["--balance"] == "default: true; only with optimizer thor"
    assert cifar10["--clip"] == "default: none; only with optimizer thor"
    assert cifar10["--momentum"] == "default: 0.9; only with optimizer momentum or thor"
    assert cifar10["--milestones"] == "default: none; only with schedule steps"
    assert cifar10["--intervals"] == "default: epochs 1 to 25 and the last 15, or all where there are fewer"
    assert photographs["--epochs"] == "default: 40 as published, 90 with sgd or momentum or adagrad or adam"
    assert photographs["--learning-rate"].startswith("default: 0.05672 falling as published, 0.1 with sgd or momentum")
    assert photographs["--frequency"] == "default: a sixth of an epoch; only with optimizer thor"
    words = "default: 'mindspore-gpu', which the published rates are for; only with optimizer thor"
    assert photographs["--factors"] == words
    assert cifar10["--factors"] == "default: 'exact'; only with optimizer thor"
    assert photographs["--published"] == "default: 'gpu-8'; only with optimizer thor"
    assert not any("None" in words for words in (*cifar10.values(), *photographs.values()))


def test_an_option_of_a_recipe_that_does_nothing_is_refused_before_anything_starts():
    what = named_function("lenet-digits")
    with pytest.raises(JobError, match=r"^damping: must go with optimizer thor, not with 'adam'"):
        check_options(what, what.load(), {"optimizer": "adam", "damping": "0.1"}, texts=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--epochs", "3", "--lr=0.1"], {"epochs": "3", "lr": "0.1"}),
        (["--batch-size", "64", "--nesterov"], {"batch_size": "64", "nesterov": "true"}),
        (["--no-nesterov", "--lr", "-1"], {"nesterov": "false", "lr": "-1"}),
        (["--name=a=b"], {"name": "a=b"}),
        (["--weight-decay=1e-3"], {"weight_decay": "1e-3"}),
    ],
)
def test_words_of_a_command_line(words, expected):
    assert read_words(words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [(["20"], "'20' belongs to no option"), (["--lr", "1", "--lr", "2"], "lr: is given twice")],
)
def test_words_that_are_no_options(words, message):
    with pytest.raises(JobError, match=message):
        read_words(words)


def test_the_resources_of_ranks_are_checked_and_stay_in_the_command_that_goes_on():
    asked = {"max_workers": 3, "worker_resources": ["a100=1"]}
    job = make_job("lenet-digits", "r", {}, texts=True, **asked)
    assert job.worker_resources == {"a100": 1.0}
    assert "--max-workers 3 --worker-resources=a100=1" in command_of(job, 2)
    assert not may_train_here(job, None), "only a cluster has them"
    with pytest.raises(JobError, match="worker_resources: must have a share up to 1, or a whole number, of a100"):
        make_job("lenet-digits", "r", {}, texts=True, worker_resources=["a100=1.5"])
    many = make_job("lenet-digits", "r", {}, texts=True, worker_resources=["licence=1234567"])
    assert "--worker-resources=licence=1234567" in command_of(many, 2)
    with pytest.raises(JobError, match="worker_resources: must name each resource once, not 'a a'"):
        make_job("lenet-digits", "r", {}, texts=True, worker_resources=["a=1", "a=2"])
    with pytest.raises(JobError, match="worker_resources: must be amounts by name"):
        train("lenet-digits", run="r", worker_resources=[3])
    with pytest.raises(JobError, match="max_workers: must be at least 1"):
        train("lenet-digits", run="r", max_workers=0)


def test_what_is_trained_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text("def train(training, epochs: int = 1):\n    pass\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = named_function("my_training:train", tmp_path)
    code = found.load()
    assert code.__name__ == "train"
    # A function of a file travels as its name, beside its file.
    assert named_function(code) == found
    assert named_function(function).reference is function or named_function(function).module
    with pytest.raises(JobError, match="recipe: must be a recipe or module:function, not 'lenet'; did you mean 'lenet"):
        named_function("lenet")
    with pytest.raises(JobError, match=f"function: module 'absent' does not import.*in the folder.*{tmp_path}"):
        named_function("absent:train", tmp_path).load()
    with pytest.raises(JobError, match="function: module 'my_training' has no function 'trains'; did you mean 'train'"):
        named_function("my_training:trains", tmp_path).load()
    with pytest.raises(JobError, match=r"not the file 'my/x\.py'; write my\.x:train"):
        named_function("my/x.py:train", tmp_path).load()
    del sys.modules["my_training"]


def test_the_seed_goes_to_a_function_that_has_one():
    def seeded(training, seed: int = 0):
        """Trains nothing."""

    assert make_job(seeded, "r", {}, texts=False, seed=3).options == {"seed": 3}
    assert make_job(function, "r", {}, texts=False, seed=3).options == {}
    with pytest.raises(JobError, match="gpus_per_worker: must be a share from 0 to 1, or a whole number"):
        make_job(function, "r", {}, texts=False, gpus_per_worker=1.5)
    with pytest.raises(JobError, match="workers: must be at least 1, not 0"):
        make_job(function, "r", {}, texts=False, workers=0)
    with pytest.raises(JobError, match="run: must name a folder or URL"):
        make_job(function, " ", {}, texts=False)


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_hides_no_option_of_a_recipe_but_those_that_it_decides(name):
    parameters = parameters_of(named_function(name).load(), name)
    assert parameters.keys() & set(own_options()) == {"overwrite"}


def test_the_words_of_a_recipe_reach_it():
    job = make_job("lenet-mnist", "r", {"scaling": "pad"}, texts=True, own=own_options())
    assert job.options["scaling"] == "pad"
