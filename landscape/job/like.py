"""Landscapes that take origin, directions, size and range from another one: `like: NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landscape.job.landscape import Landscape

# Fields that a landscape does not take from the one that it is like.
OWN = ("name", "quantise", "refine", "convexity", "layers")


def with_likes(landscapes: Sequence[Landscape], others: Mapping[str, Landscape]) -> tuple[Landscape, ...]:
    """The landscapes, each that is like another one of them, or like one of `others`, with the fields of that.

    One that is like an unknown landscape stays as it is.

    Raises:
        ValueError: some are like one another in a circle.
    """
    own = {each.name: each for each in landscapes}
    return tuple(_resolved(each, {**others, **own}, (each.name,)) for each in landscapes)


def _resolved(landscape: Landscape, known: Mapping[str, Landscape], chain: tuple[str, ...]) -> Landscape:
    if landscape.like is None or landscape.like not in known:
        return landscape
    if landscape.like in chain:
        circle = " is like ".join([*chain[chain.index(landscape.like) :], landscape.like])
        raise ValueError(f"like must not lead back to itself: {circle}; give one of them directions of its own")
    target = _resolved(known[landscape.like], known, (*chain, landscape.like))
    if target.like is not None:
        return landscape
    found = target.model_copy(update={"like": None, **{name: getattr(landscape, name) for name in OWN}})
    found.model_fields_set.difference_update(set(OWN) - landscape.model_fields_set)
    return found
