"""THOR: steps preconditioned by Kronecker factors of each layer's Fisher block, which are refreshed at intervals.

Chen et al., "THOR, Trace-based Hardware-driven layer-ORiented natural gradient descent computation", AAAI 2021. With
factors "mindspore-gpu", the steps are those of MindSpore's `nn.thor` on a GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.validation import check_whole
from landscape.training.thor.factors import Blocks, Damping, Factors, Inverse
from landscape.training.thor.formulas import FORMULAS
from landscape.training.thor.inverses import RULES, Calendar, Group, refresh, tell_replaced
from landscape.training.thor.layers import Gatherer, KroneckerLayer, KroneckerLayers, find_layers, list_names

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The options of the optimiser.


class Scaler(Protocol):
    """A `torch.amp.GradScaler`."""

    def get_scale(self) -> float: ...


# The numeric options: the rule as a function and in words.
NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda number: number >= 0, "at least 0"),
    "damping": (lambda number: number > 0, "above 0"),
    "momentum": (lambda number: 0 <= number < 1, "from 0 to below 1"),
    "weight_decay": (lambda number: number >= 0, "at least 0"),
    "growth": (lambda number: number >= 1, "at least 1"),
    "average": (lambda number: 0 <= number < 1, "from 0 to below 1"),
    "first_order": (lambda number: number > 0, "above 0"),
    "clip": (lambda number: number > 0, "above 0"),
    "loss_scale": (lambda number: number > 0, "above 0"),
}


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse numbers that are out of range; each may be a tensor of one element."""
    for name, value in options.items():
        number, (fits, rule) = _number(name, value), NUMBERS[name]
        if not (fits(number) and math.isfinite(number)):
            raise JobError(f"{name}: must be {rule}, and finite, not {number:g}")


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse the options of a group of parameters that are out of range."""
    check_numbers({name: group[name] for name in ("lr", "damping", "momentum", "weight_decay")})


def check_refreshes(refresh: str, split_dim: Any, frequency: Any, growth: float, longest: Any) -> None:
    """Refuse impossible options about which layers are refreshed, and when."""
    if refresh not in RULES:
        raise JobError(f"refresh: unknown {quoted(refresh)}; {nearest(refresh, RULES)}")
    for name, value in (("frequency", frequency), ("split_dim", split_dim), ("longest", longest)):
        if value is not None:
            check_whole(name, value, 1)
    check_numbers({"growth": growth})
    if growth > 1 and longest is None:
        raise JobError("longest: must be given with growth, the steps of an epoch for example")


def _number(name: str, value: Any) -> float:
    """A number, or a tensor of one element."""
    if isinstance(value, bool) or not (isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)):
        raise JobError(f"{name}: must be a number, not {quoted(value)}")
    try:
        return float(value)
    except OverflowError:  # a whole number above all floats
        raise JobError(f"{name}: must be finite, not {quoted(value)}") from None


# ----------------------------------------------------------------------------------------------------
# Curvature in a state dict: tensors, numbers and lists, which `weights_only` reads.

Curvature = tuple[Inverse | None, Factors | None, tuple[float, float] | None, bool]


def saved_layer(layer: KroneckerLayer) -> dict[str, Any]:
    """The curvature of a layer: inverse, averaged factors, traces, and whether it is frozen."""
    return {
        "name": layer.name,
        "shape": [layer.inputs.size, layer.outputs.size],
        "width": [layer.inputs.width, layer.outputs.width],
        "inverse": _pair(layer.inverse),
        "factors": _pair(layer.factors),
        "traces": None if layer.traces is None else list(layer.traces),
        "frozen": layer.frozen,
    }


def layer_from(layer: KroneckerLayer, saved: dict[str, Any]) -> Curvature:
    """The curvature in a result of `saved_layer`, on the layer's device.

    Raises:
        JobError: it belongs to a layer of other sizes, or split into other blocks.
    """
    sizes, widths = [layer.inputs.size, layer.outputs.size], [layer.inputs.width, layer.outputs.width]
    if saved["shape"] != sizes or saved["width"] != widths:
        raise JobError(
            f"optimizer: {layer.name} must have factors of {sizes} in blocks of {widths}, as in its state, not "
            f"{saved['shape']} in blocks of {saved['width']}; take the model and the split_dim that were saved"
        )
    inverse, factors, traces = saved["inverse"], saved["factors"], saved["traces"]
    return (
        None if inverse is None else Inverse(_blocks(inverse["a"], layer), _blocks(inverse["g"], layer)),
        None if factors is None else Factors(_blocks(factors["a"], layer), _blocks(factors["g"], layer)),
        None if traces is None else (traces[0], traces[1]),
        saved["frozen"],
    )


def own_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """THOR's own part of a state dict.

    Raises:
        JobError: the state is that of another optimiser, or incomplete.
    """
    own = state_dict.get("thor")
    if own is None:
        raise JobError("optimizer: must be the state of a THOR, not of another optimiser")
    missing = [name for name in ("steps", "interval", "due", "layers", "norms") if name not in own]
    if missing:
        raise JobError(f"optimizer: must be the whole state of a THOR; it lacks {', '.join(missing)}")
    return dict(own)


def pair_with_saved(own: list[Any], saved: list[Any]) -> list[tuple[Any, Any]]:
    """Each layer with its saved state.

    Raises:
        JobError: the numbers of layers and states differ.
    """
    if len(own) != len(saved):
        raise JobError(f"optimizer: must be the state of a model with {len(own)} such layers, not {len(saved)}")
    return list(zip(own, saved, strict=True))


def _pair(blocks: Inverse | Factors | None) -> dict[str, list[Tensor]] | None:
    return None if blocks is None else {"a": list(blocks.a), "g": list(blocks.g)}


def _blocks(saved: list[Tensor], layer: KroneckerLayer) -> Blocks:
    return tuple(block.to(layer.weight.device, copy=True) for block in saved)


class THOR(Optimizer):
    """Second-order steps with momentum.

    For a layer with weight W [O, I], inputs a and output gradients ĝ of each sample, A = E[aaᵀ] and G = E[ĝĝᵀ] are
    taken from the batch (`landscape.training.thor.factors.Factors` has the scaling by positions), and

        Δ = (G + √λ)⁻¹·∇W·(A + √λ)⁻¹ + weight_decay·W,   M ← momentum·M + Δ,   W ← W − lr·M.

    Both factors are cut into diagonal blocks and inverted by Cholesky. Biases, batch norm, and all layers other than
    Linear, Conv1d, Conv2d, Embedding and LayerNorm take their plain gradient for Δ, times `first_order`.

    Args:
        model: the network; hooks on its layers read their inputs and gradients. The first dimension of a layer's input
            is that of the samples, and the loss is a mean over samples.
        lr: the learning rate.
        damping: λ, or a function from the number of steps done to λ.
        refresh: which layers get new inverses: "frequency" all of them; "thor", "thor_stop" or "thor_nt" those that
            the trace rule selects (`landscape.training.thor.inverses`).
        frequency: steps between refreshes; inverses are stale between.
        growth: multiplies the interval between refreshes after each of them, up to `longest` steps.
        split_dim: the width of the blocks.
        balance: whether to divide λ between A and G by their traces, as K-FAC does
            (`landscape.training.thor.factors.Damping`); THOR adds √λ to both.
        average: the share of the older factors in a moving average; 0: no average.
        first_order: multiplies Δ of parameters that are trained first order: their learning rate over `lr`, since a
            rate for preconditioned steps may be hundreds of times too small for plain gradients. THOR has 1.
        clip: the largest norm of Δ over all parameters; with factors "mindspore-gpu", of the Δ of each parameter.
        loss_scale: the factor of the loss, by which gradients are divided; or the GradScaler. A GradScaler that
            unscales only in `scaler.step(optimizer)` need not be given.
        factors: "exact", or "mindspore-gpu" for those of MindSpore's code for GPUs, on which the rates of
            `SCHEDULES["gpu-8"]` were tuned (`landscape.training.thor.formulas`). The latter are for Linear and Conv2d.
        params: parameters or groups to train, default all; a group may have its own lr, damping, momentum and
            weight_decay.
        process_group: the ranks that train this model together, for example by DistributedDataParallel; default: all
            of torch.distributed, if it is initialised. All of them must step together.

    Raises:
        JobError: an option is out of range, no layer has Kronecker factors, or `factors` cannot be had for a layer.
    """

    # GradScaler then passes its scale and whether a gradient is infinite to `step`, which divides statistics too.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        damping: float | Callable[[int], float] = 0.03,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        refresh: str = "frequency",
        frequency: int = 100,
        growth: float = 1.0,
        longest: int | None = None,
        split_dim: int = 128,
        balance: bool = False,
        average: float = 0.0,
        first_order: float = 1.0,
        clip: float | None = None,
        loss_scale: float | Scaler = 1.0,
        factors: str = "exact",
        params: Iterable[Any] | None = None,
        process_group: Group = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise JobError(f"model: must be a torch.nn.Module, not a {type(model).__name__}; THOR(model, lr)")
        if factors not in FORMULAS:
            raise JobError(f"factors: unknown {quoted(factors)}; {nearest(factors, FORMULAS)}")
        check_refreshes(refresh, split_dim, frequency, growth, longest)
        check_numbers({"average": average, "first_order": first_order})
        if clip not in (None, math.inf):
            check_numbers({"clip": clip})
        if isinstance(loss_scale, int | float):
            check_numbers({"loss_scale": loss_scale})
        elif not hasattr(loss_scale, "get_scale"):
            raise JobError(f"loss_scale: must be a number or a GradScaler, not {quoted(loss_scale)}")
        self.damping_schedule = damping if callable(damping) else None
        first = damping(0) if callable(damping) else damping
        defaults = {"lr": lr, "damping": first, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(model.parameters() if params is None else params, defaults)
        self.factors, self._formula = factors, FORMULAS[factors]
        self._model, self._split_dim, self._kronecker = model, split_dim, KroneckerLayers()
        self._look_at_model()
        self.rule, self.average, self.clip, self.loss_scale = RULES[refresh], average, clip, loss_scale
        self.calendar = Calendar(frequency, growth, longest or math.inf)
        self.balance, self.first_order, self.process_group = balance, first_order, process_group
        self.steps = 0
        self.skipped = 0
        tuned_for = getattr(damping, "factors", factors)
        if tuned_for != factors:
            remedy = "THOR(…, factors=schedule.factors)"
            log.warning("THOR has a damping for factors %r, not for %r; %s", tuned_for, factors, remedy)

    def _look_at_model(self) -> None:
        """Find the layers whose weights are trained, and put hooks on them."""
        trained = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        result = find_layers(self._model, trained, self._split_dim, self._formula).keeping(self._kronecker)
        new = [name for name in result.unsupported if name not in self._kronecker.unsupported]
        if new:
            log.warning("THOR trains first order: %s", list_names(new))
        self._kronecker, self.layers, self.norms = result, result.layers, result.norms
        self._layer_of = {id(layer.weight): layer for layer in self.layers}
        self._norm_of = {id(parameter): norm for norm in self.norms for parameter in norm.module.parameters()}
        self._gatherer = Gatherer(self._model, result, self._formula)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters of the model. Their layers get factors at the next refresh.

        Raises:
            JobError: an option of the group is out of range.
        """
        check_group(self.defaults | param_group)
        super().add_param_group(param_group)
        gatherer = getattr(self, "_gatherer", None)
        if gatherer is not None and gatherer.close.alive:  # neither during construction nor after `close`
            gatherer.close()
            self._look_at_model()

    def close(self) -> None:
        """Remove the hooks from the model. The optimiser can still step, with its present inverses."""
        self._gatherer.close()
        self._begin_step()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step, or none if a gradient or the step itself is not finite.

        Args:
            closure: evaluates the model again, calls backward and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if self.damping_schedule is not None:
                group["damping"] = self.damping_schedule(self.steps)
            check_group(group)  # a NaN from a schedule would end up in the weights
        gradients = self._gradients()
        if self._gatherer.active and self._may_step(gradients):
            self._refresh()
        updates = self._updates(gradients)
        if self._may_step(updates):
            self._move(updates)
            self.steps += 1
            self.skipped = 0
        else:
            self._tell_skipped()
            if self._may_step(gradients):  # the inverses are at fault: refresh them at the next step
                self.calendar.due = self.steps
        self._begin_step()
        return loss

    def _begin_step(self) -> None:
        self._gatherer.clear()
        self._gatherer.active = self._gatherer.close.alive and self.calendar.is_due(self.steps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set gradients to none, and clear the statistics of backward passes since the last step."""
        super().zero_grad(set_to_none)
        self._gatherer.clear()

    def _gradients(self) -> dict[nn.Parameter, Tensor]:
        """The gradient of every parameter that has one, without the scale of the loss."""
        scale = self._gradient_scale()
        parameters = [
            parameter for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        return {parameter: parameter.grad if scale == 1 else parameter.grad / scale for parameter in parameters}

    def _gradient_scale(self) -> float:
        """By what gradients must still be divided; a GradScaler in `loss_scale` has divided them already."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            return float(scale)
        return self.loss_scale if isinstance(self.loss_scale, int | float) else 1.0

    def _statistics_scale(self) -> float:
        """The factor of the loss when the statistics were gathered."""
        if not isinstance(self.loss_scale, int | float):
            return self.loss_scale.get_scale()
        if hasattr(self, "found_inf") and getattr(self, "grad_scale", None) is None:
            raise JobError("loss_scale: must be the GradScaler where `unscale_` is called; THOR(…, loss_scale=scaler)")
        return self._gradient_scale()

    def _may_step(self, tensors: dict[nn.Parameter, Tensor]) -> bool:
        """Whether all elements are finite, and the GradScaler found no infinite gradient."""
        if float(getattr(self, "found_inf", 0.0)):
            return False
        return not tensors or bool(nn.utils.get_total_norm(tensors.values()).isfinite())

    def _tell_skipped(self) -> None:
        """Warn at the first of successive skipped steps, and at every hundredth; not while a GradScaler adapts."""
        self.skipped += 1
        if self.skipped % 100 == 1 and not hasattr(self, "found_inf"):
            log.warning("THOR skips step %d, whose gradients are not finite (%d in a row)", self.steps, self.skipped)

    def _refresh(self) -> None:
        """Make new inverses of the layers that need them, from the statistics gathered since the last step."""
        tell_replaced(self.layers, self._model)
        scale = self._statistics_scale()
        damping = {id(parameter): group["damping"] for group in self.param_groups for parameter in group["params"]}
        dampings = [Damping(damping[id(layer.weight)], self.balance) for layer in self.layers]
        sources = self.layers, dampings, self.norms
        refresh(*sources, self._formula, self.rule, self.average, scale, self.process_group)
        self.calendar.move_on()

    def _updates(self, gradients: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """Δ of every parameter with a gradient: preconditioned, then decayed, then clipped."""
        updates = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in gradients:
                    update = self._preconditioned(parameter, gradients[parameter], group["damping"])
                    if group["weight_decay"]:
                        update = update.add(parameter, alpha=group["weight_decay"])
                    is_plain = not (id(parameter) in self._layer_of or id(parameter) in self._norm_of)
                    updates[parameter] = update * self.first_order if is_plain and self.first_order != 1 else update
        if self.clip is not None and updates:
            whole = None if self._formula.clips_tensors else nn.utils.get_total_norm(updates.values())
            for parameter, update in updates.items():
                norm = update.norm() if whole is None else whole
                updates[parameter] = update * (self.clip / norm).clamp(max=1.0)
        return updates

    def _preconditioned(self, parameter: nn.Parameter, gradient: Tensor, damping: float) -> Tensor:
        layer, norm = self._layer_of.get(id(parameter)), self._norm_of.get(id(parameter))
        if layer is not None:
            return layer.preconditioned(gradient)
        return gradient if norm is None else norm.preconditioned(gradient, damping)

    def _move(self, updates: dict[nn.Parameter, Tensor]) -> None:
        """M ← momentum·M + Δ, W ← W − lr·M; the first M is Δ."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in updates:
                    continue
                state, update = self.state[parameter], updates[parameter]
                if group["momentum"]:
                    if "momentum_buffer" in state:
                        update = state["momentum_buffer"].mul_(group["momentum"]).add_(update)
                    else:
                        state["momentum_buffer"] = update = update.clone()
                parameter.add_(update, alpha=-float(group["lr"]))

    def state_dict(self) -> dict[str, Any]:
        """Momenta and groups as of any optimiser; `thor` holds steps, inverses, factors and frozen layers."""
        state = super().state_dict()
        state["thor"] = {
            "factors": self.factors,
            "steps": self.steps,
            "interval": self.calendar.interval,
            "due": self.calendar.due,
            "layers": [saved_layer(layer) for layer in self.layers],
            "norms": [norm.samples for norm in self.norms],
        }
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Refuse copying and pickling: a copy would have no hooks on a model."""
        raise JobError("THOR: cannot be copied or pickled; make THOR(model, …) of the copy and load state_dict()")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue as the optimiser with this state would have.

        Raises:
            JobError: the state is that of another optimiser, of other `factors`, or of a model with other layers.
        """
        own = own_state(state_dict)
        saved_factors = own.get("factors", "exact")  # a version without the option
        if saved_factors != self.factors:
            raise JobError(
                f"optimizer: must have factors {quoted(saved_factors)}, as in its state, not {quoted(self.factors)}; "
                "take those that were saved"
            )
        layers = [layer_from(layer, saved) for layer, saved in pair_with_saved(self.layers, own["layers"])]
        rest = {name: value for name, value in state_dict.items() if name != "thor"}
        super().load_state_dict(rest)
        for layer, (inverse, factors, traces, frozen) in zip(self.layers, layers, strict=True):
            layer.inverse, layer.factors, layer.traces, layer.frozen = inverse, factors, traces, frozen
        for norm, samples in pair_with_saved(self.norms, own["norms"]):
            norm.samples = samples
        self.steps, self.calendar.interval, self.calendar.due = own["steps"], own["interval"], own["due"]
        self._begin_step()


# ----------------------------------------------------------------------------------------------------
# The rates and dampings of THOR's published trainings of ResNet-50 on ImageNet.


def thor_learning_rate(
    epoch: float, lr_init: float, decay: float, total: float, halved_from: float | None = 39
) -> float:
    """lr_init·(1 − epoch/total)^decay, halved from epoch `halved_from` on and once more an epoch later.

    >>> [round(thor_learning_rate(epoch, 0.05803, 4.0839, 53), 6) for epoch in (0, 20, 39, 40, 53)]
    [0.05803, 0.008382, 0.000126, 4.7e-05, 0.0]

    Args:
        epoch: epochs done, with fractions; beyond `total` the rate is 0.
    """
    rate = float(lr_init * max(1 - epoch / total, 0.0) ** decay)
    if halved_from is not None:
        rate *= 0.5 ** ((epoch >= halved_from) + (epoch >= halved_from + 1))
    return rate


def thor_damping(epoch: float, init: float, rate: float) -> float:
    """init·rate^(epoch/10).

    >>> [round(thor_damping(epoch, 0.03, 0.50036), 6) for epoch in (0, 10, 40)]
    [0.03, 0.015011, 0.00188]
    """
    return float(init * rate ** (epoch / 10))


@dataclass(frozen=True)
class Schedule:
    """Learning rate and damping over a training, by `thor_learning_rate` and `thor_damping`.

        damping = schedule.damping_at(steps_per_epoch)
        optimizer = THOR(model, lr=schedule.lr_init, damping=damping, factors=schedule.factors)
        scheduler = LambdaLR(optimizer, schedule.factor_at(steps_per_epoch))  # scheduler.step() after every step

    Attributes:
        lr_init, decay, total: of the learning rate.
        damping_init, rate: of the damping.
        epochs: the length of the training.
        halved_from: the first epoch with a halved learning rate; None: never halved.
        factors: THOR's option with which rate and damping were tuned.
    """

    lr_init: float
    decay: float
    total: float
    damping_init: float
    rate: float
    epochs: int
    halved_from: float | None = 39
    factors: str = "exact"

    def learning_rate(self, epoch: float) -> float:
        """The learning rate after some epochs."""
        return thor_learning_rate(epoch, self.lr_init, self.decay, self.total, self.halved_from)

    def damping(self, epoch: float) -> float:
        """The damping after some epochs."""
        return thor_damping(epoch, self.damping_init, self.rate)

    def factor_at(self, steps_per_epoch: int) -> Callable[[int], float]:
        """The function for `torch.optim.lr_scheduler.LambdaLR`, stepped after every step: the rate over `lr_init`."""
        return lambda step: self.learning_rate(step / steps_per_epoch) / self.lr_init

    def damping_at(self, steps_per_epoch: int) -> Callable[[int], float]:
        """The function for THOR's `damping`: from the number of steps to the damping."""
        return DampingOfSteps(self, steps_per_epoch)


@dataclass(frozen=True)
class DampingOfSteps:
    """The damping of a schedule after some steps. THOR warns if it has other `factors` than the schedule."""

    schedule: Schedule
    steps_per_epoch: int

    @property
    def factors(self) -> str:
        """Those of the schedule."""
        return self.schedule.factors

    def __call__(self, step: int) -> float:
        """The damping after `step` steps."""
        return self.schedule.damping(step / self.steps_per_epoch)


# ResNet-50 on ImageNet, batches of 32 on each of 8 cards: 5,004 steps per epoch, frequency 834, momentum 0.9, weight
# decay 5e-4, label smoothing 0.1. MindSpore's factors on Ascend are the exact ones, but each layer's step there has
# another scale.
SCHEDULES = {
    "ascend-8": Schedule(0.05803, 4.0839, 53, 0.03, 0.50036, 45),
    "gpu-8": Schedule(0.05672, 4.9687, 50, 0.02345, 0.5467, 40, factors="mindspore-gpu"),
}
