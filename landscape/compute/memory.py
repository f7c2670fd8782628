"""What a large model takes on each device, and a point's seconds: the one model of memory and time.

Bytes of a device, for P weights of b bytes over n processes, and A axes, of which H are held as tensors in float32:

    weights     b·P/n            the model that is evaluated
    origin      b·P/n            θ₀, if it is kept on the device; else 0
    directions  4·H·P/n          0 for random directions, which are drawn
    staging     28·piece         the numbers that are drawn and summed at a time
    gathered    2·b·(block)      under FSDP2: a block, and the one that is fetched meanwhile
    activations                  not counted here: `plan` measures a forward pass
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from landscape.core.plan import OriginIn, Plan
from landscape.evaluation.weights import PIECE, PIECE_ON_GPU
from landscape.job.directions.computed import FLOAT32, PartTensors
from landscape.model.parameters import LARGE, State, targets_of
from landscape.problem.large_models import repeated_blocks

BYTES_A_NUMBER = 28  # of a piece: words of 64 bits for four numbers, twice, places, numbers, factors and the sum


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes on one device by what they hold; activations come on top."""

    weights: int
    origin: int
    directions: int
    staging: int
    gathered: int = 0

    @property
    def held(self) -> int:
        """From the first point to the last."""
        return self.weights + self.origin + self.directions

    @property
    def setting(self) -> int:
        """While a point is set."""
        return self.held + self.staging

    @property
    def forward(self) -> int:
        """During a forward pass."""
        return self.held + self.gathered

    def document(self) -> dict[str, int]:
        """All of them by name."""
        return {**vars(self), "setting": self.setting, "forward": self.forward}


def device_bytes(
    parameters: int, item: int, *, ranks: int = 1, held_axes: int = 0, origin_on_device: bool = True, block: int = 0,
    gpu: bool = True,
) -> DeviceBytes:  # fmt: skip
    """The bytes on each of `ranks` devices.

    Args:
        item: bytes of a weight.
        held_axes: directions that are held on the device.
        block: weights of the largest block that FSDP2 gathers; 0 without it.

    >>> device_bytes(7_000_000_000, 2, origin_on_device=False).held / 1e9
    14.0
    """
    whole = item * parameters
    return _split(
        whole, whole, parameters, ranks, held_axes=held_axes, on_device=origin_on_device, gathered=2 * item * block,
        gpu=gpu,
    )  # fmt: skip


def _split(
    weights: int, moved: int, numbers: int, ranks: int, *, held_axes: int, on_device: bool, gathered: int, gpu: bool
) -> DeviceBytes:
    """The share of each of `ranks` devices in bytes of weights, of those that move, and in the numbers of these."""
    return DeviceBytes(
        weights=-(-weights // ranks),
        origin=-(-moved // ranks) if on_device else 0,
        directions=-(-FLOAT32 * held_axes * numbers // ranks),
        staging=BYTES_A_NUMBER * (PIECE_ON_GPU if gpu else PIECE),
        gathered=gathered,
    )


def bytes_of_landscape(
    model: nn.Module, plan: Plan, directions: Sequence[State], origin_in: OriginIn | None, ranks: int
) -> DeviceBytes:
    """The bytes of a landscape of this model on each device of a worker, before its activations."""
    tensors = targets_of(model)
    items = {name: item_of(tensor.itemsize, plan) for name, tensor in tensors.items()}
    whole = sum(tensor.numel() * items[name] for name, tensor in tensors.items())
    moved = [name for name in tensors if any(name in direction for direction in directions)]
    of_moved = sum(tensors[name].numel() * items[name] for name in moved)
    held = [direction for direction in directions if not isinstance(direction, PartTensors)]
    gpu = plan.device == "cuda"
    copied = origin_in == "device" or (origin_in is None and gpu)
    if of_moved <= LARGE and len(held) == len(directions) and ranks == 1 and not plan.rounds_weights:
        row = of_moved if len(directions) > 1 else 0
        return DeviceBytes(whole, of_moved, len(held) * of_moved + row, 0)
    numbers = sum(tensors[name].numel() for name in moved)
    block = max(map(_largest, repeated_blocks(model)), default=0) if ranks > 1 else 0
    return _split(
        whole, of_moved, numbers, ranks, held_axes=len(held) if copied else 0, on_device=copied,
        gathered=2 * block * max(items.values()), gpu=gpu,
    )  # fmt: skip


def item_of(itemsize: int, plan: Plan) -> int:
    """The bytes of a weight in the type that the plan holds it in."""
    if plan.precision == "float64":
        return 8
    return itemsize if plan.rounds_weights and itemsize == 2 else 4


def _largest(block: nn.Module) -> int:
    return sum(parameter.numel() for parameter in block.parameters())


# ----------------------------------------------------------------------------------------------------
# The seconds of a point.


@dataclass(frozen=True)
class Machine:
    """The rates of one device: FLOP/s in a forward pass, bytes/s of its memory, and bytes/s between devices."""

    flops: float
    memory: float
    link: float


# Not measured here: the makers' numbers, of which a forward pass reaches four tenths.
H100 = Machine(0.4 * 989e12, 3.35e12, 450e9)
BYTES_TO_DRAW = 60  # that drawing one number moves: seven operations on words, the places and the table


def seconds_of_point(
    parameters: int, item: int, tokens: int, machine: Machine, *, ranks: int = 1, axes: int = 2, batches: int = 1,
    gathers: bool = False,
) -> Mapping[str, float]:  # fmt: skip
    """Seconds of setting a point, of its forward passes, and of gathering weights in them.

    2·P·tokens operations over all devices; each weight is read and written, and drawn once for each axis; FSDP2 brings
    (n − 1)/n of the weights to every device in every batch, which overlaps with computing.
    """
    share = parameters / ranks
    setting = share * (2 * item + axes * BYTES_TO_DRAW) / machine.memory
    forward = 2 * parameters * tokens / (ranks * machine.flops)
    gathering = batches * parameters * item * (1 - 1 / ranks) / machine.link if gathers else 0.0
    return {"setting": setting, "forward": forward, "gathering": gathering, "point": setting + max(forward, gathering)}
