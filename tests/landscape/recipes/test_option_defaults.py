"""Defaults by optimiser, and options that do nothing with the one that was chosen."""

import inspect

import pytest

from landscape.core.errors import JobError
from landscape.recipes import cifar10, digits, imagefolder
from landscape.recipes.options import takes_loop_options
from landscape.recipes.settings import OPTIMIZERS, OnlyWith, Settings, known_of_settings
from landscape.recipes.table import RECIPES, recipe


@takes_loop_options(
    batch_size=8, learning_rate=0.5, of_optimizers={"thor": {"learning_rate": 0.1, "frequency": 7}},
    in_words={"epochs": {"thor": "few"}}, only_with={"own": ("thor",)},
)  # fmt: skip
def train(run, epochs=3, *, own=1, **options):
    return options


@pytest.mark.parametrize(
    ("given", "rate", "frequency"),
    [
        ({}, 0.5, 100),
        ({"optimizer": "sgd"}, 0.5, 100),
        ({"optimizer": "adam"}, 0.001, 100),
        ({"optimizer": "thor"}, 0.1, 7),
        ({"optimizer": "thor", "learning_rate": 0.2, "frequency": 3}, 0.2, 3),
    ],
)
def test_an_option_that_is_not_given_has_the_default_of_the_optimiser(given, rate, frequency):
    options = train("run", **given)
    assert (options["learning_rate"], options["frequency"], options["batch_size"]) == (rate, frequency, 8)


def test_the_signature_and_the_table_say_which_default_applies():
    assert inspect.signature(train).parameters["learning_rate"].default == 0.5
    assert inspect.signature(train).parameters["frequency"].default == 7  # which no other optimiser takes
    rates = {"momentum": 0.5, "sgd": 0.5, "adagrad": 0.01, "adam": 0.001, "thor": 0.1}
    assert train.options.defaults_of("learning_rate") == rates
    assert next(iter(train.options.defaults_of("learning_rate"))) == "momentum"
    assert train.options.defaults_of("momentum") == {"momentum": 0.9, "thor": 0.9}
    assert train.options.defaults_of("epochs") == {"thor": "few"}
    assert train.options.defaults_of("own") == {}
    assert train.options.takers_of("own") == OnlyWith("optimizer", ("thor",))
    assert train.options.takers_of("power") == OnlyWith("schedule", ("polynomial",))
    assert train.options.takers_of("learning_rate") is None


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(RECIPES))
def test_no_default_of_a_recipe_is_refused_as_unused(name, optimizer):
    chosen = recipe(name).options.completed({"optimizer": optimizer})
    own = {
        each: chosen[each]
        for each, known in known_of_settings().items()
        if any(isinstance(rule, OnlyWith) and rule.field == "optimizer" for rule in known) and chosen[each] is not None
    }
    Settings(2, 1, 0.1, optimizer=optimizer, **own)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"damping": 0.03}, r"damping: must go with optimizer thor, not with 'momentum', where it does nothing; "
                            "leave it out, or choose optimizer thor"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum: must go with optimizer momentum or thor, not with 'adam'"),
        ({"own": 2}, "own: must go with optimizer thor"),
        ({"milestones": (1,)}, "milestones: must go with schedule steps, not with 'cosine'"),
        ({"power": 1.0, "schedule": lambda epoch: 0.1}, "power: must go with schedule polynomial, not with a function"),
    ],
)  # fmt: skip
def test_an_option_that_does_nothing_is_refused_even_at_its_default(given, message):
    with pytest.raises(JobError, match=f"^{message}"):
        train("run", **given)


def test_an_option_that_is_none_or_taken_is_not_refused():
    assert train("run", clip=None, optimizer="sgd")["clip"] is None
    assert train("run", milestones=(1,), schedule="steps")["milestones"] == (1,)
    assert train("run", optimizer="sdg")["optimizer"] == "sdg"  # of which the settings know the right name


def test_thor_has_settings_of_its_own_on_small_networks_and_published_ones_on_large_ones():
    for each in (digits, cifar10):
        options = each.train.options
        assert options.default_of("damping") != Settings.default_of("damping")
        assert options.default_of("frequency") == 20
    assert cifar10.train.options.defaults_of("learning_rate")["thor"] == 0.002
    assert imagefolder.train.options.defaults_of("epochs")["thor"] == "40 as published"
    assert imagefolder.train.options.defaults_of("learning_rate")["thor"] == "0.05672 falling as published"
    assert imagefolder.train.options.defaults_of("damping") == {"thor": "0.02345 falling as published"}
