"""Check with two samples that `observe` gives the same values again, and that they depend on the given model."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from landscape.core.errors import JobError
from landscape.core.plan import Plan, Precision, default_plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Values
from landscape.model.parameters import State, holds_bfloat16, targets_of
from landscape.model.shards import is_sharded
from landscape.problem.batches import Batch, Samples, as_samples
from landscape.problem.supervised import Observe, ordered_names
from landscape.problem.user_code import Exited, in_words

SAMPLES = 2
ROUNDING = 1e-3  # relative: kernels of a GPU may add in any order
FEW = 8  # compared members of a container that `observe` holds
LEAST_STEP = 0.01  # for a tensor of zeros


@dataclass(frozen=True)
class FirstLook:
    """The result of trying out `observe`.

    Attributes:
        names: the observables.
        warnings: what the user may not have meant.
        bfloat16_weights: whether the model computes with its bfloat16 weights as they are, see `Plan`.
        weighted: whether `observe` returns sample weights.
    """

    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    bfloat16_weights: bool = False
    weighted: bool = False


def first_look(
    model: nn.Module, observe: Observe, samples: Samples | Batch, precision: Precision, device: torch.device,
    weights: State | None = None,
) -> FirstLook:  # fmt: skip
    """Call `observe` for two samples: twice at the origin, and at two other sets of weights.

    With precision bfloat16, weights in bfloat16 stay in bfloat16, unless `observe` raises with them and not with
    float32 weights: some kernels refuse float32 inputs beside bfloat16 weights.

    Args:
        weights: the origin; default: the model's own weights.

    Raises:
        JobError: `observe` raises, does not return one value per sample, returns other values the second time, or uses
            another model than the one it is given.
    """
    plan = default_plan(SAMPLES, device.type, precision, Plan.batch_norm, 0, None, None)
    few = as_samples(samples).few(SAMPLES)
    weights = weights or {name: tensor.detach() for name, tensor in targets_of(model).items()}
    if precision != "bfloat16" or not holds_bfloat16(model):
        return _look(model, observe, few, plan, device, weights)
    try:
        look = _look(model, observe, few, replace(plan, bfloat16_weights=True), device, weights)
    except JobError as error:
        if error.__cause__ is None or is_sharded(model):  # `observe` did not raise, or no weights can be converted
            raise
        refused = in_words(error.__cause__)
    else:
        return replace(look, bfloat16_weights=True)
    look = _look(model, observe, few, plan, device, weights)
    warning = (
        "model: its weights are taken to float32, in twice the memory, as observe raises with weights in bfloat16 "
        f"({refused[:100]}); give the model its inputs in bfloat16, or keep its norms in float32"
    )
    return replace(look, warnings=(*look.warnings, warning))


def _look(
    model: nn.Module, observe: Observe, few: Samples, plan: Plan, device: torch.device, origin: State
) -> FirstLook:
    evaluator = Evaluator(model, few, observe, plan, device, origin, ())

    def look() -> Values:
        return evaluator.evaluate(np.zeros((1, 0)))

    try:
        first, before = look(), _held_values(observe)
        again = look()
    except JobError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, Exited) else error
        raise JobError(f"observe: {in_words(cause or error)} on the first {few.length} samples") from cause
    changed = [name for name, value in _held_values(observe).items() if before.get(name) != value]
    _refuse_other_values(first, again, changed, 0.0 if device.type == "cpu" else ROUNDING)
    names, warnings = ordered_names(first.mean), _warn_of_counts(evaluator)
    if not np.isfinite(first.mean["loss"]).all() or not _stays_the_same(evaluator, origin, first):
        return FirstLook(names, warnings, weighted=first.weighted)
    other = _other_module_called(look, evaluator.evaluated_model)
    if other:
        raise JobError(
            f"observe: must use the model that it is given, not another {other} of its own, whose weights nothing moves"
        )
    warning = (
        f"observe: the losses of the first {few.length} samples are the same, to the last bit, at other "
        "weights, and so may the landscape be; it must use the model that it is given"
    )
    return FirstLook(names, (*warnings, warning), weighted=first.weighted)


def _warn_of_counts(evaluator: Evaluator) -> tuple[str, ...]:
    """A warning where `observe` returns another number of values than there are samples in a batch."""
    other = evaluator.counts.other_than_samples if evaluator.counts else ""
    if not other:
        return ()
    return (f"observe: returns {other}, so that means are over what it returns, and num_samples counts samples",)


# -- the same values again ---------------------------------------------------------------------------------------


def _refuse_other_values(first: Values, second: Values, changed: list[str], tolerance: float) -> None:
    for name, value in first.arrays().items():
        if not np.isclose(value, second.arrays()[name], rtol=tolerance, atol=0.0, equal_nan=True).all():
            because = f"it changes {', '.join(changed[:3])}" if changed else "it keeps something from call to call"
            raise JobError(
                f"observe: must give the same values for the same weights and samples, not {name} {value[0]:.6g} and "
                f"then {second.arrays()[name][0]:.6g}: {because}; draw with torch, numpy or random, which are seeded "
                "again at every point"
            )


def _held_values(observe: Observe) -> dict[str, Any]:
    """The values that `observe` can change outside the model: in its object, its closure and its module."""
    function = getattr(observe, "__func__", observe)
    owner = getattr(observe, "__self__", observe)
    held = dict(_plain_values(getattr(owner, "__dict__", {}).items()))
    if isinstance(function, types.FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        held |= _plain_values((name, _cell_value(cell)) for name, cell in cells)
        names = [name for name in function.__code__.co_names if name in function.__globals__]
        held |= _plain_values((name, function.__globals__[name]) for name in names)
    return held


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _plain_values(items: Any) -> dict[str, Any]:
    """Numbers and texts as they are, also the first ones of a container; of a tensor its version counter."""
    plain: dict[str, Any] = {}
    for name, value in items:
        if isinstance(value, (int, float, str, type(None))):
            plain[name] = value
        elif isinstance(value, Tensor):
            plain[name] = (id(value), value._version)
        elif isinstance(value, (list, dict, set, tuple)):
            first = itertools.islice(value.values() if isinstance(value, dict) else value, FEW)
            plain[name] = len(value), [member for member in first if isinstance(member, (int, float, str))]
    return plain


# -- another model -----------------------------------------------------------------------------------------------


class _Elsewhere(Mapping[str, Tensor]):
    """Weights as far from the origin as the origin's norm, made one tensor at a time."""

    def __init__(self, origin: Mapping[str, Tensor], parameters: set[str], seed: int) -> None:
        self._origin, self._parameters, self._seed = origin, parameters, seed

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._origin[name]
        if name not in self._parameters or not tensor.is_floating_point():
            return tensor
        # Any step will do, and random numbers for billions of weights take minutes.
        places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
        step = (places * (2 * self._seed + 5) % 17 - 8) / 5
        size = tensor.float().square().mean().sqrt().clamp(min=LEAST_STEP) if tensor.numel() else 0.0
        return tensor.float() + size * step

    def __iter__(self) -> Iterator[str]:
        return iter(self._origin)

    def __len__(self) -> int:
        return len(self._origin)


def _stays_the_same(evaluator: Evaluator, origin: Mapping[str, Tensor], at_origin: Values) -> bool:
    """Whether two other sets of weights give the losses of the origin; False if user code raises there."""
    parameters = {name for name, _ in evaluator.evaluated_model.named_parameters()}
    if not any(origin[name].is_floating_point() for name in parameters):
        return False
    return all(_has_losses_of(evaluator, _Elsewhere(origin, parameters, seed), at_origin) for seed in (1, 2))


def _has_losses_of(evaluator: Evaluator, weights: Mapping[str, Tensor], at_origin: Values) -> bool:
    try:
        moved = evaluator.evaluate_states([weights])
    except Exception:
        return False
    pairs = ((at_origin.mean["loss"], moved.mean["loss"]), (at_origin.stderr["loss"], moved.stderr["loss"]))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def _other_module_called(look: Callable[[], Any], given: nn.Module) -> str:
    """The type of a module with weights that is called although the given model is not; '' if there is none."""
    own, called, others = {id(module) for module in given.modules()}, [], []

    def see(module: nn.Module, _: Any) -> None:
        if id(module) in own:
            called.append(module)
        elif next(module.parameters(), None) is not None:
            others.append(type(module).__name__)

    handle = register_module_forward_pre_hook(see)
    try:
        look()
    finally:
        handle.remove()
    return "" if called or not others else others[0]
