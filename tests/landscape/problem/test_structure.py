"""Batches of any structure: every tensor is met, and copies leave the original as it is."""

from __future__ import annotations

import threading
from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from landscape import JobError
from landscape.problem.batches import (
    dense_tensors_in,
    exchange_tensors,
    first_dimension,
    moved,
    tensor_bytes,
    tensors_in,
)

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Knot:
    """It holds itself, and one tensor twice."""

    def __init__(self, x):
        self.me, self.parts = self, {"a": [x, x]}


class Locked:
    def __init__(self, x):
        self.x, self.lock = x, threading.Lock()


def ones():
    return torch.ones(2)


STRUCTURES = {
    "tensor": ones,
    "nested containers": lambda: {"a": [(ones(), 3)], "b": None},
    "named tuple": lambda: Pair(ones(), "y"),
    "dataclass": lambda: Frozen(ones(), "name"),
    "slots": lambda: Slots(ones()),
    "knot": lambda: Knot(ones()),
    "mapping": lambda: UserDict(x=ones()),
    "parameter": lambda: [torch.nn.Parameter(ones())],
    "jagged": lambda: torch.nested.nested_tensor([ones(), ones()[:1]], layout=torch.jagged),
    "sparse": lambda: [torch.eye(2).to_sparse()],
}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_every_tensor_is_exchanged_once_and_the_original_stays(kind):
    value = STRUCTURES[kind]()
    made = exchange_tensors(lambda tensor: tensor * 2, value)
    assert type(made) is type(value)
    assert len(tensors_in(value)) == 1
    assert all((part == 1).sum() or part.dtype == torch.int64 for part in dense_tensors_in(value))
    assert any((part == 2).any() for part in dense_tensors_in(made))


@pytest.mark.parametrize("kind", STRUCTURES)
def test_moving_changes_the_type_of_floating_point_tensors_alone(kind):
    value = (STRUCTURES[kind](), torch.arange(3))
    made = moved(value, CPU, torch.float64)
    assert [tensor.dtype for tensor in tensors_in(made)] == [torch.float64, torch.int64]
    assert [tensor.dtype for tensor in tensors_in(value)] == [torch.float32, torch.int64]
    assert made[1] is value[1]


def test_a_knot_stays_a_knot():
    made = exchange_tensors(lambda tensor: tensor + 1, Knot(ones()))
    assert made.me is made
    assert made.parts["a"][0] is made.parts["a"][1]


def test_what_cannot_be_copied_stays_itself():
    value = Locked(ones())
    assert exchange_tensors(lambda tensor: tensor * 2, [value])[0] is value


def test_an_object_that_moves_itself_is_copied_first():
    class Moving:
        def __init__(self):
            self.x, self.moves = ones(), 0

        def to(self, device):
            self.moves += 1
            return self

    value = Moving()
    made = moved({"batch": value}, CPU, torch.float64)["batch"]
    assert (value.moves, made.moves) == (0, 1)
    assert (value.x.dtype, made.x.dtype) == (torch.float32, torch.float64)


def test_an_object_that_moves_in_place_and_returns_nothing_is_there_all_the_same():
    class Moving:
        def __init__(self):
            self.x = ones()

        def to(self, device):
            self.x = self.x.to(device)

    made = moved([Moving()], CPU, torch.float64)[0]
    assert made.x.dtype is torch.float64


def test_an_object_whose_own_method_fails_is_named():
    class Quantity:
        def to(self, unit):
            raise KeyError("no such unit")

    with pytest.raises(JobError, match=r"^data: Quantity\.to\('cpu'\) raised KeyError: 'no such unit' \(.*test_struct"):
        moved(Quantity(), CPU, torch.float64)


def test_too_little_memory_stays_what_it_is_so_that_batches_are_halved():
    class Large:
        def to(self, device):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        moved(Large(), CPU, torch.float64)


def test_bytes_are_those_of_all_tensors():
    assert tensor_bytes([Frozen(ones(), "x"), ones().double()]) == 8 + 16
    assert tensor_bytes(torch.nested.nested_tensor([ones(), ones()[:1]], layout=torch.jagged)) == 12 + 24


def test_only_tensors_of_one_first_dimension_are_rows():
    assert first_dimension({"a": torch.zeros(4, 2), "b": [torch.zeros(4)]}) == 4
    assert first_dimension((torch.zeros(4), torch.zeros(3))) is None
    assert first_dimension((torch.zeros(4), "x")) is None
    assert first_dimension(torch.zeros(())) is None
    assert first_dimension(Frozen(torch.zeros(4), "x")) is None
    assert first_dimension(torch.nested.nested_tensor([ones(), ones()[:1]], layout=torch.jagged)) is None
