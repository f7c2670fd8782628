"""The states of the objects that a training keeps, and loading them into the objects of one that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from landscape.core.errors import JobError, message_of
from landscape.model.parameters import match_state
from landscape.training.checkpoints import Checkpoint
from landscape.training.network import unwrap

REMEDY = "change it back, name another run, or begin anew with overwrite"


def inner(value: Any) -> Any:
    """A network inside its wrappers; anything else as it is."""
    return unwrap(value) if isinstance(value, nn.Module) else value


def states_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of the values: the state of each object that has one, the others as they are."""
    return {name: inner(value).state_dict() if _has_state(value) else value for name, value in values.items()}


def classes_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The class of each value whose state is kept."""
    return {name: type(inner(value)).__name__ for name, value in values.items() if _has_state(value)}


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict")


def load_all(objects: Mapping[str, Any], last: Checkpoint, run: str) -> None:
    """Load the state of each object from the checkpoint.

    Args:
        run: how an error names the run.

    Raises:
        JobError: the checkpoint has no state for one of them, or another object's.
    """
    missing = [name for name in objects if name not in last.values]
    if missing:
        raise JobError(
            f"{missing[0]}: must be in the checkpoint of run {run}, which holds {', '.join(last.values) or 'nothing'}; "
            "take it out of resume, or begin anew with overwrite"
        )
    for name, target in objects.items():
        _load(name, inner(target), last, run)


def _load(name: str, target: Any, last: Checkpoint, run: str) -> None:
    state = last.values[name]
    before, now = last.classes.get(name), type(target).__name__
    # A model may be of another class with the same weights; the state of another optimiser says nothing to this one.
    if before is None or (before != now and not isinstance(target, nn.Module)):
        begun = before or f"a value of type {type(state).__name__}"
        raise JobError(f"{name}: training in run {run} was begun with {begun}, not {now}; {REMEDY}")
    try:
        if isinstance(target, nn.Module):
            match_state(target, state, f"checkpoint of run {run}")
        target.load_state_dict(state)
    except Exception as error:
        if isinstance(error, JobError) and not isinstance(target, nn.Module):
            raise  # the object says itself what is wrong
        raise JobError(f"{name}: does not fit what was trained: {message_of(error, 400)}; {REMEDY}") from None
