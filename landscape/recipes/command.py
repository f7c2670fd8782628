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

from landscape.errors import JobError, LandscapeError, shown
from landscape.parameters import match_state
from landscape.problem.network import network_options
from landscape.recipes.training import Trained, print_epoch
from landscape.trajectory.weight_files import load_weights

WEIGHTS_VARIABLE = "LANDSCAPE_WEIGHTS"


def data_from_environment(variable: str, what: str) -> str:
    """The path in the environment variable `variable`, from which a callback reads it, as it takes no arguments.

    Args:
        what: what the variable names, for the message.

    Raises:
        JobError: the variable is not set.
    """
    path = os.environ.get(variable, "")
    if not path:
        raise JobError(
            f"problem: the environment variable {variable} must name {what} and is not set; export it, "
            "or call make_problem(data=…) in a callback of your own"
        )
    return path


def data_for_training(data: str | Path | None, variable: str, what: str) -> str | Path:
    """`data`, or the path in the environment variable `variable` where it is None.

    Args:
        what: what they name, for the message.

    Raises:
        JobError: neither is given.
    """
    path = os.environ.get(variable) if data is None else data
    if not path:
        raise JobError(f"data: must name {what}; give it, or set the environment variable {variable}")
    return path


def weights_from_environment() -> str | None:
    """The file in LANDSCAPE_WEIGHTS, if set; a job with a trajectory needs none."""
    return os.environ.get(WEIGHTS_VARIABLE) or None


def options_of_run(make: Callable[..., Any]) -> dict[str, Any]:
    """What the job's run recorded of its network, as far as it is an argument of `make`: for a recipe's callback."""
    return {name: value for name, value in network_options().items() if name in inspect.signature(make).parameters}


def initial_or_given(model: nn.Module, weights: str | Path | None) -> nn.Module:
    """`model` in eval mode, with the weights of a file where one is named.

    Raises:
        JobError: the weights do not fit the model.
    """
    if weights is not None:
        model.load_state_dict(match_state(model, load_weights(weights), f"weights {shown(str(weights))}"))
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
