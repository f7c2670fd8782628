"""The problem of a model in memory: its data, and a loss by name, as a criterion, or as a function (model, batch)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from landscape.compute.callback_place import MEMORY
from landscape.core.errors import JobError, nearest, quoted
from landscape.evaluation.model_state import private_copy
from landscape.problem.callback import load_problem, refuse_without_numbers
from landscape.problem.sources import numpy_to_tensors
from landscape.problem.terms import Problem

Model = nn.Module | Problem | Callable[[], Problem] | str
CAUSAL_LM = "causal_lm"


class LossOfBatch:
    """The `observe` of a user's function (model, batch) -> loss of each sample, or {"loss": …, …}."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        values = self._function(model, batch)
        return values if isinstance(values, Mapping) else {"loss": values}


def problem_of(model: Model, data: Any, loss: Any = "cross_entropy", metrics: Any = None) -> Problem:
    """The problem of a model in memory; the model is copied, so that it may be trained on.

    Args:
        model: the network; or a whole `Problem`, a callback that returns one, or its name, without data and loss.
        data: as for `Problem`; arrays of numpy serve too.
        loss: the name of a loss of torch.nn.functional such as "cross_entropy" or "mse", or "causal_lm"; a criterion,
            that is a module or function (outputs, targets) with a `reduction`; or any function (model, batch) that
            returns the loss of each sample [n], or a dict of observables with `loss` among them.
        metrics: as for `Problem.supervised`; beside a loss by name or a criterion only.

    Raises:
        JobError: data is missing, the loss is none of these, or an argument does not go with the others.
    """
    if not isinstance(model, nn.Module):
        other_loss = None if isinstance(loss, str) and loss == "cross_entropy" else loss
        return _problem_given(model, {"data": data, "loss": other_loss, "metrics": metrics})
    if data is None:
        raise JobError(
            "data: must be given with a model: tensors (inputs, targets), a data set, or a DataLoader; not None"
        )
    refuse_without_numbers(model, "model")
    copied, data = private_copy(model)[0], _as_tensors(data)
    if isinstance(loss, str) and loss == CAUSAL_LM:
        if metrics is not None:
            raise JobError(f"metrics: do not go with {CAUSAL_LM!r}, which has its own; leave them out")
        return Problem.causal_lm(copied, data)
    if isinstance(loss, type):
        raise JobError(f"loss: must be a criterion, not the class of one; write {loss.__name__}()")
    if isinstance(loss, str):
        return Problem.supervised(copied, data, _loss_named(loss), metrics)
    if isinstance(loss, nn.Module) or "reduction" in _parameters(loss):
        return Problem.supervised(copied, data, loss, metrics)
    if not callable(loss):
        raise JobError(
            f"loss: must be a name such as 'cross_entropy', a criterion, or a function (model, batch) -> loss of each "
            f"sample, not {quoted(loss)}"
        )
    if metrics is not None:
        raise JobError(
            "metrics: goes with a criterion (outputs, targets), and loss is a function (model, batch); let it return "
            '{"loss": …, "accuracy": …} instead'
        )
    return Problem(copied, data, LossOfBatch(loss))


def _problem_given(model: Any, beside: Mapping[str, Any]) -> Problem:
    """The problem that stands in place of a model; `beside` are the arguments that go with a model alone."""
    if isinstance(model, type) or (not isinstance(model, (Problem, str)) and not callable(model)):
        remedy = f"write {model.__name__}()" if isinstance(model, type) else "give the module itself"
        raise JobError(f"model: must be a torch.nn.Module, or a Problem or its callback, not {quoted(model)}; {remedy}")
    if given := next((name for name, value in beside.items() if value is not None), None):
        raise JobError(
            f"{given}: goes with a torch.nn.Module alone, and model is {quoted(model)}, which brings its own; leave "
            "it out"
        )
    problem = model if isinstance(model, Problem) else load_problem(model, Path.cwd())
    refuse_without_numbers(problem.model, "model", in_file=problem.weights is not None)
    return replace(problem, model=private_copy(problem.model)[0])


def _as_tensors(data: Any) -> Any:
    """An array of numpy, or a tuple or list with arrays, as tensors; anything else as it is."""
    parts = data if isinstance(data, (tuple, list)) else [data]
    return numpy_to_tensors(data) if any(isinstance(part, np.ndarray) for part in parts) else data


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function in C, or no function at all
        return {}


def _loss_named(name: str) -> Callable[..., Tensor]:
    """The function of torch.nn.functional with this name, also without its `_loss`: "mse" for `mse_loss`."""
    known = [word for word in dir(nn.functional) if "reduction" in _parameters(getattr(nn.functional, word))]
    found = next((word for word in (name, f"{name}_loss") if word in known), None)
    if found is None:
        raise JobError(f"loss: unknown {quoted(name)}; {nearest(name, [*known, CAUSAL_LM])}")
    function: Callable[..., Tensor] = getattr(nn.functional, found)
    return function


class ProblemInMemory:
    """The callback of a job whose problem is in memory."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        # What jobs and records call it; no module can have this name.
        self.__module__, self.__qualname__ = MEMORY, f"<{type(problem.model).__name__}>"

    def __call__(self) -> Problem:
        return self._problem
