"""Evaluate points θ(α, β) = θ₀ + α·d₁ + β·d₂: the observables there, their means and standard errors."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import Interrupted
from landscape.core.grid import Floats
from landscape.core.plan import Engine, OriginIn, Plan
from landscape.evaluation.engines.base import Rewrite, RewriteTarget, arithmetic, wait
from landscape.evaluation.evaluation_order import Point, Walk, walk_of
from landscape.evaluation.feed import SamplesChanged, UnchangedSamples, UnseenWriteError, batching_of, make_feed
from landscape.evaluation.reduction import Before, Pieces, Places, Reduction, Values, terms_of
from landscape.evaluation.running_model import LoadedModel, RunningModel, layouts_of
from landscape.evaluation.weights import MovingWeights
from landscape.model.parameters import State
from landscape.problem.batches import Batch
from landscape.problem.batches import Samples as ChosenSamples
from landscape.problem.supervised import Observe
from landscape.surface.accuracy import PILOT, blocks_with

Result = TypeVar("Result")


class Evaluator:
    """The model of a problem, its samples on the device, and the means to set weights and observe.

    Args:
        model: is copied; the caller's is never touched.
        samples: the chosen samples, or a batch of tensors that holds all of them.
        plan: the arithmetic, see `Plan`.
        device: where to compute, such as `cpu` or `cuda:0`.
        origin: θ₀.
        directions: the axes; coordinates of points are relative to them.
        on_point: is called before each point, for progress; an exception that it raises ends the evaluation.
        limit: bytes of samples above which they stream to the device, see `make_feed`.
        origin_in: where θ₀ and the directions that are held are kept, see `MovingWeights`.
        shared_over: a device mesh over which the batches are shared out, see `Problem`.

    Raises:
        JobError, ValueError: the plan's engine cannot run this model here.
    """

    def __init__(
        self, model: nn.Module, samples: ChosenSamples | Batch, observe: Observe, plan: Plan, device: torch.device,
        origin: State, directions: Sequence[State], on_point: Callable[[], None] = lambda: None,
        limit: int | None = None, origin_in: OriginIn | None = None, shared_over: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.observe, self._plan, self.device = model, observe, plan, device
        self.on_point, self._loaded = on_point, LoadedModel(model, plan, device)
        self._origin_in, self._shared_over, self._limit = origin_in, shared_over, limit
        self._feed = make_feed(samples, device, self._loaded.dtype, limit)
        self._unchanged, self.counts = UnchangedSamples(self._feed), self._feed.counts
        self._set_batches(plan.batch_size)
        self._current: RunningModel | None = None  # started when it is needed
        self.load(origin, directions)

    @property
    def plan(self) -> Plan:
        """The arithmetic of the values; the batches in use may be smaller than planned, see `within_memory`."""
        return self._plan

    def load(self, origin: State, directions: Sequence[State]) -> None:
        """Go on with another origin and other axes."""
        self._origin, self.directions = origin, directions
        self._files = _files_of(origin, directions)
        self._restart()

    def origin(self, blocks: range | None = None) -> Values:
        """The observables at θ₀, computed once, as a point of the landscape; raises what user code raises there.

        Args:
            blocks: the first blocks of samples, if not all count.
        """
        return self._compute_undisturbed(
            lambda: self._collect(lambda: iter([self._at_origin(blocks)]), np.arange(1), self._reduction(blocks=blocks))
        )

    def use(self, engine: Engine, batch_size: int | None = None) -> None:
        """Go on with another engine, and in other batches.

        Raises:
            JobError, ValueError: the engine cannot run this model here; later calls fail until another engine is used.
        """
        same_layouts = layouts_of(engine) == layouts_of(self.plan.engine)
        weights = self._current.target.weights if self._current is not None and same_layouts else None
        self._plan = replace(self.plan, engine=engine, batch_size=batch_size or self.plan.batch_size)
        self._set_batches(self.plan.batch_size)
        self._restart(weights)

    def evaluate(
        self, points: Floats, *, rise: bool = False, before: Before | None = None, keep: bool = False,
        blocks: range | None = None,
    ) -> Values:  # fmt: skip
        """The observables at `points` [P, axes]; with `rise` the error of the rise, with `keep` all losses.

        Args:
            before: known moments of the first blocks of samples, which are not evaluated again.
            blocks: the first blocks of samples, if not all count.
        """
        # Row by row: the points of a row share most of the work of setting their weights.
        order = np.lexsort(points.T[::-1]) if points.shape[1] else np.arange(len(points))
        known = before and Before(before.blocks, before.moments[order])

        def compute() -> Values:
            reduction = self._reduction(self._known_at_origin() if rise else None, known, keep, blocks)
            walk = self.walk(known, blocks)
            return self._collect(partial(walk.points, points[order].tolist()), np.argsort(order), reduction)

        values = self._compute_undisturbed(compute)
        return values if rise else replace(values, rise_stderr=None)

    def evaluate_blocks(self, parts: Sequence[tuple[Floats, range]]) -> list[Values]:
        """The observables at points [P, axes] over some consecutive blocks of samples, part by part.

        Returns:
            Of each part the values over its blocks together; `of_blocks` holds the moments of each block, with the
            rises of all observables, and `samples` or `of_terms` the rise of the loss of every sample.

        Raises:
            Exception: whatever user code raises at a point or at the origin.
        """

        def values_of(points: Floats, blocks: range) -> Values:
            order = np.lexsort(points.T[::-1]) if points.shape[1] else np.arange(len(points))
            part, walk = self._batching.part(blocks), self.walk(blocks=blocks)
            reduction = Reduction(part, self._at_origin(blocks), terms_of(self.observe), None, keep=True, apart=True)
            return self._collect(partial(walk.points, points[order].tolist()), np.argsort(order), reduction)

        found: list[Values] = []

        def compute() -> None:
            found[:] = [values_of(*part) for part in parts]

        # The samples are checked once for all parts: that reads all of them.
        self._compute_undisturbed(compute)
        return found

    @property
    def reference_blocks(self) -> range | None:
        """The blocks whose values every process must reproduce, if these are not those of all samples."""
        if self.plan.reduction != "growing":
            return None
        return range(blocks_with(PILOT, np.array(self.block_ends)))

    @property
    def reference_batches(self) -> int | None:
        """How many batches these blocks have; None if all count."""
        return None if self.reference_blocks is None else self._batching.of_block(self.reference_blocks.stop)

    @property
    def block_ends(self) -> tuple[int, ...]:
        """The number of samples up to the end of each block."""
        return self._batching.ends

    def evaluate_states(self, states: Sequence[State], before: Before | None = None) -> Values:
        """The observables at whole sets of weights, such as the snapshots of a trajectory."""
        try:
            order, reduction = np.arange(len(states)), partial(self._reduction, None, before)
            return self._compute_undisturbed(
                lambda: self._collect(partial(self.walk(before).states, states), order, reduction())
            )
        finally:
            self._running().leave_states()

    def within_memory(self, compute: Callable[[], Result]) -> Result:
        """Call `compute`; while memory does not suffice, halve the batch and call it again.

        Batches that the data itself cuts stay whole, and so do those of a model over several processes, of which one
        alone may run out: then that raises at once. Each call starts from the planned batch size; `batch_size` is
        afterwards the one that was used. Values of other batch sizes agree up to rounding only.
        """
        if self.batch_size != self.plan.batch_size:
            self._use_batches(self.plan.batch_size)
        while True:
            try:
                return compute()
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                fixed = self.batch_size == 1 or self._feed.samples.cuts or self._loaded.is_sharded
                if fixed or not is_out_of_memory(error):
                    raise
            self._use_batches(self.batch_size // 2)

    def plan_with_fitting_batches(self) -> Plan:
        """Make the batch size that `within_memory` ended with the planned one, and return the plan with it."""
        self._plan = replace(self.plan, batch_size=self.batch_size)
        return self.plan

    def observe_batches(
        self, count: int, points: Sequence[Point], first: int = 0
    ) -> tuple[list[dict[str, float]], float]:  # fmt: skip
        """The mean observables over `count` batches from the `first` at points, and the seconds of one of these points.

        The time includes the setting of weights. Samples that user code writes to are not noticed.
        """
        # Recomputing statistics at a point costs the same with every engine.
        walk = replace(self.walk(), batches=partial(self._feed.batches, count, first), recalibrates=False)
        with arithmetic(self.plan, self.device), torch.no_grad():
            wait(self.device)
            start = time.perf_counter()
            observed = list(walk.points(points))
            wait(self.device)
            return [_means(pieces) for pieces in observed], (time.perf_counter() - start) / len(points)

    def twin(self, plan: Plan) -> Evaluator:
        """Another evaluator of the same landscape with another plan; it shares the samples if possible."""
        of_problem = self.model, self._feed.samples, self.observe
        of_landscape = self._origin, self.directions
        return Evaluator(
            *of_problem, plan, self.device, *of_landscape, self.on_point, self._limit, self._origin_in,
            self._shared_over,
        )  # fmt: skip

    @property
    def weights_at_origin(self) -> State:
        """θ₀, as it was given."""
        return self._origin

    @property
    def held_samples(self) -> ChosenSamples:
        """All samples, on the device where they are resident."""
        return self._feed.samples

    @property
    def samples(self) -> int:
        """The number of samples that every value is the mean over."""
        return self.held_samples.length

    @property
    def batches(self) -> int:
        """How many batches the samples are split into now."""
        return len(self._feed)

    @property
    def has_equal_batches(self) -> bool:
        """Whether each batch costs as much as the first and needs no more memory, but for a smaller last one."""
        cut = self._feed.samples.cuts is not None or self._feed.counts is not None  # by the data itself
        return self.resident and self.plan.reduction == "blocks" and not cut

    @property
    def is_over_processes(self) -> bool:
        """Whether other processes have to evaluate the same batches at the same time."""
        return self._loaded.is_sharded or self._shared_over is not None

    @property
    def resident(self) -> bool:
        """Whether all samples are on the device, and stay where they are."""
        return self._feed.resident

    @property
    def evaluated_model(self) -> nn.Module:
        """The private copy of the model that is evaluated."""
        return self._loaded.model

    @contextlib.contextmanager
    def lent_model(self) -> Iterator[nn.Module]:
        """The private copy of the model without the engine, for the block: its weights may be set, and are set anew.

        A large model has room for no further copy.
        """
        self._stop()
        yield self._loaded.model
        self._loaded.state.restore()

    @property
    def target(self) -> RewriteTarget:
        """The model with its weights and batches, in which the engine is installed."""
        return self._running().target

    @property
    def weights(self) -> MovingWeights:
        """The model's weights, which points set."""
        return self.target.weights

    @property
    def rewrites(self) -> Mapping[str, Rewrite]:
        """The rewrites that the engine has installed in the model, by name."""
        return self._running().rewrites

    def possible_options(self) -> tuple[str, ...]:
        """The engine options that would change something for this model."""
        return self._running().possible_options()

    def _set_batches(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._batching = batching_of(self.samples, self.plan, batch_size, self._feed.samples.cuts)
        self._feed.split(self._batching.edges)

    def _use_batches(self, batch_size: int) -> None:
        weights = self._running().target.weights
        self._stop()
        self._set_batches(batch_size)
        self._current = self._start(weights)

    def _restart(self, weights: MovingWeights | None = None) -> None:
        # By batch size, as other batches round differently, and by block.
        self._origin_pieces: dict[int, dict[int, Pieces]] = {}
        self._stop()
        if weights is not None:
            self._current = self._start(weights)
        self._running()

    def _stop(self) -> None:
        if self._current is not None:
            self._current.close()
        self._current = None  # frees the engine's memory
        if self.device.type == "cuda":
            gc.collect()  # a traced graph is in a cycle with its layers
            torch.cuda.empty_cache()

    def _running(self) -> RunningModel:
        if self._current is None:
            of_landscape = self._origin, self.directions
            self._current = self._start(self._loaded.place(*of_landscape, self.plan.engine, self._origin_in))
        return self._current

    def _start(self, weights: MovingWeights) -> RunningModel:
        if self.plan.engine != Engine():
            weights.set_point([0.0] * weights.axes)  # tracing keeps what user code computes from them: always the same
        feed, loaded = self._feed, self._loaded  # the closures below must not keep this evaluator alive
        target = RewriteTarget(
            loaded.model, loaded.state, weights, self.observe, self.plan, self.device, lambda: next(feed.batches(1))[1],
            feed.resident, loaded.hides_writes, feed.counts, feed.same_shapes, loaded.activations,
        )  # fmt: skip
        return RunningModel(loaded, target)

    def walk(self, before: Before | None = None, blocks: range | None = None) -> Walk:
        """The engine's order of computing points, starting after the known blocks of samples.

        Args:
            blocks: the consecutive blocks to compute; default: all, or those that are not known.
        """
        if self._running().lacks_ranges:
            with arithmetic(self.plan, self.device), torch.no_grad():
                self._walk_over(range(len(self._batching.blocks))).take_ranges()
        return self._walk_over(blocks or range(before.blocks if before else 0, len(self._batching.blocks)))

    def _walk_over(self, blocks: range) -> Walk:
        walk, first = walk_of(self.plan.engine), self._batching.of_block(blocks.start)
        count = None if blocks.stop == len(self._batching.blocks) else self._batching.of_block(blocks.stop) - first
        batches = partial(self._feed.batches, count, first)
        recalibrates = self.plan.statistics.recalibrated
        facts = self.samples, self._batching.begins, self.on_point, recalibrates, self._shared_over
        return walk(self._running(), batches, *facts)

    def _reduction(
        self, origin: Pieces | None = None, before: Before | None = None, keep: bool = False,
        blocks: range | None = None,
    ) -> Reduction:  # fmt: skip
        if blocks is not None:
            return Reduction(self._batching.part(blocks), origin, terms_of(self.observe), None, keep)
        first = self._batching.of_block(before.blocks) if before else 0
        return Reduction(self._batching, origin and origin[first:], terms_of(self.observe), before, keep)

    def _at_origin(self, blocks: range | None = None) -> Pieces:
        """The observables at θ₀ of every batch of some consecutive blocks; default: of all."""
        blocks = blocks or range(len(self._batching.blocks))
        known = self._origin_pieces.setdefault(self.batch_size, {})
        missing = [block for block in blocks if block not in known]
        if missing:
            asked = range(missing[0], missing[-1] + 1)
            with arithmetic(self.plan, self.device), torch.no_grad():
                (pieces,) = self.walk(blocks=asked).points([[0.0] * len(self.directions)])
            for block, (start, stop) in zip(asked, self._batching.part(asked).split(len(pieces)), strict=True):
                known[block] = pieces[start:stop]
        return [piece for block in blocks for piece in known[block]]

    def _known_at_origin(self) -> Pieces | None:
        """ℓᵢ(0) of every sample; None if user code raises there, which the tile at the origin will report."""
        try:
            return self._at_origin()
        except Exception as error:
            if isinstance(error, (Interrupted, SamplesChanged)) or is_out_of_memory(error):
                raise
            return None

    def _compute_undisturbed(self, compute: Callable[[], Result]) -> Result:
        """Call `compute`, and call it again if user code has written to the model unnoticed.

        Raises:
            SamplesChanged: user code has written to the samples.
        """
        self._unchanged.remember()
        while True:
            with contextlib.suppress(UnseenWriteError):
                values = compute()
                self._refuse_writes()
                return values
            self._origin_pieces.clear()

    def refuse_changed_files(self) -> None:
        """Raises WeightsChanged if a file was written to from which weights are read."""
        for file in self._files:
            file.refuse_changes()

    def _refuse_writes(self) -> None:
        self.refuse_changed_files()
        self._unchanged.check()
        if self._running().hides_writes():
            raise UnseenWriteError

    def _collect(self, points: Callable[[], Iterator[Pieces]], places: Places, reduction: Reduction) -> Values:
        """The values of all points, put in their places."""
        start = time.perf_counter()
        with arithmetic(self.plan, self.device), torch.no_grad():
            for number, pieces in enumerate(points()):
                if number == 0 and len(places) > 1 and not reduction.apart:
                    self._refuse_writes()  # at the end, a write that the next point undoes would go unseen
                reduction.add(pieces)
            return replace(reduction.values(places), seconds=time.perf_counter() - start)


def _means(pieces: Pieces) -> dict[str, float]:
    """The mean of every observable over the samples of some batches."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: float(torch.cat([piece[name] for piece in pieces if name in piece]).mean()) for name in names}


def _files_of(origin: State, directions: Sequence[State]) -> list[Any]:
    """The files from which weights are read whenever a point is set."""
    states = [origin, *(source for axis in directions for source in getattr(axis, "sources", ()))]
    files = (getattr(state, "read_from", None) for state in states)
    return [file for file in files if file is not None]
