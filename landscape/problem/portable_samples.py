"""The samples of a portable problem: those that were packed, or the first of them."""

from __future__ import annotations

from torch import Tensor

from landscape.core.errors import JobError
from landscape.model.packed_model import PackedSamples
from landscape.problem.batches import batch_bytes, map_tensors
from landscape.problem.choice import Choice, Chosen
from landscape.problem.collated import Collated
from landscape.problem.points import PointSets
from landscape.problem.samples import Rows


def chosen_of(data: PackedSamples, choice: Choice) -> Chosen:
    """The first of the packed samples, as many as are asked for: those that the packed job would have drawn.

    Raises:
        JobError: more are asked for, or those of another seed.
    """
    if choice.seed != data.seed:
        raise JobError(
            f"seed: must be {data.seed}, with which the samples of {data.name} were drawn, not {choice.seed}; pack the "
            "job anew with the other one"
        )
    choice.check(data.length)
    count = min(choice.num_samples, data.length)
    order = data.indices[:count].argsort() if choice.ascending else None

    if data.sequences is not None:
        places = range(count) if order is None else order.tolist()
        items = [data.sets[""][place] for place in places]
        kept = data.indices[:count] if order is None else data.indices[:count][order]
        return Chosen(Collated(items, data.collate_fn, choice.seed, data.name), kept.numpy())

    def taken(tensor: Tensor) -> Tensor:
        first = tensor[:count]
        return first if order is None or len(first) != count else first[order]

    sets = {name: map_tensors(taken, rows) for name, rows in data.sets.items()}
    whole = data.in_memory and count == data.length
    if not whole and sum(map(batch_bytes, sets.values())) <= choice.limit:
        sets = {name: map_tensors(lambda tensor: tensor.clone(), rows) for name, rows in sets.items()}
    indices = taken(data.indices).numpy()
    return Chosen(Rows(sets[""]) if "" in sets else PointSets(sets), indices)
