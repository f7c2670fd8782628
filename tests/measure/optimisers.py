"""In how many steps, and seconds, THOR reaches the held-out loss that tuned SGD with momentum reaches in 20 epochs.

python tests/measure/optimisers.py FOLDER [--data cifar10-train-10000.npz] [--only sgd|thor] [--seeds 0 1 2]

ResNet-20 on the first 8,000 images of the file, held out are the 2,000 others; batches of 128, shifts and mirroring,
half a cosine. Each optimiser has the same number of trials (`TRIALS`), all with the first seed: of SGD's the one with
the lowest loss after its last epoch is taken, of THOR's the one that needs the fewest epochs to that loss. Both are
then trained with each seed. A seed's target is the loss that SGD ends with there; it counts as reached at the end of
the first epoch that has it. Runs are kept in FOLDER; what is there is not trained again.

Prints one JSON document. The figures to reach: 0.5 of the steps, and 0.7 of the seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from landscape.model.history import read_history
from landscape.recipes.cifar10 import read_cifar10, transform
from landscape.recipes.data import Arrays
from landscape.recipes.resnet import ResNet
from landscape.recipes.training import Settings, fit
from landscape.training.training import Training

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
IMAGES, BATCH = 8000, 128
LONGER = 12  # epochs of the chosen THOR, for the seeds whose target it misses in its own


@dataclass(frozen=True)
class Trial:
    """One choice of settings."""

    optimizer: str
    epochs: int
    learning_rate: float
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        chosen = "".join(f"-{name}-{value:g}" for name, value in sorted(self.options.items()))
        return f"{self.optimizer}-{self.epochs}-{self.learning_rate:g}{chosen}-seed-{self.seed}"

    @property
    def settings(self) -> Settings:
        collect = {"unit": "epoch", "intervals": [[0, self.epochs // 2, self.epochs]]}
        given = {"weight_decay": 5e-4, **self.options}
        return Settings(
            self.epochs, BATCH, self.learning_rate, optimizer=self.optimizer, seed=self.seed, collect=collect, **given
        )


def thor(learning_rate: float, damping: float, balance: bool = True, frequency: int = 20, **others: float) -> Trial:
    options = {"damping": damping, "frequency": frequency, "balance": balance, **others}
    return Trial("thor", 10, learning_rate, options=options)


TRIALS = {
    "sgd": [Trial("momentum", 20, rate) for rate in (0.025, 0.035, 0.05, 0.07, 0.1, 0.14, 0.2)],
    "thor": [
        thor(0.1, 0.03, balance=False), thor(0.001, 0.001), thor(0.002, 0.001), thor(0.003, 0.001),
        thor(0.002, 0.003), thor(0.002, 0.001, frequency=40),
        thor(0.002, 0.001, first_order=25),
    ],
}  # fmt: skip


def read_parts(file: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    images, labels = read_cifar10(file)
    return (images[:IMAGES], labels[:IMAGES]), (images[IMAGES:], labels[IMAGES:])


def trained(trial: Trial, folder: Path, file: Path) -> list[dict[str, float]]:
    """Of each epoch: how many steps and seconds were done at its end, and the held-out loss and accuracy."""
    run = folder / trial.name
    training = Training(run, seed=trial.seed, device="cpu")
    data, held_out = (Arrays(part, transform, trial.seed, training.device) for part in read_parts(file))
    print(f"{trial.name}", file=sys.stderr, flush=True)
    fit(training, ResNet, data, held_out, trial.settings)
    seconds, rows = 0.0, []
    for line in read_history(run):
        seconds = line.get("seconds", seconds)
        if line.get("epoch_end"):
            row = {"step": line["step"], "seconds": seconds}
            rows.append(row | {"loss": line["held_out_loss"], "accuracy": line["held_out_accuracy"]})
    return rows


def reached(rows: list[dict[str, float]], loss: float) -> dict[str, float] | None:
    """The first epoch with this loss; None where none has it."""
    return next((row for row in rows if row["loss"] is not None and row["loss"] <= loss), None)


def last_loss(rows: list[dict[str, float]]) -> float:
    loss = rows[-1]["loss"]
    return float("inf") if loss is None else loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=SHARED / "cifar10-train-10000.npz")
    parser.add_argument("--only", choices=list(TRIALS), help="train the trials of one optimiser alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(TRIALS)

    def rows_of(trial: Trial) -> list[dict[str, float]]:
        return trained(trial, arguments.folder, arguments.data)

    trials = {name: {trial: rows_of(trial) for trial in TRIALS[name]} for name in names}
    document: dict[str, Any] = {
        "trials": {
            trial.name: {**rows[-1], "lowest": min(row["loss"] for row in rows)}
            for each in trials.values() for trial, rows in each.items()
        }
    }  # fmt: skip
    if not arguments.only:
        best = min(trials["sgd"], key=lambda trial: last_loss(trials["sgd"][trial]))
        target = last_loss(trials["sgd"][best])
        fewest = min(trials["thor"], key=lambda trial: _order(trials["thor"][trial], target))
        document["chosen"] = {"sgd": best.name, "thor": fewest.name}
        document["seeds"] = {
            f"{seed}, {epochs} epochs": _compared(
                rows_of(replace(best, seed=seed)), rows_of(replace(fewest, seed=seed, epochs=epochs))
            )
            for epochs in (fewest.epochs, LONGER)
            for seed in arguments.seeds
        }
    print(json.dumps(document, indent=1))


def _order(rows: list[dict[str, float]], target: float) -> tuple[float, float]:
    """Steps to the target, then the last loss."""
    row = reached(rows, target)
    return (row["step"] if row else float("inf")), last_loss(rows)


def _compared(sgd: list[dict[str, float]], thor: list[dict[str, float]]) -> dict[str, Any]:
    """The loss that SGD ends with, where each gets there, and the ratios of steps and seconds; None where not."""
    target = last_loss(sgd)
    first, second = reached(sgd, target), reached(thor, target)
    assert first is not None
    ratios = {f"{name} ratio": second[name] / first[name] if second else None for name in ("step", "seconds")}
    return {"target": target, "sgd": first, "thor": second, "thor ends with": last_loss(thor), **ratios}


if __name__ == "__main__":
    main()
