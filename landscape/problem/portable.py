"""The problem of a file: its graphs observe, its samples are those that were packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from landscape.core.errors import JobError, shown
from landscape.core.plan import Plan
from landscape.model.packed_model import PortableFile, PortableModel
from landscape.problem.observables import Observe
from landscape.problem.problem import Problem
from landscape.problem.supervised import Supervised
from landscape.problem.tokens import Padding, Reader


def portable_problem(path: str | Path) -> Problem:
    """The problem that `landscape pack` has written to a file. Nothing of its sender's is executed.

    Raises:
        NotFoundError, JobError: there is no such file, or it is none that this version can take.
    """
    file = PortableFile(path)
    said, model, samples = file.problem, file.model(), file.samples()
    try:
        _refuse_without_graphs(file, said)
        if samples.sequences is not None:
            about = samples.sequences
            vocabulary = None if about["vocabulary"] is None else int(about["vocabulary"])
            samples.collate_fn = Padding(Reader(vocabulary, about["takes_mask"] is True))
        observe: Observe = _OBSERVING[said["kind"]](model, said)
        weights = said["term_weights"]
        names = None if weights is not None else [name for name in said["observables"] if name != "weight"]
        return Problem(
            model, samples, observe, names, term_weights=weights, derived=said["derived"], expected=said["expected"]
        )
    except JobError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise file.archive.damaged(f"its manifest has no {str(error)[:60]}") from None


def _refuse_without_graphs(file: PortableFile, said: Mapping[str, Any]) -> None:
    """Refuse a file that lacks a graph of what it says that it observes."""
    weights = said["term_weights"]
    needed = {"model"} if said["kind"] != "terms" else {f"term_{name}" for name in weights}
    if said["kind"] == "supervised":
        needed |= {"loss", *(f"metric_{name}" for name in said["observables"] if name != "loss")}
    if missing := needed - set(said["graphs"]):
        raise file.archive.damaged(f"it has no graph {min(missing)!r}")


def refuse_other_precision(model: nn.Module, precision: str) -> None:
    """Refuse float64 for graphs that name smaller types, and the other way round.

    Raises:
        JobError: names the precision that they were packed in.
    """
    packed = model.only_in if isinstance(model, PortableModel) else ""
    if packed and (packed == "float64") != (precision == "float64"):
        raise JobError(
            f"precision: must be {packed}, in which the problem was packed and whose types it names, not {precision}; "
            f"pack the job anew by landscape pack JOB --precision {precision}"
        )


def refuse_inlined(model: nn.Module, plan: Plan) -> None:
    """Refuse what is done to layers by their type, where the graphs hold some of these as plain operations.

    Raises:
        JobError: names the first of these layers.
    """
    inlined: Mapping[str, Sequence[str]] = model.inlined if isinstance(model, PortableModel) else {}
    for kind, concerned, what in (
        ("norms", not plan.statistics.fixed, f"batch_norm: must be eval, not {plan.batch_norm}"),
        ("rounded", plan.quantise is not None and plan.quantise.activations, "quantise.activations: must be false"),
    ):
        if concerned and inlined.get(kind):
            raise JobError(
                f"{what}, for a packed problem that holds the layer {shown(inlined[kind][0])} as plain operations; "
                "make it a layer of torch.nn itself, no class of its own, and pack anew, or run the job from its source"
            )


def _whole(model: PortableModel, said: Mapping[str, Any]) -> Observe:
    return _call


def _call(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
    """The model is what observes."""
    observed: Mapping[str, Tensor] = model(batch)
    return observed


def _supervised(model: PortableModel, said: Mapping[str, Any]) -> Observe:
    names = [name for name in said["observables"] if name != "loss"]
    observe = Supervised(_Pairs(model, "loss"), {name: _Pairs(model, f"metric_{name}") for name in names})
    observe.classifies = said["classifies"] is True
    return observe


def _terms(model: PortableModel, said: Mapping[str, Any]) -> Observe:
    return _observe_terms


def _observe_terms(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
    assert isinstance(model, PortableModel)
    return {name: model.run(f"term_{name}", points) for name, points in batch.items()}


class _Pairs:
    """A graph of outputs and targets, such as a criterion; it holds no weights of the model."""

    def __init__(self, model: PortableModel, name: str) -> None:
        self._run = partial(model.without_weights().run, name)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        values: Tensor = self._run((outputs, targets))
        return values


_OBSERVING = {"whole": _whole, "supervised": _supervised, "terms": _terms}
