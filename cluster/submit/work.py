"""What is sent to a cluster: a job of landscapes in its file, or a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union

from landscape.core.folders import locate

if TYPE_CHECKING:
    from landscape.job.job import Job


@dataclass(frozen=True)
class SentTraining:
    """A training on its way to a cluster; what the targets ask of a job, it answers.

    Attributes:
        what: a recipe's name or 'module:function'.
        folder: where the module lies.
        run: as it was given.
        options: words of the command that it was asked with.
    """

    what: str
    folder: Path
    run: str
    options: tuple[str, ...] = ()

    threads: ClassVar[int] = 1
    landscapes: ClassVar[tuple[()]] = ()

    @property
    def run_path(self) -> str:
        """The run as an absolute folder or a URL."""
        return locate(self.run, Path.cwd())

    @property
    def problem(self) -> str | None:
        """'module:function', whose files travel; None for a recipe, which is installed there."""
        return self.what if ":" in self.what else None

    def content(self) -> dict[str, Any]:
        """What decides its name beside the run."""
        return {"train": self.what, "options": list(self.options)}


Work = Union["Job", SentTraining]


def has_files(work: Work) -> bool:
    """Whether a folder travels with it."""
    return not isinstance(work, SentTraining) or work.problem is not None
