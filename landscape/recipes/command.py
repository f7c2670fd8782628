"""What the commands and callbacks of the recipes share: arguments, environment variables, weights, error messages."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from landscape.core.errors import LandscapeError, quoted
from landscape.model.parameters import match_state
from landscape.model.weight_files import load_weights
from landscape.problem.network import network_options
from landscape.problem.terms import Problem
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.training import Trained, print_epoch

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


def initial_or_given(model: nn.Module, weights: str | Path | None) -> nn.Module:
    """`model` in eval mode, with the weights of a file where one is named.

    Raises:
        JobError: the weights do not fit the model.
    """
    if weights is not None:
        model.load_state_dict(match_state(model, load_weights(weights), f"weights {quoted(str(weights))}"))
    return model.eval()


def parser_of(story: str | None, *, data: str | None = None) -> argparse.ArgumentParser:
    """The options that all recipes have; `data` is the help of --data, for a recipe that reads any."""
    parser = argparse.ArgumentParser(description=story, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder for the trajectory; a run that was interrupted goes on")
    if data:
        parser.add_argument("--data", help=data)
    parser.add_argument("--epochs", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--overwrite", action="store_true", help="begin anew, whatever the run holds")
    return parser


def main_of(
    story: str | None,
    train: Callable[..., Trained],
    *,
    data: str | None = None,
    extend: Callable[[argparse.ArgumentParser], Any] = lambda parser: None,
) -> Callable[..., None]:
    """A command that hands its options to `train`, prints each epoch to stderr and the accuracy to stdout.

    Args:
        story: what the command does, for its help.
        data: the help of --data; None for a recipe without one.
        extend: adds options of this recipe to the parser.
    """

    def main(arguments: Sequence[str] | None = None) -> None:
        parser = parser_of(story, data=data)
        extend(parser)
        options = vars(parser.parse_args(arguments))
        try:
            trained = train(**options, report=print_epoch)
        except LandscapeError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        print(f"{trained.accuracy:.4f}")

    return main
