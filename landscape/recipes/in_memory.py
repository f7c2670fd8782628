"""The training that recipes of images in memory share: from the place of the data to a trained network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from landscape.core.files import Place
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.defaults import epochs_in_words, of_all
from landscape.recipes.options import LoopOptions, settings_of
from landscape.recipes.training import Arrays, Images, Trained, Transform, as_stored, fit, training_of
from landscape.training.training import Training


@dataclass(frozen=True)
class ImageRecipe:
    """What stays the same in every training of a recipe.

    Args:
        place: where its images are named.
        problem: the callback of the landscapes of its runs.
        intervals: the epochs of each landscape, where `intervals` is not given.
        threads: see `fit`.
    """

    place: DataPlace
    problem: str
    intervals: Sequence[Sequence[int]]
    threads: int | None = 1

    @property
    def told(self) -> dict[str, dict[str, str]]:
        """What the options of the recipe are by default, where that follows from something else (`OptionTable`)."""
        return {"data": of_all(self.place.order), "intervals": of_all(epochs_in_words(self.intervals))}

    def train(
        self,
        run: Place | Training,
        data: str | Path | None,
        epochs: int,
        options: LoopOptions,
        build: Callable[[], nn.Module],
        read: Callable[[str, Any], Images],
        *,
        split: str,
        transform: Transform = as_stored,
        **network: Any,
    ) -> Trained:
        """Train `build()` on the images of `split`; accuracy is taken on those of "test".

        Args:
            read: the images of a split, from the path of the data.
            transform: see `Arrays`.
            network: the options that the network and the images are made with.

        Raises:
            NotFoundError: the data are missing.
            JobError: no data are named, an option is not usable, or the run holds another trajectory.
        """
        training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
        path = self.place.for_training(data, training.run, overwrite=options["overwrite"])
        settings = settings_of(training, epochs, options, self.intervals, **network, split=split)
        trained, held_out = (
            Arrays(read(path, part), transform, training.seed, training.device) for part in (split, "test")
        )
        return fit(
            training, build, trained, held_out, settings, threads=self.threads, problem=self.problem,
            report=options["report"], told={REMEMBERED: path},
        )  # fmt: skip
