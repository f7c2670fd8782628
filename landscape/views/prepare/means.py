"""What the values of an observable are, in words: means of samples, of weighted ones, a sum of terms; all the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.model.layer_rules import inspect_command
from landscape.surface.derived import bases_of
from landscape.surface.record import Record
from landscape.surface.record_entries import BREAKING, EIGENVALUES, LayersRecord
from landscape.surface.surface import RISE_STDERR


def mean_in_words(record: Record, observable: str, title: str) -> str:
    """What every value of an observable is, as far as known, such as 'mean loss of 512 samples'.

    Args:
        title: the name of the observable in words.

    >>> from landscape.surface.record_entries import ConvexityRecord
    >>> from landscape.surface.record_parts import TermRecord as Term
    >>> terms = {"interior": Term(weight=1.0, samples=700), "boundary": Term(weight=10.0, samples=90)}
    >>> record = Record(num_samples=700, terms=terms)
    >>> mean_in_words(record, "boundary", "boundary"), mean_in_words(record, "loss", "loss")
    ('mean boundary of 90 points', 'loss: weighted sum of 2 means, over 700 and 90 points')
    >>> mapped = Record(terms=terms, convexity=ConvexityRecord(steps=9, parameters=9, second_derivatives="autograd"))
    >>> mean_in_words(mapped, "eig_max", "eig max")
    'eig max of the Hessian of the loss, a weighted sum of 2 means, over 700 and 90 points'
    """
    name = "loss" if observable == RISE_STDERR else observable.removesuffix("_stderr")
    base = bases_of(record.derived, name)[0]
    if record.convexity is not None and base in EIGENVALUES:  # not a mean: the mean loss is what is differentiated
        formula = f" = {record.derived[name]}" if name in record.derived else ""
        mean = _mean_of(record, "loss")
        loss = mean.replace("mean", "mean loss", 1) if mean.startswith("mean") else f"loss, a {mean}"
        return f"{title}{formula} of the Hessian of the {loss}"
    if record.layers is not None and base in record.layers.observables:
        return _of_layers(record.layers, base, title)
    mean = _mean_of(record, base)
    if not mean:
        return title
    if name != observable:
        return title + (mean.removeprefix("mean") if mean.startswith("mean") else f", a {mean}")
    if name in record.derived:  # such as the perplexity, which is no mean of perplexities
        return f"{title} = {record.derived[name]} with the {mean}"
    return f"{title}: {mean}" if mean.startswith("weighted sum") else mean.replace("mean", f"mean {title}", 1)


def _of_layers(layers: LayersRecord, observable: str, title: str) -> str:
    """What an observable of layers is, such as 'abs mean of fc2'."""
    known = layers.layer_of(observable)
    if known is not None:
        return f"{known[1].replace('_', ' ')} of {known[0]}"
    return f"{title} that breaks" if observable == BREAKING[0] else f"{title} that fires"


def _mean_of(record: Record, observable: str) -> str:
    """What one observable is the mean of; '' where nothing is known of it, as other software computed it."""
    terms = record.terms
    if observable == "loss" and len(terms) > 1:
        return _sum_of([term.samples for term in terms.values()])
    if not terms:
        if record.num_samples is None and record.is_imported:
            return ""
        return ("weighted " if record.weighted else "") + _mean(record.num_samples, "samples")
    term = next(iter(terms.values())) if observable == "loss" else terms.get(observable)
    mean = _mean(None if term is None else term.samples, "points")
    scaled = term is not None and observable == "loss" and term.weight not in (None, 1.0)
    return f"{mean}, times {term.weight:g}" if scaled and term is not None else mean


def _mean(count: int | None, noun: str) -> str:
    return "mean" if count is None else f"mean of {count} {noun}"


def _sum_of(counts: list[int | None]) -> str:
    text = f"weighted sum of {len(counts)} means"
    if None in counts:
        return text
    *rest, last = map(str, counts)
    return f"{text}, over {', '.join(rest)} and {last} points"


def constant_in_words(values: NDArray[np.float64], name: str, imported: bool = False) -> str:
    """That all of several values of a landscape are the same, which is seldom meant; '' where they are not.

    Args:
        name: of the landscape, for the command that inspects it.
        imported: whether other software computed it, so that there is no network to inspect.

    >>> constant_in_words(np.ones(3), "line").partition("; ")[2]
    '`landscape inspect RUN line --at=0` says whether a layer is dead'
    >>> constant_in_words(np.ones(1), "line")
    ''
    """
    if values.size < 2 or not np.isfinite(values.flat[0]) or not (values == values.flat[0]).all():
        return ""
    said = "the same loss at all points shown: nothing that the directions move changes it"
    command = inspect_command("RUN", name, values.ndim)
    return said if imported else f"{said}; `{command}` says whether a layer is dead"
