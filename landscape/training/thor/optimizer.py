"""THOR: steps preconditioned by Kronecker factors of each layer's Fisher block, which are refreshed now and then.

Chen et al., "THOR, Trace-based Hardware-driven layer-ORiented natural gradient descent computation", AAAI 2021; the
steps are those of MindSpore's `nn.thor`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from landscape.core.errors import JobError
from landscape.training.thor.gathering import Gatherer
from landscape.training.thor.inverses import refresh, tell_replaced
from landscape.training.thor.layers import Found, find_layers, listed
from landscape.training.thor.optim_inverses import Damping
from landscape.training.thor.options import Scaler, check_group, check_options
from landscape.training.thor.rules import RULES, Calendar
from landscape.training.thor.saved import layer_from, own_state, paired, saved_layer
from landscape.training.thor.sharing import Group

log = logging.getLogger("landscape")


class THOR(Optimizer):
    """Second-order steps with momentum.

    For a layer with weight W [O, I], inputs a and output gradients ĝ of each sample, A = E[aaᵀ] and G = E[ĝĝᵀ] are
    taken from the batch (`landscape.training.thor.statistics.Factors` has the scaling by positions), and

        Δ = (G + √λ)⁻¹·∇W·(A + √λ)⁻¹ + weight_decay·W,   M ← momentum·M + Δ,   W ← W − lr·M.

    Both factors are cut into diagonal blocks and inverted by Cholesky. Biases and batch norm, and whatever is not
    Linear, Conv1d, Conv2d, Embedding or LayerNorm, take their plain gradient for Δ, times `first_order`.

    Args:
        model: whose layers are looked at in their backward passes. The first dimension of what layers take is the
            sample's, and the loss is a mean over samples.
        lr: the learning rate.
        damping: λ, or a function of the number of steps done that gives λ.
        refresh: which layers get new inverses: "frequency" all of them; "thor", "thor_stop" or "thor_nt" those that
            the trace rule names (`landscape.training.thor.rules`).
        frequency: steps between refreshes; inverses are stale between.
        growth: multiplies the interval between refreshes after each of them, up to `longest` steps.
        split_dim: the width of the blocks.
        balance: shares λ between A and G by their traces, as K-FAC does
            (`landscape.training.thor.optim_inverses.Damping`); THOR adds √λ to either.
        average: the share of the older factors in a moving average; 0 takes each refresh's own.
        first_order: multiplies Δ of what is trained first order: its learning rate over `lr`, since one that fits
            preconditioned steps may be hundreds of times too small for plain gradients. THOR has 1.
        clip: the largest norm of Δ over all parameters.
        loss_scale: a number that the loss was multiplied by: gradients are divided by it. Or the GradScaler; one that
            unscales in `scaler.step(optimizer)` alone needs not be given.
        params: parameters or groups to train, default all; a group may have its own lr, damping, momentum and
            weight_decay.
        process_group: the ranks that train this model together, by DistributedDataParallel for example; default all
            of torch.distributed where it is initialised. All of them must step together.

    Raises:
        JobError: an option is out of range, or no layer has Kronecker factors.
    """

    # GradScaler then hands its scale and what it found to be infinite to `step`, which divides statistics too.
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
        params: Iterable[Any] | None = None,
        process_group: Group = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise JobError(f"model: must be a torch.nn.Module, not a {type(model).__name__}; THOR(model, lr)")
        check_options(refresh, frequency, growth, longest, split_dim, average, first_order, clip, loss_scale)
        self.damping_schedule = damping if callable(damping) else None
        first = damping(0) if callable(damping) else damping
        defaults = {"lr": lr, "damping": first, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(model.parameters() if params is None else params, defaults)
        self._model, self._split_dim, self._found = model, split_dim, Found()
        self._look_at_model()
        self.rule, self.average, self.clip, self.loss_scale = RULES[refresh], average, clip, loss_scale
        self.calendar = Calendar(frequency, growth, longest or math.inf)
        self.balance, self.first_order, self.process_group = balance, first_order, process_group
        self.steps = 0
        self.skipped = 0

    def _look_at_model(self) -> None:
        """Find the layers whose weights are trained, and put hooks on them."""
        trained = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        found = find_layers(self._model, trained, self._split_dim).keeping(self._found)
        new = [name for name in found.unsupported if name not in self._found.unsupported]
        if new:
            log.warning("THOR trains first order: %s", listed(new))
        self._found, self.layers, self.norms = found, found.layers, found.norms
        self._layer_of = {id(layer.weight): layer for layer in self.layers}
        self._norm_of = {id(each): norm for norm in self.norms for each in norm.module.parameters()}
        self._gatherer = Gatherer(self._model, found)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters of the model. Their layers get factors at the next refresh.

        Raises:
            JobError: an option of the group is out of range.
        """
        check_group(self.defaults | param_group)
        super().add_param_group(param_group)
        gatherer = getattr(self, "_gatherer", None)
        if gatherer is not None and gatherer.close.alive:  # not while THOR is made, and not after its end
            gatherer.close()
            self._look_at_model()

    def close(self) -> None:
        """Take the hooks off the model. The optimiser can still step, with the inverses that it has."""
        self._gatherer.close()
        self._begin_step()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step, or none where a gradient or the step itself is not finite.

        Args:
            closure: evaluates the model again, calls backward and gives the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if self.damping_schedule is not None:
                group["damping"] = self.damping_schedule(self.steps)
            check_group(group)  # a schedule's nan would end in the weights
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
            if self._may_step(gradients):  # the inverses are at fault, and steps no longer count up to their refresh
                self.calendar.due = self.steps
        self._begin_step()
        return loss

    def _begin_step(self) -> None:
        self._gatherer.clear()
        self._gatherer.active = self._gatherer.close.alive and self.calendar.is_due(self.steps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set gradients to none, and forget the statistics of backward passes since the last step."""
        super().zero_grad(set_to_none)
        self._gatherer.clear()

    def _gradients(self) -> dict[nn.Parameter, Tensor]:
        """The gradient of every parameter that has one, of the loss without its scale."""
        scale = self._gradient_scale()
        found = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        return {each: each.grad if scale == 1 else each.grad / scale for each in found}

    def _gradient_scale(self) -> float:
        """By what gradients are still to be divided: a GradScaler that is given has divided them already."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            return float(scale)
        return self.loss_scale if isinstance(self.loss_scale, int | float) else 1.0

    def _statistics_scale(self) -> float:
        """By what the loss was multiplied when the statistics were gathered."""
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
        """One line per row of skipped steps, and one more per hundred; none where a GradScaler looks for its scale."""
        self.skipped += 1
        if self.skipped % 100 == 1 and not hasattr(self, "found_inf"):
            log.warning("THOR skips step %d, whose gradients are not finite (%d in a row)", self.steps, self.skipped)

    def _refresh(self) -> None:
        """Make new inverses of the layers that need them, from the statistics gathered since the last step."""
        tell_replaced(self.layers, self._model)
        scale = self._statistics_scale()
        damping = {id(each): group["damping"] for group in self.param_groups for each in group["params"]}
        dampings = [Damping(damping[id(layer.weight)], self.balance) for layer in self.layers]
        refresh(self.layers, dampings, self.norms, self.rule, self.average, scale, self.process_group)
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
            norm = nn.utils.get_total_norm(updates.values())
            share = (self.clip / norm).clamp(max=1.0)
            updates = {parameter: update * share for parameter, update in updates.items()}
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
        """Momenta and groups as any optimiser's; `thor` holds steps, inverses, factors and what is frozen."""
        state = super().state_dict()
        state["thor"] = {
            "steps": self.steps,
            "interval": self.calendar.interval,
            "due": self.calendar.due,
            "layers": [saved_layer(layer) for layer in self.layers],
            "norms": [norm.samples for norm in self.norms],
        }
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied and pickled: a copy would have no hooks on a model.

        Raises:
            JobError: always.
        """
        raise JobError("THOR: cannot be copied or pickled; make THOR(model, …) of the copy and load state_dict()")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as the optimiser would have whose state this is.

        Raises:
            JobError: it was another optimiser's, or that of a model with other layers.
        """
        own = own_state(state_dict)
        layers = [layer_from(layer, saved) for layer, saved in paired(self.layers, own["layers"])]
        rest = {name: value for name, value in state_dict.items() if name != "thor"}
        super().load_state_dict(rest)
        for layer, (inverse, factors, traces, frozen) in zip(self.layers, layers, strict=True):
            layer.inverse, layer.factors, layer.traces, layer.frozen = inverse, factors, traces, frozen
        for norm, samples in paired(self.norms, own["norms"]):
            norm.samples = samples
        self.steps, self.calendar.interval, self.calendar.due = own["steps"], own["interval"], own["due"]
        self._begin_step()
