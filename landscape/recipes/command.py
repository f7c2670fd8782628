"""Functions that the commands and callbacks of the recipes share: arguments, environment variables, weights, errors."""

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
    """The problem of a recipe's callback, for the data and the network that the job's run recorded.

    Args:
        make: takes the data, a file of weights or None, and the recorded options for which it has arguments.

    Raises:
        JobError: no data are named.
        NotFoundError: the data are missing.
    """
    recorded = {name: value for name, value in network_options().items() if name in inspect.signature(make).parameters}
    recorded.pop(REMEMBERED, None)  # the place reads it itself
    return make(place.for_callback(), weights_from_environment(), **recorded)


def image_problem(
    build: Callable[[], nn.Module],
    data: Any,
    weights: str | Path | None,
    seed: int,
    metrics: Sequence[str] = ("accuracy",),
) -> Problem:
    """The cross-entropy of a network over images, with the weights of a file, or else the initial weights of `seed`.

    Raises:
        JobError: the weights do not fit the network.
    """
    model = build_seeded(build, seed)
    if weights is not None:
        model.load_state_dict(match_state(model, load_weights(weights), f"weights {quoted(str(weights))}"))
    return Problem.supervised(model.eval(), data, nn.functional.cross_entropy, metrics)


def parser_of(story: str | None, train: Callable[..., Trained]) -> argparse.ArgumentParser:
    """A parser for the options of `train` that a command line can give, with the texts of its docstring as help."""
    parser = argparse.ArgumentParser(description=story, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder for the trajectory; a run that was interrupted goes on")
    types = get_type_hints(train)
    texts = document_arguments(Settings) | document_arguments(RecipeOptions) | document_arguments(train)
    for name in inspect.signature(train).parameters:
        read = _reading(types[name])
        if name != "run" and read is not None:
            parser.add_argument(
                f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=texts.get(name, "").replace("%", "%%"),
                **read,
            )  # fmt: skip
    return parser


def _reading(kind: Any) -> dict[str, Any] | None:
    """The arguments by which argparse reads an option of this type; None if no word can give it."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    names = [name for option_type in kinds if get_origin(option_type) is Literal for name in get_args(option_type)]
    if names:
        return {"choices": names}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    return next(({"type": option_type} for option_type in (int, float, str) if option_type in kinds), None)


def document_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """The text on each argument in the docstring of a function or class, in one line."""
    _, _, arguments = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    texts = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", arguments.partition("\n\n")[0], re.M)
    return {name: " ".join(text.split()) for names, text in texts for name in names.split(", ")}


def main_of(story: str | None, train: Callable[..., Trained]) -> Callable[..., None]:
    """A command that passes its options to `train`, prints each epoch to stderr and the accuracy to stdout."""

    def main(arguments: Sequence[str] | None = None) -> None:
        options = vars(parser_of(story, train).parse_args(arguments))
        try:
            trained = train(**options, report=print_epoch)
        except LandscapeError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        print(f"{trained.accuracy:.4f}")

    return main
