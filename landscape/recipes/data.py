"""Where the data of a recipe lie: as it is given, as the environment names it, or as the run remembers it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from landscape.core.errors import JobError, NotFoundError, shown
from landscape.core.files import Place
from landscape.model.run_files import read_network
from landscape.problem.network import network_options

COMMON_VARIABLE = "LANDSCAPE_DATA"
REMEMBERED = "data"  # among what a run records of its network and data
log = logging.getLogger("landscape")


@dataclass(frozen=True)
class DataPlace:
    """How the data of a recipe are found.

    The environment comes before what a run remembers, since it speaks of this machine, where the run may have come from
    another. LANDSCAPE_DATA, which speaks of all recipes, comes after.

    Args:
        what: they are, for messages: "the folder with …".
        variable: the environment variable that names them.
        in_common: whether the folder LANDSCAPE_DATA may hold them.
    """

    what: str
    variable: str
    in_common: bool = True

    def for_training(self, given: str | Path | None, run: Place, *, overwrite: bool = False) -> str:
        """The absolute path of the data to train on.

        Args:
            given: comes first.
            run: may remember the data of its training; where it goes on with others, a line says so.
            overwrite: whether the run begins anew, whatever it remembers.

        Raises:
            JobError: no data are named.
            NotFoundError: the path that the run remembers is not there, and nothing else names any.
        """
        remembered = None if overwrite else _remembered_by(run)
        named = given or os.environ.get(self.variable)
        path = named or self._remembered_or_common(remembered, "give data, or ")
        if not path:
            raise JobError(f"data: must name {self.what}; give it, or set the environment variable {self._variables}")
        path = os.path.abspath(path)
        if named and remembered and path != remembered:
            log.warning("data: the run was trained on %s, and is now on %s", shown(remembered), shown(path))
        return path

    def for_callback(self) -> str:
        """The path of the data of a job's run, for its callback, which takes no arguments.

        Raises:
            JobError: no data are named.
            NotFoundError: the path that the run remembers is not there, and nothing else names any.
        """
        path = os.environ.get(self.variable) or self._remembered_or_common(_as_path(network_options()))
        if not path:
            raise JobError(
                f"problem: the environment variable {self._variables} must name {self.what}, and the run remembers "
                "none; set it, or call make_problem(data=…) in a callback of your own"
            )
        return path

    def _remembered_or_common(self, remembered: str | None, remedy: str = "") -> str | None:
        """What the run remembers, if it is there, else LANDSCAPE_DATA."""
        if remembered and os.path.exists(remembered):
            return remembered
        common = os.environ.get(COMMON_VARIABLE) if self.in_common else None
        if remembered and not common:
            raise NotFoundError(
                f"data: {shown(remembered)}, on which the run was trained, is not on this machine; "
                f"{remedy}set the environment variable {self.variable} to {self.what}"
            )
        if remembered:
            log.warning(
                "data: %s, on which the run was trained, is not on this machine; taken from %s, which is %s",
                shown(remembered), COMMON_VARIABLE, shown(str(common)),
            )  # fmt: skip
        return common

    @property
    def order(self) -> str:
        """Where a training looks for its data, in words."""
        common = f", else {COMMON_VARIABLE}" if self.in_common else ""
        return f"what {self.variable} names, else what the run was trained on before{common}"

    @property
    def _variables(self) -> str:
        return f"{self.variable} or {COMMON_VARIABLE}" if self.in_common else self.variable


def _remembered_by(run: Place) -> str | None:
    return _as_path(read_network(run))


def _as_path(recorded: dict[str, object]) -> str | None:
    path = recorded.get(REMEMBERED)
    return path if isinstance(path, str) else None
