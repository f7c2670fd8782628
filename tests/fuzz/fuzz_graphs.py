"""Graphs of packed files as an enemy would write them: `python tests/fuzz/fuzz_graphs.py --cases 5000 --seed 0`.

A case calls one to three operations of the list with constants that no model has. Half of the calls are right but for
one argument, so that they come past the first look. Each case runs in a process of its own, forked from this one, whose
address space may grow by `ROOM`: it must end, by itself, with a tensor or with a sentence.
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import random
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from landscape.model.packed_model import PortableModel
from landscape.model.packed_operations import ALLOWED, PYTHON
from landscape.problem.user_code import in_words

ROOM = 3 << 29  # bytes: 1.5 GiB
LIMIT = 60.0  # seconds, on a machine that does other work too
BAD = re.compile(r"INTERNAL ASSERT|can't allocate|MemoryError|bad_alloc|Segmentation|AssertionError|RecursionError")
INTS = [0, 1, -1, 2, 3, 4, 5, 7, -2, -7, 99, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1]
FLOATS = [0.0, 1.0, -1.0, 0.5, 1e-5, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan]
TEXTS = ["none", "mean", "sum", "reflect", "circular", "constant", "valid", "same", "ij", "xy", "floor", "trunc", "ortho",
    "backward", "bij,bjk->bik", "ij->", "ii", "...i", "amax", "prod", "tanh", "L", "fro", "nuc", "reduced", "x" * 100]  # fmt: skip
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (2, 3),
    (3, 3),
    (4, 1),
    (0, 3),
    (2, 3, 4),
    (2, 2, 4, 4),
    (1, 2, 5, 5),
    (2, 1, 3, 3, 3),
]
DTYPES = ["float32"] * 6 + ["float64", "float16", "bfloat16", "int64", "int64", "int32", "bool", "complex64", "uint8"]


def _planted() -> list[tuple[Any, ...]]:
    """Crashes that were found before: each must be refused."""
    one, rows = torch.ones(()), torch.ones(2, 3)
    return [
        ("nll_loss_backward.default", [torch.ones(2), rows, torch.tensor([0, 1 << 33]), None, 0, -100, one]),
        ("nll_loss2d_backward.default", [torch.ones(1, 2, 2), torch.ones(1, 3, 2, 2), torch.full((1, 2, 2), -(1 << 33)),
                                         None, 0, -100, one]),
        ("_fft_r2c.default", [rows, [-1, 9], 0, True]),
        ("special_laguerre_polynomial_l.n_scalar", [rows, 4 * 10**12]),
        ("ones.default", [[2 * 10**12]]),
        ("div.Tensor_mode", [torch.tensor([-(1 << 63)]), torch.tensor([-1])], {"rounding_mode": "trunc"}),
        ("linalg_multi_dot.default", [[torch.ones(2, 2)] * 5000]),
    ]  # fmt: skip


def _right() -> list[tuple[str, list[Any]]]:
    """Calls that are right, of operations that trust what they are given, or whose arguments are hard to guess."""
    rows, ids, pictures, one = torch.randn(4, 3), torch.tensor([0, 2, 1, 0]), torch.randn(2, 2, 6, 6), torch.ones(())
    kernel, values, ones = torch.randn(4, 2, 3, 3), torch.randn(5, 2, 3), torch.ones(4)
    lstm, gru = torch.nn.LSTM(3, 4, 2), torch.nn.GRU(3, 4)
    weights = [[each.detach() for each in layer.parameters()] for layer in (lstm, gru)]
    pooled, places = torch.nn.functional.max_pool2d(pictures, 2, return_indices=True)
    made = torch.nn.functional.conv2d(pictures, kernel)
    return [
        ("conv2d.default", [pictures, kernel, None, [1, 1], [1, 1], [1, 1], 1]),
        ("conv_transpose2d.input", [made, kernel, None, [2, 2], [1, 1], [1, 1], 1, [1, 1]]),
        ("convolution.default", [pictures, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]),
        ("convolution_backward.default", [made, pictures, kernel, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3]),
        ("max_pool2d_with_indices.default", [pictures, [2, 2], [2, 2], [0, 0], [1, 1], False]),
        ("avg_pool2d.default", [pictures, [2, 2], [2, 2], [1, 1], False, True, None]),
        ("max_unpool2d.default", [pooled, places, [6, 6]]),
        ("adaptive_avg_pool2d.default", [pictures, [3, 3]]), ("adaptive_max_pool2d.default", [pictures, [2, 2]]),
        ("upsample_bilinear2d.default", [pictures, [12, 12], False, 2.0, 2.0]),
        ("upsample_nearest2d.vec", [pictures, None, [2.0, 2.0]]), ("upsample_bicubic2d.vec", [pictures, [5, 7], False, None]),
        ("grid_sampler.default", [pictures, torch.rand(2, 4, 4, 2) * 2 - 1, 0, 0, False]),
        ("affine_grid_generator.default", [torch.randn(2, 2, 3), [2, 2, 4, 4], False]),
        ("im2col.default", [pictures, [3, 3], [1, 1], [1, 1], [1, 1]]),
        ("col2im.default", [torch.randn(2, 18, 36), [6, 6], [3, 3], [1, 1], [1, 1], [1, 1]]),
        ("pad.default", [pictures, [1, 1, 2, 0], "reflect", None]), ("replication_pad2d.default", [pictures, [1, 1, 2, 0]]),
        ("nll_loss_backward.default", [ones, rows, ids, None, 0, -100, one]),
        ("nll_loss2d_backward.default", [one, pictures, torch.zeros(2, 6, 6, dtype=torch.int64), None, 1, -100, one]),
        ("nll_loss_forward.default", [rows, ids, None, 1, -100]), ("cross_entropy_loss.default", [rows, ids, None, 0, 1, 0.1]),
        ("multi_margin_loss.default", [rows, ids, 1, 1.0, None, 0]), ("one_hot.default", [ids, 3]),
        ("multilabel_margin_loss.default", [rows, torch.tensor([[0, 1, -1]] * 4), 0]),
        ("gather.default", [rows, 0, ids[:, None]]), ("scatter.src", [rows, 0, ids[:, None], rows]),
        ("scatter_add.default", [rows, 0, ids[:, None], rows]), ("scatter_reduce.two", [rows, 0, ids[:, None], rows, "amax"]),
        ("index_select.default", [rows, 0, ids]), ("index_add.default", [rows, 0, ids, rows]), ("index.Tensor", [rows, [ids, ids]]),
        ("index_copy.default", [rows, 0, ids, rows]), ("index_put.default", [rows, [ids], rows, True]),
        ("index.Tensor", [rows, [rows > 0]]), ("index_put.default", [rows, [rows > 0], one]), ("nonzero.default", [rows]),
        ("masked_select.default", [rows, rows > 0]), ("where.default", [ids]), ("argwhere.default", [rows]),
        ("take_along_dim.default", [rows, ids[:, None], 0]), ("embedding.default", [rows, ids, -1]),
        ("embedding_bag.default", [rows, ids, torch.tensor([0, 2]), False, 0, False, None, False]),
        ("lstm.input", [values, [torch.zeros(2, 2, 4)] * 2, weights[0], True, 2, 0.0, False, False, False]),
        ("gru.input", [values, torch.zeros(1, 2, 4), weights[1], True, 1, 0.0, False, False, False]),
        ("batch_norm.default", [rows, None, None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, True]),
        ("_native_batch_norm_legit_no_training.default", [rows, None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5]),
        ("native_group_norm.default", [pictures, None, None, 2, 2, 36, 1, 1e-5]), ("layer_norm.default", [rows, [3], None, None, 1e-5]),
        ("instance_norm.default", [pictures, None, None, None, None, True, 0.1, 1e-5, True]),
        ("_weight_norm.default", [rows, torch.ones(4, 1), 0]), ("_softmax_backward_data.default", [rows, rows, 1, torch.float32]),
        ("scaled_dot_product_attention.default", [pictures, pictures, pictures, None, 0.0, False]),
        ("_fft_r2c.default", [rows, [1], 0, True]), ("_fft_c2c.default", [rows * 1j, [0], 0, True]),
        ("_fft_c2r.default", [rows * 1j, [1], 0, 4]), ("fft_irfft.default", [rows * 1j, 4, -1, None]),
        ("stft.default", [torch.randn(2, 40), 8, 4, 8, torch.ones(8), False, True, True]),
        ("einsum.default", ["ij,ik->jk", [rows, rows]]), ("matrix_power.default", [torch.eye(3), 5]),
        ("linalg_solve.default", [torch.eye(3), torch.eye(3)]), ("linalg_qr.default", [rows, "reduced"]),
        ("topk.default", [rows, 2, 1, True, True]), ("kthvalue.default", [rows, 2, 1, False]), ("cdist.default", [rows, rows, 2.0, None]),
        ("roll.default", [rows, [1], [0]]), ("unfold.default", [rows, 1, 2, 1]), ("repeat.default", [rows, [2, 2]]),
        ("unfold_backward.default", [torch.ones(4, 2, 2), [4, 3], 1, 2, 1]), ("select_backward.default", [ones, [4, 3], 1, 2]),
        ("slice_backward.default", [rows, [4, 6], 1, 0, 3, 1]), ("diagonal_backward.default", [torch.ones(3), [4, 3], 0, 0, 1]),
        ("searchsorted.Tensor", [torch.arange(5.0), rows]), ("bilinear.default", [rows, rows, torch.randn(2, 3, 3), None]),
        ("linspace.default", [0, 1, 10]), ("arange.start_step", [0, 10, 2]), ("polygamma.default", [1, rows]),
        ("pixel_shuffle.default", [torch.randn(1, 4, 2, 2), 2]), ("tensor_split.sections", [rows, 2, 0]), ("expand.default", [one, [4, 4]]),
    ]  # fmt: skip


class Case:
    """A graph by its number and the seed, as a file would hold it."""

    def __init__(self, seed: int, number: int) -> None:
        self.chance = random.Random(f"{seed}/{number}")
        torch.manual_seed(self.chance.randrange(1 << 30))
        self.tensors: list[torch.Tensor] = []
        self.nodes: list[list[Any]] = []
        planted = _planted()
        if number < len(planted):
            self.add(*planted[number])
            return
        for _ in range(self.chance.choice([1, 1, 2, 3])):
            if self.chance.random() < 0.5:
                name, values = self.chance.choice(_right())
                if self.chance.random() < 0.9:
                    values = self._spoilt(values)
                self.add(name, values)
            elif self.chance.random() < 0.05 and self.nodes:
                self.nodes.append(["python", self.chance.choice(sorted(PYTHON)), [self._number(), self._number()], {}])
            else:
                self.add(*self._guessed())

    def add(self, name: str, values: Sequence[Any], options: dict[str, Any] | None = None) -> None:
        written = {key: self._written(value) for key, value in (options or {}).items()}
        self.nodes.append(["aten", name, [self._written(each) for each in values], written])

    def _spoilt(self, values: Sequence[Any]) -> list[Any]:
        """The same but for one argument, or one number in a list or tensor."""
        values, place = list(values), self.chance.randrange(len(values))
        old = values[place]
        if isinstance(old, list) and old and self.chance.random() < 0.7:
            values[place] = self._spoilt(old)
        elif isinstance(old, torch.Tensor):
            values[place] = self._spoilt_tensor(old)
        elif isinstance(old, str):
            values[place] = self.chance.choice(TEXTS)
        elif type(old) is bool:
            values[place] = not old
        elif isinstance(old, (int, float, list)):
            few = [self.chance.choice(INTS) for _ in range(self.chance.randrange(4))]
            values[place] = few if isinstance(old, list) else self.chance.choice(INTS if type(old) is int else FLOATS)
        else:
            values[place] = self._tensor()
        return values

    def _spoilt_tensor(self, old: torch.Tensor) -> torch.Tensor:
        kind = self.chance.randrange(4)
        if kind == 0 or not old.numel():
            return self._tensor()
        if kind == 1 and old.dim():  # of another size
            return old[:0] if self.chance.random() < 0.3 else torch.cat([old, old])
        if kind == 2:  # another value
            new = old.clone()
            if old.dtype is torch.bool or old.is_complex():
                return new
            new.view(-1)[self.chance.randrange(old.numel())] = self.chance.choice(
                FLOATS if old.is_floating_point() else INTS
            )
            return new
        return old.to(getattr(torch, self.chance.choice(DTYPES)))

    def _tensor(self) -> torch.Tensor:
        dtype = getattr(torch, self.chance.choice(DTYPES))
        shape = self.chance.choice(SHAPES)
        values = self.chance.choice([torch.randn(shape), torch.zeros(shape), torch.randn(shape) * 1e30, torch.randint(-3, 9, shape),
                                     torch.full(shape, math.nan), torch.full(shape, 2**40), torch.full(shape, -(2**63)),
                                     torch.full(shape, -1)])  # fmt: skip
        return values.to(dtype)

    def _guessed(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Any operation of the list, its arguments by what its schema says of them."""
        name = self.chance.choice(sorted(ALLOWED))
        packet, _, which = name.partition(".")
        schema, values, options = getattr(getattr(torch.ops.aten, packet), which)._schema, [], {}
        same = self._tensor() if self.chance.random() < 0.6 else None
        for argument in schema.arguments:
            if argument.has_default_value() and self.chance.random() < 0.5:
                if not argument.kwarg_only:
                    values.append(argument.default_value)
                continue
            value = self._of_kind(str(argument.real_type), same)
            if argument.kwarg_only:
                options[argument.name] = value
            else:
                values.append(value)
        return name, values, options

    def _of_kind(self, kind: str, same: torch.Tensor | None) -> Any:
        if kind.startswith("Optional["):
            return None if self.chance.random() < 0.4 else self._of_kind(kind[9:-1], same)
        if kind.startswith("List["):
            return [self._of_kind(kind[5:-1], same) for _ in range(self.chance.randrange(5))]
        if kind == "Tensor":
            if self.nodes and self.chance.random() < 0.3:
                return {"node": self.chance.randrange(len(self.nodes))}
            return self._tensor() if same is None or self.chance.random() < 0.2 else same
        if kind in ("int", "SymInt", "number", "Scalar"):
            return self._number() if kind in ("number", "Scalar") else self._whole()
        choices = {"float": FLOATS, "bool": [True, False], "str": TEXTS, "ScalarType": [{"dtype": each} for each in DTYPES],
            "Device": [{"device": True}], "Layout": [{"layout": "strided"}], "MemoryFormat": [{"memory_format": "channels_last"}]}  # fmt: skip
        return self.chance.choice(choices.get(kind, [None]))

    def _whole(self) -> int:
        return self.chance.choice(INTS[:8] if self.chance.random() < 0.7 else INTS)

    def _number(self) -> float:
        return self.chance.choice([self._whole(), self.chance.choice(FLOATS)])

    def _written(self, value: Any) -> Any:
        """As the graph's JSON has it; tensors become constants of the file."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return {"constant": len(self.tensors) - 1}
        if isinstance(value, (list, tuple)):
            return [self._written(each) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value

    def computed(self) -> str:
        """What becomes of it: 'tensor', or what is said."""
        graph = {"inputs": 1, "nodes": self.nodes, "outputs": [{"node": place} for place in range(len(self.nodes))]}
        returns = ["tuple", *["tensor"] * len(self.nodes)]
        try:
            said = {"model": {"graph": graph, "takes": "tensor", "returns": returns}}
            model = PortableModel([], {}, self.tensors, said)
            for each in model(torch.ones(2, 3)):
                if isinstance(each, torch.Tensor) and each.numel() < 1 << 20:
                    each.clone().reshape(-1)[:9].tolist()
        except BaseException as error:
            return in_words(error)
        return "tensor"


def run(seed: int, number: int) -> tuple[str, str]:
    """What a case gave, and what is wrong with that; it runs in a child of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writer, Case(seed, number).computed().encode()[:4000])
        os._exit(0)
    os.close(writer)
    ended = select.select([reader], [], [], LIMIT)[0]
    if not ended:
        os.kill(pid, signal.SIGKILL)
    said = os.read(reader, 5000).decode(errors="replace") if ended else ""
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if not ended:
        return said, f"hangs: no end after {LIMIT:.0f} s"
    if os.WIFSIGNALED(status):
        return said, f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if not said:
        return said, f"ended without a word, by code {os.WEXITSTATUS(status)}"
    if number < len(_planted()) and said == "tensor":
        return said, "is computed, and must be refused"
    return said, f"says {said[:200]!r}" if BAD.search(said) else ""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case, by its number, with all that it says")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    for name, values in _right():  # so that what is imported at first use is there
        case = Case(given.seed, 0)
        case.nodes, case.tensors = [], []
        case.add(name, values)
        assert (said := case.computed()) == "tensor", f"{name} is right: {said}"
    started, kinds, faults = time.monotonic(), collections.Counter[str](), 0
    for number in range(given.cases) if given.only is None else [given.only]:
        said, fault = run(given.seed, number)
        kinds[
            "a tensor"
            if said == "tensor"
            else "refused by the file's bounds"
            if "JobError" in said
            else "refused by torch"
        ] += 1
        if fault or given.only is not None:
            faults += bool(fault)
            print(f"--only {number}: {fault or said}: {Case(given.seed, number).nodes}"[:900], flush=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"{sum(kinds.values())} graphs in {time.monotonic() - started:.0f} s: {faults} break a rule; {counts}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
