"""One actor pinned to its device: loads the problem by the callback, evaluates tasks, hands back plain data."""

from __future__ import annotations

import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.parcels import Parcels, gather
from landscape.arithmetic import Plan, pick_device
from landscape.errors import one_line
from landscape.evaluation import Evaluator
from landscape.grid import Grid
from landscape.parameters import State
from landscape.pipeline import Outcome, Work, evaluate
from landscape.problem import load_problem
from landscape.samples import Batch
from landscape.tuning import Freedom, tune

Fetch = Callable[[Any], Any]  # gets an object from the cluster by its reference


@dataclass(frozen=True)
class Packed:
    """A tensor as a numpy array, which Ray shares between the processes of a node without copying it."""

    array: np.ndarray
    dtype: str


def pack(tensor: torch.Tensor) -> Packed:
    plain = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16: the bytes travel, the type beside them.
    bytes_ = plain.reshape(-1).view(torch.uint8).numpy().reshape(*plain.shape, plain.element_size())
    return Packed(bytes_, str(plain.dtype).removeprefix("torch."))


def unpack(packed: Packed) -> torch.Tensor:
    dtype = getattr(torch, packed.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the shared memory is read-only, and is only read
        flat = torch.from_numpy(packed.array.reshape(-1))
    return flat.view(dtype).reshape(packed.array.shape[:-1])


def pack_state(state: State) -> dict[str, Packed]:
    return {name: pack(tensor) for name, tensor in state.items()}


def unpack_state(state: Mapping[str, Packed]) -> dict[str, torch.Tensor]:
    return {name: unpack(packed) for name, packed in state.items()}


@dataclass(frozen=True)
class Payload:
    """What a worker needs of one landscape, apart from the tasks: origin, axes, grid ends, plan."""

    name: str
    origin: Mapping[str, Packed]
    directions: Sequence[Mapping[str, Packed]]
    grid: Grid
    plan: Plan


@dataclass(frozen=True)
class ProblemSource:
    """How a worker gets the problem: the callback, and where to import it from."""

    callback: str | Callable[[], Any]
    folder: Path
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """What a worker hands back: the outcome, or the cause and traceback of what user code raised. Plain data."""

    outcome: Outcome | None = None
    cause: str = ""
    traceback: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Worker:
    """Evaluates tasks of any landscape of a job. Made an actor by the driver; knows nothing of Ray itself.

    Exceptions never leave it as exceptions: those that cannot be pickled would arrive as something else.
    """

    def __init__(
        self, source: ProblemSource, samples: Any, use_gpu: bool, fetch: Fetch, node: Callable[[], str] = lambda: ""
    ) -> None:
        self._source, self._samples_reference, self._fetch, self._node = source, samples, fetch, node
        self._device = pick_device("auto" if use_gpu else "cpu")
        self._loaded = ""
        self._evaluator: Evaluator | None = None

    def start(self) -> Receipt:
        """Load the problem; says where this worker runs."""
        try:
            sys.path[:0] = [each for each in self._source.path if each not in sys.path]
            problem = load_problem(self._source.callback, self._source.folder)
            self._model, self._observe = problem.model, problem.observe
            self._samples: Batch = self._receive(self._samples_reference)
        except Exception as error:
            return Receipt(cause=one_line(error), traceback=traceback.format_exc())
        return Receipt(details=self.describe())

    def _receive(self, samples: Any) -> Batch:
        """The samples as one object of the node's, or gathered from pieces into the node's files."""
        if isinstance(samples, Parcels):
            return gather(samples, lambda reference: _unpack_samples(self._fetch(reference)))
        return _unpack_samples(self._fetch(samples))

    def describe(self) -> dict[str, Any]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {
            "host": socket.gethostname(), "node": self._node(), "pid": os.getpid(),
            "device": self._device.type, "visible_devices": visible,
        }  # fmt: skip

    def tune(self, payload: Sequence[Any], freedom: Freedom) -> Receipt:
        """The engine and the batch size that suit a landscape on this device, and the seconds a point costs."""
        try:
            landscape, evaluator = self._load(payload)
            tuned = tune(evaluator, landscape.grid, freedom)
        except Exception as error:
            return Receipt(cause=one_line(error), traceback=traceback.format_exc())
        return Receipt(details={"tuned": tuned})

    def evaluate(self, payload: Sequence[Any], points: np.ndarray, states: Sequence[Any]) -> Receipt:
        """One task. `payload` and `states` hold references, so that each node fetches what they name once."""
        try:
            _, evaluator = self._load(payload)
            work = Work(points, tuple(unpack_state(self._fetch(state)) for state in states))
            outcome = evaluator.within_memory(lambda: evaluate(evaluator, work))
        except Exception as error:
            return Receipt(cause=one_line(error), traceback=traceback.format_exc())
        return Receipt(outcome, details=_reduced(evaluator))

    def _load(self, payload: Sequence[Any]) -> tuple[Payload, Evaluator]:
        """The evaluator set to the landscape; kept until a task of another one comes."""
        key = repr(payload[0])
        if self._evaluator is None or key != self._loaded:
            self._payload: Payload = self._fetch(payload[0])
            self._loaded = ""
            if self._evaluator is None or self._evaluator.plan != self._payload.plan:
                # The old one goes first: model and samples fit the device once.
                self._evaluator = None
                self._evaluator = Evaluator(self._model, self._samples, self._observe, self._payload.plan, self._device)
            self._evaluator.load(
                unpack_state(self._payload.origin), [unpack_state(each) for each in self._payload.directions]
            )
            self._loaded = key
        return self._payload, self._evaluator


def _reduced(evaluator: Evaluator) -> dict[str, int]:
    """The batch size of the last task, where it had to be smaller than planned."""
    used, planned = evaluator.batch_size, evaluator.plan.batch_size
    return {"batch_size": used} if used < planned else {}


def pack_samples(samples: Batch) -> Any:
    """The samples with every tensor packed, in the same structure."""
    return _map(samples, torch.Tensor, pack)


def _unpack_samples(samples: Any) -> Batch:
    return _map(samples, Packed, unpack)


def _map(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(each, kind, function) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(each, kind, function) for each in value))
    return type(value)(_map(each, kind, function) for each in value)
