"""A training watched by rules: weights, outputs, gradients and changes of weights, at some of its steps."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from landscape.model.layer_rules import RULES, Finding, Target, Tensors, Thresholds, findings, others_in_words
from landscape.model.layer_statistics import Statistics, change_of, statistics_of
from landscape.model.layer_watch import NetworkWatcher

FIRST, EVERY = 1, 100  # the first step that is watched, and how many lie between two
HARDLY_MOVING = ("weight_not_changed", "weight_change_too_small")
MOST_RECORDED = 20  # findings of a step that its line in the history names
log = logging.getLogger("landscape")


class TrainingWatch:
    """Asks rules about the steps of a training that are due; others cost it nothing.

    A step is prepared for when the one before it has ended, by `prepare`, and judged by `judge` after the optimiser has
    taken it. Gradients are those that the optimiser is given, which the loop may drop right after. Outputs are those of
    modules, called with gradients: what is evaluated between steps does not count.

    Args:
        model: the network inside its wrappers.
        called: the network as the loop calls it, whose wrappers say whether its modules can be seen.
        thresholds: of the rules, by name.
        every: after how many steps one is watched again.
        listed: steps that are watched besides.
        done: steps that were taken before.
    """

    def __init__(
        self, model: nn.Module, called: nn.Module, optimizer: Any, thresholds: Thresholds, every: int = EVERY,
        listed: Collection[int] = (), done: int = 0,
    ) -> None:  # fmt: skip
        self._model, self._thresholds, self._every, self._listed = model, thresholds, every, frozenset(listed)
        self._targets: set[Target] = {RULES[name].target for name in thresholds}
        self._told: set[tuple[str, str]] = set()
        self._due, self._gradients = False, dict[str, Tensors]()
        self._before, self._still = dict[str, Tensor](), set[tuple[str, str]]()
        self._sees_outputs = self._may_see_outputs(called)
        self._watcher: NetworkWatcher | None = None  # while it is entered
        self._leave: Callable[[], Any] = lambda: None  # takes its hooks away
        hook: Callable[..., Any] | None = getattr(optimizer, "register_step_pre_hook", None)
        self._hooked, self._stepped = hook is not None, False
        if hook is not None:
            # Weakly, as an optimiser may outlive the training.
            me = weakref.ref(self)
            hook(lambda optimizer, *_: watch._at_step(optimizer) if (watch := me()) is not None else None)
        self.pending = self._tell(findings("weights", self._weights(), thresholds), done)  # to begin with

    def prepare(self, step: int) -> None:
        """The step with this number comes next."""
        self._due = step == FIRST or step % self._every == 0 or step in self._listed
        self._stepped = not self._hooked
        if not self._due:
            return
        if "changes" in self._targets:
            self._before = {name: tensor.detach().clone() for name, tensor in self._trained()}
        if self._sees_outputs:
            self._watcher = NetworkWatcher(self._model, operations=False, numbered=False, when=torch.is_grad_enabled)
            self._watcher.__enter__().begin()
            # A training that ends before this step leaves no hooks behind.
            self._leave = weakref.finalize(self, self._watcher.__exit__)

    def judge(self, step: int) -> list[dict[str, Any]]:
        """What fires at the step that was just taken, as the history holds it; each is warned of once."""
        pending, self.pending = self.pending, []
        if not self._due:
            return pending[:MOST_RECORDED]
        self._due, found = False, list[Finding]()
        if self._watcher is not None:
            self._leave()
            seen, self._watcher = [layer.seen() for layer in self._watcher.layers.values()], None
            found += findings("outputs", seen, self._thresholds)
        if "gradients" in self._targets:
            if not self._hooked:
                self._look_at_gradients()
            # Backwards, as they are computed: the first one is where it began.
            found += findings("gradients", list(self._gradients.values())[::-1], self._thresholds)
            self._gradients = {}
        found += findings("weights", self._weights(), self._thresholds)
        found += self._lasting(findings("changes", self._changes(), self._thresholds))
        return [*pending, *self._tell(found, step)][:MOST_RECORDED]

    def _may_see_outputs(self, called: nn.Module) -> bool:
        if "outputs" not in self._targets:
            return False
        compiled = any(
            hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
            for each in called.modules()
        )
        if compiled:
            log.warning("watch: outputs of layers are not seen in a model that torch.compile has compiled")
        return not compiled

    def _trained(self) -> list[tuple[str, Tensor]]:
        named = self._model.named_parameters()
        return [(name, each) for name, each in named if each.requires_grad and each.is_floating_point()]

    def _weights(self) -> list[Tensors]:
        if "weights" not in self._targets:
            return []
        return [Tensors(name, statistics_of(each), dimensions=each.dim()) for name, each in self._trained()]

    def _at_step(self, optimizer: Any) -> None:
        """The optimiser is about to take a step; a fused one leaves it to its kernel to undo the scale of a loss."""
        scale, skips = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not self._due or (skips is not None and float(skips)):
            return
        self._stepped = True
        if "gradients" in self._targets:
            self._look_at_gradients(1.0 if scale is None else float(scale))

    def _look_at_gradients(self, scale: float = 1.0) -> None:
        for name, parameter in self._trained():
            if parameter.grad is not None:
                gradient = parameter.grad if scale == 1.0 else parameter.grad / scale
                self._gradients[name] = Tensors(name, statistics_of(gradient), dimensions=parameter.dim())

    def _changes(self) -> list[Tensors]:
        before, self._before = self._before, {}
        return [
            Tensors(name, Statistics(), dimensions=each.dim(), change=change_of(before[name], each))
            for name, each in self._trained()
            if name in before
        ]

    def _lasting(self, found: list[Finding]) -> list[Finding]:
        """Weights that hardly move count at the second watched step running, as momentum has to begin."""
        if not self._stepped:  # gradients are being accumulated, or the scale of the loss was too large
            return [each for each in found if each.rule not in HARDLY_MOVING]
        still = {(each.layer, each.rule) for each in found if each.rule in HARDLY_MOVING}
        lasting, self._still = still & self._still, still
        return [each for each in found if each.rule not in HARDLY_MOVING or (each.layer, each.rule) in lasting]

    def _tell(self, found: list[Finding], step: int) -> list[dict[str, Any]]:
        """Warn in one line of what was not warned of before; what was found, as the history holds it."""
        new = [each for each in found if (each.layer, each.rule) not in self._told]
        self._told |= {(each.layer, each.rule) for each in new}
        if new:
            others = others_in_words([(each.layer, each.rule) for each in new[1:]])
            log.warning("watch: step %d: %s%s", step, new[0].text, others)
        return [_recorded(each) for each in found]


def _recorded(finding: Finding) -> dict[str, Any]:
    plain: Mapping[str, Any] = finding.plain()
    return {name: plain[name] for name in ("rule", "layer", "value")}
