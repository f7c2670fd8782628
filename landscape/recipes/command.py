"""What the commands and callbacks of the recipes share: arguments, environment variables, weights, error messages."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

from landscape.core.errors import LandscapeError, quoted
from landscape.model.parameters import match_state
from landscape.model.weight_files import load_weights
from landscape.problem.network import network_options
from landscape.problem.terms import Problem
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.options import RecipeOptions
from landscape.recipes.settings import Settings
from landscape.recipes.training import Trained, build_seeded, print_epoch

WEIGHTS_VARIABLE = "LANDSCAPE_WEIGHTS"


def weights_from_environment() -> str | None:
    """The file in LANDSCAPE_WEIGHTS, if set; a job with a trajectory needs none."""
    return os.environ.get(WEIGHTS_VARIABLE) or None


def problem_of_run(make: Callable[..., Problem], place: DataPlace) -> Problem:
    """The problem of a recipe's callback: of the data of the job's run, and of the network that it recorded.

    Args:
        make: takes the data, a file of weights or None, and what was recorded, as far as it has such arguments.

    Raises:
        JobError: no data are named.
        NotFoundError: the data are missing.
    """
    recorded = {name: value for name, value in network_options().items() if name in inspect.signature(make).parameters}
    recorded.pop(REMEMBERED, None)  # the place knows it
    return make(place.for_callback(), weights_from_environment(), **recorded)


def image_problem(
    build: Callable[[], nn.Module],
    data: Any,
    weights: str | Path | None,
    seed: int,
    metrics: Sequence[str] = ("accuracy",),
) -> Problem:
    """The cross-entropy of a network over images, with its initial weights of `seed` unless a file of others is named.

    Raises:
        JobError: the weights do not fit the network.
    """
    model = build_seeded(build, seed)
    if weights is not None:
        model.load_state_dict(match_state(model, load_weights(weights), f"weights {quoted(str(weights))}"))
    return Problem.supervised(model.eval(), data, nn.functional.cross_entropy, metrics)


def parser_of(story: str | None, train: Callable[..., Trained]) -> argparse.ArgumentParser:
    """The options of `train` that a word of a command line can stand for, with the texts of its docstring as help."""
    parser = argparse.ArgumentParser(description=story, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder for the trajectory; a run that was interrupted goes on")
    types = get_type_hints(train)
    texts = {name: text for each in (Settings, RecipeOptions, train) for name, text in document_arguments(each).items()}
    for name in inspect.signature(train).parameters:
        read = _reading(types[name])
        if name != "run" and read is not None:
            parser.add_argument(
                f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=texts.get(name, "").replace("%", "%%"),
                **read,
            )  # fmt: skip
    return parser


def _reading(kind: Any) -> dict[str, Any] | None:
    """How argparse reads an option of this type; None where no word stands for it."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    names = [name for each in kinds if get_origin(each) is Literal for name in get_args(each)]
    if names:
        return {"choices": names}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    return next(({"type": each} for each in (int, float, str) if each in kinds), None)


def document_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function or class says of each of its arguments, in a line."""
    _, _, arguments = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    texts = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", arguments.partition("\n\n")[0], re.M)
    return {name: " ".join(text.split()) for names, text in texts for name in names.split(", ")}


def main_of(story: str | None, train: Callable[..., Trained]) -> Callable[..., None]:
    """A command that hands its options to `train`, prints each epoch to stderr and the accuracy to stdout."""

    def main(arguments: Sequence[str] | None = None) -> None:
        options = vars(parser_of(story, train).parse_args(arguments))
        try:
            trained = train(**options, report=print_epoch)
        except LandscapeError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        print(f"{trained.accuracy:.4f}")

    return main
