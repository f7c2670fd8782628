"""Convexity maps: what is refused before anything is computed, and how their second derivatives are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from landscape.compute.eigen_stores import bytes_of_bases, most_steps, refuse_large_bases
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import device_here
from landscape.core.errors import JobError, shown
from landscape.core.plan import Plan
from landscape.evaluation.derivatives import RECALIBRATED, Differentiation, NoSecondDerivative, Products
from landscape.evaluation.dry_run import SAMPLES
from landscape.evaluation.layers import loss_factors
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.landscape_options import Convexity
from landscape.model.parameters import State, trainable_matrices
from landscape.problem.terms import Problem
from landscape.problem.user_code import in_folder, in_words
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import EIGENVALUES, RATIO, ConvexityRecord


def convexity_of(
    prepared: PreparedJob, asked: Convexity | None, origin: State, plan: Plan, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> ConvexityRecord | None:  # fmt: skip
    """How the eigenvalues of a convexity map are computed; None where none is asked for.

    Args:
        prepared: the job, without its landscapes.
        observables: what `observe` returns.
        stored: the landscape on disk, which says how it was begun.

    Raises:
        JobError: they cannot be computed.
    """
    if asked is None:
        return None
    if plan.statistics.recalibrated:
        raise JobError(RECALIBRATED)
    taken = {*observables, *prepared.problem.derived} & {*EIGENVALUES, *RATIO}
    if taken:
        raise JobError(f"convexity: {shown(min(taken))} is what observe returns already; give that another name")
    infos = [info for info in trainable_matrices(prepared.problem.model) if info.name in origin]
    size = sum(math.prod(info.shape) for info in infos)
    if not size:
        raise JobError(
            "convexity: the model must have a trainable parameter of two dimensions or more, as biases and norms are "
            "left out; it has none"
        )
    refuse_large_bases(size, asked.steps)
    if stored is not None and stored.record.convexity is not None:
        return replace(stored.record.convexity, steps=asked.steps, parameters=size)
    how = _second_derivatives(prepared, origin, plan) if prepared.looked else "autograd"
    most = most_steps(size, asked.steps)
    return ConvexityRecord(steps=asked.steps, parameters=size, second_derivatives=how, most=most)


def eigenvalues_of(asked: Convexity | None, stored: LandscapeStore | None) -> tuple[str, ...]:
    """The observables of a convexity map: those that it was begun with, if it was."""
    if asked is None:
        return ()
    begun = None if stored is None else stored.record.convexity
    return EIGENVALUES if begun is None else begun.observables


def _second_derivatives(prepared: PreparedJob, origin: State, plan: Plan) -> str:
    """How a product with the Hessian of a few samples can be computed here.

    Raises:
        JobError: in no way.
    """
    few, problem = prepared.samples.few(SAMPLES), prepared.problem
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    with in_folder(prepared.folder):
        try:
            plan = replace(plan, batch_size=SAMPLES)
            names = [info.name for info in trainable_matrices(problem.model)]
            try:
                _try_product(Differentiation(problem.model, few, problem.observe, plan, here, origin, names), problem)
            except NoSecondDerivative:
                plan = replace(plan, precision="float64")
                found = Differentiation(problem.model, few, problem.observe, plan, here, origin, names)
                _try_product(found, problem, "differences")
                return "differences"
        except JobError:
            raise
        except Exception as error:
            raise JobError(
                f"convexity: the loss must have derivatives, and taking them {in_words(error)}; leave convexity out, "
                "or mend it"
            ) from error
    return "autograd"


def _try_product(derivatives: Differentiation, problem: Problem, how: Products = "autograd") -> None:
    factors = loss_factors([derivatives.totals(block) for block in range(derivatives.blocks)], problem.observe)
    derivatives.products(0, factors, [torch.ones(derivatives.size, dtype=torch.float64)], how)


def convexity_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """What the eigenvalues of a convexity map cost at most, for `landscape plan`; None where it is none.

    Args:
        missing: how many points are left to compute.
    """
    record = landscape.record.convexity
    if record is None:
        return None
    differs = record.second_derivatives == "differences"
    return {
        "parameters": record.parameters,
        "second_derivatives": record.second_derivatives,
        "precision": "float64" if landscape.plan.precision == "float64" or differs else "float32",
        "products": record.products,
        "most_products": record.most_products,
        "evaluations": record.products * PRODUCT_EVALUATIONS,
        "all_products": missing * record.products,
        "all_evaluations": missing * record.products * PRODUCT_EVALUATIONS,
        "all_most_evaluations": missing * record.most_products * PRODUCT_EVALUATIONS,
        "bytes": bytes_of_bases(record.parameters, record.most_products),
    }


def convexity_text(cost: Mapping[str, Any]) -> list[str]:
    """That cost in words, a line each."""
    how = "double backward" if cost["second_derivatives"] == "autograd" else "differences of gradients"
    further = (
        [f"up to {cost['most_products']} at a point where the sign of the smallest eigenvalue is open after these"]
        if cost["most_products"] > cost["products"]
        else []
    )
    return [
        f"eigenvalues of the Hessian over {cost['parameters']} weights: at each point at most {cost['products']} "
        f"products, about {cost['evaluations']} forward passes' time beside the one of the loss",
        *further,
        f"{cost['all_products']} products in all, about {cost['all_evaluations']} forward passes' time; by {how} in "
        f"{cost['precision']}, whatever the engine; {cost['bytes'] / 1e6:.3g} MB of memory a worker",
    ]
