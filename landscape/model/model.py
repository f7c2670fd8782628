"""The model of a portable problem: modules with the packed names, and the graphs that compute with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from landscape.model.description import ParameterInfo
from landscape.model.modules import build_tree
from landscape.model.packed_bounds import bounds_of
from landscape.model.packed_graph import program_of
from landscape.model.structure import count_of, filled, leaves_of

MAIN = "model"  # the graph that a call of the model runs


class PortableModel(nn.Module):
    """Runs graphs on tensors that it holds under the names that they had in the packed model.

    Args:
        entries: see `build_tree`.
        tensors: see `build_tree`.
        constants: tensors that graphs hold beside these.
        graphs: by name, each with the structures of what it is given and returns.

    Attributes:
        described: what directions must know of the parameters, in their order.
        only_in: the precision that the graphs name types of; empty where they name none.
        inlined: layers of the packed model whose calls stand in the graphs as plain operations: `norms`, and `rounded`,
            whose inputs a landscape with quantised activations rounds.

    Raises:
        ValueError: something of these cannot be.
    """

    def __init__(
        self, entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], constants: Sequence[Tensor],
        graphs: Mapping[str, Mapping[str, Any]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.described: tuple[ParameterInfo, ...] = ()
        self.only_in = ""
        self.inlined: Mapping[str, tuple[str, ...]] = {"norms": (), "rounded": ()}
        build_tree(self, entries, tensors)
        self.constants = tuple(constants)
        self._programs = {name: _program(name, graph, self, len(constants)) for name, graph in graphs.items()}
        for name, graph in graphs.items():
            if graph["graph"]["inputs"] != count_of(graph["takes"]):
                raise ValueError(f"a graph {name[:40]!r} of other inputs than it takes")
            if len(graph["graph"]["outputs"]) != count_of(graph["returns"]):
                raise ValueError(f"a graph {name[:40]!r} of other outputs than it returns")

    def without_weights(self) -> PortableModel:
        """A model that shares this one's graphs and constants, and holds no weights."""
        bare = PortableModel([], {}, self.constants, {})
        bare._programs = self._programs
        return bare

    def forward(self, batch: Any) -> Any:
        """What the graph `model` returns for a batch."""
        return self.run(MAIN, batch)

    def run(self, name: str, batch: Any) -> Any:
        """What the graph of this name returns for a batch.

        Raises:
            JobError: for batches of this shape it does what no packed graph may do.
        """
        program, _, takes, returns = self._programs[name]
        leaves = self._within_bounds(name, leaves_of(takes, batch))
        return filled(returns, iter(program(self, *leaves)))

    def _within_bounds(self, name: str, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves, after a look at what the graph does with them; where the model is traced, the look is traced."""
        proxy = next((each for each in leaves if isinstance(each, fx.Proxy)), None)
        if proxy is None:
            self._programs[name][1](self, leaves)
            return leaves

        def within_bounds(*leaves: Any) -> Sequence[Any]:
            return self._within_bounds(name, leaves)

        looked_at: Any = proxy.tracer.create_proxy("call_function", within_bounds, tuple(leaves), {})
        return [looked_at[place] for place in range(len(leaves))]


def _program(name: str, said: Mapping[str, Any], root: nn.Module, constants: int) -> tuple[Any, Any, Any, Any]:
    """What runs a graph, what looks at it before, and the structures of what it takes and returns."""
    program, graph = program_of(said["graph"], root, constants)
    return program, bounds_of(name, graph), said["takes"], said["returns"]
