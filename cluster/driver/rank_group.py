"""A worker of several processes: actors in one placement group, each a rank, which do everything together.

Every call goes to all ranks with the same arguments, since a model that is cut over processes is computed by all of
them at once. The receipt of rank 0 counts. If a rank dies, its group ends with it: what the others compute can never
be finished, and the driver replaces the group.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import get_node_ip_address
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.driver.worker import Worker
from cluster.runtime.placement import Placement
from landscape.problem.mesh import Rank

# Ray would restart an actor silently, without end; the driver replaces workers, within a budget.
ACTOR = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}


@dataclass(frozen=True)
class Actors:
    """The actors of a worker, rank 0 first, and the placement group of several."""

    actors: tuple[Any, ...]
    group: Any = None

    def call(self, method: str, *arguments: Any) -> tuple[Any, list[Any]]:
        """Call a method of every rank: the references of the answer of rank 0, and of those of the others."""
        first, *others = (getattr(actor, method).remote(*arguments) for actor in self.actors)
        return first, others

    @property
    def leader(self) -> Any:
        """The actor whose answers count."""
        return self.actors[0]

    def end(self) -> None:
        """End all processes, and give their places back."""
        for actor in self.actors:
            ray.kill(actor)
        if self.group is not None:
            with suppress(Exception):  # the session may be ending
                remove_placement_group(self.group)


def start_actors(wanted: Placement, arguments: tuple[Any, ...]) -> Actors:
    """Ask for the processes of one worker, which start when they have been placed.

    Args:
        arguments: of `Worker`, which a rank of a group follows.
    """
    custom = dict(wanted.custom)
    if wanted.ranks == 1:
        options = {"num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus, "resources": custom or None}
        return Actors((ray.remote(Worker).options(**options, **ACTOR).remote(*arguments),))
    # A bundle for each node; custom resources are those of the whole group, of which no rank takes a part.
    strategy = "STRICT_PACK" if wanted.nodes == 1 else "STRICT_SPREAD"
    group = placement_group([dict(wanted.asks_of_node)] * wanted.nodes, strategy=strategy)
    share = {"num_cpus": wanted.num_cpus / wanted.ranks, "num_gpus": wanted.num_gpus / wanted.ranks}
    actors = []
    for number in range(wanted.ranks):
        bundle = number * wanted.nodes // wanted.ranks
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {**share, "scheduling_strategy": place}
        rank = Rank(number, wanted.ranks, wanted.nodes)
        actors.append(ray.remote(Worker).options(**options, **ACTOR).remote(*arguments, rank))
    address = actors[0].meeting_place.remote(None if wanted.nodes == 1 else get_node_ip_address)
    for actor in actors:
        actor.join.remote([address])
    return Actors(tuple(actors), group)
