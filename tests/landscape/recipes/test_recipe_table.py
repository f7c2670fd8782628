"""Every recipe of the table trains, takes the options that all have, and has a callback for its landscapes."""

import inspect

import pytest

from landscape.core.errors import JobError
from landscape.problem.callback import import_callback
from landscape.recipes.table import RECIPES, recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_its_parts(name):
    parameters = inspect.signature(recipe(name)).parameters
    assert next(iter(parameters)) == "run"
    assert {"epochs", "optimizer", "learning_rate", "batch_size", "seed", "intervals", "checkpoint_steps"} <= set(
        parameters
    )
    assert callable(import_callback(RECIPES[name].problem))
    assert RECIPES[name].about


def test_the_names_of_the_recipes():
    assert set(RECIPES) == {
        "lenet-mnist", "lenet-digits", "gpt-small", "cnn-mnist", "resnet-cifar10", "resnet50-imagefolder",
    }  # fmt: skip
    with pytest.raises(JobError, match=r"recipe: unknown 'resnet50'; .*resnet50-imagefolder"):
        recipe("resnet50")
