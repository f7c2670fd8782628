"""Trainings of two, three and four ranks with gloo: `python rank_scene.py FOLDER` forks the ranks.

They are started once, and make a process group for each case. What rank K finds is left in FOLDER/rank-K.pt.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimiser imports, in each rank if not here
import torch.distributed as dist
import users_training
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError
from landscape.core.system import end_with_parent
from landscape.model.history import read_history
from landscape.model.parameters import state_digest
from landscape.recipes.data import Arrays
from landscape.recipes.training import Settings, Trained, evaluate, fit
from landscape.training import distributed as ranks
from landscape.training.training import Training

RANKS = 4
GENERATOR = torch.Generator().manual_seed(3)
INPUTS = torch.randn(41, 6, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(0, 3, (41,), generator=GENERATOR)
COLLECT = {"unit": "epoch", "intervals": [[0, 1, 2]]}
SETTINGS = Settings(3, 9, 0.1, warmup_epochs=1, base_batch=3, checkpoint_steps=2, log_every=4, collect=COLLECT)

# Inverses are stale after the tenth step, where a training is interrupted.
SECOND_ORDER = replace(SETTINGS, optimizer="thor", frequency=3, learning_rate=0.02)


class Stop(Exception):
    """The training is interrupted."""


def smooth_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)).double()


def normed_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Dropout(0.3), nn.Linear(20, 3)).double()


def loop(run: Path) -> tuple[list[float], dict[str, Tensor]]:
    """Twenty steps in epochs whose last batch is smaller than four ranks; the losses and the weights."""
    training = Training(run)
    torch.manual_seed(0)
    model = smooth_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    network, losses = training.prepare(model), []
    for epoch in range(4):
        for share in training.batches(len(LABELS), 10, epoch):
            loss = nn.functional.cross_entropy(network(INPUTS[share.index]), LABELS[share.index]) * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(training.mean(loss)))
    return losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def recipe(
    run: Path, build: Callable[[], nn.Module], until: int | None = None, settings: Settings = SETTINGS
) -> Trained:
    """A recipe's training, which may be interrupted at the end of an epoch."""

    def report(epoch: int, metrics: Any) -> None:
        if epoch == until:
            raise Stop

    data = Arrays((INPUTS, LABELS))
    training = Training(run)
    trained = fit(training, build, data, data, settings, report=report)
    assert trained.accuracy == evaluate(trained.model, data)[0]
    return trained


def stopped(work: Callable[[], Any]) -> None:
    """Have `work` end by Stop, on whichever ranks it does; the others wait for these without end, so they stop too."""
    try:
        work()
    except Stop:
        return
    except RuntimeError as error:  # another rank has left
        if "gloo" not in str(error):
            raise


# -- cases ---------------------------------------------------------------------------------------------------------


def equals_one(folder: Path, rank: int, world: int) -> Any:
    return loop(folder / f"loop-{world}")


def interrupted(folder: Path, rank: int, world: int) -> Any:
    def leave(step: int) -> None:
        if step == 3:
            raise Stop

    calm = users_training.train(Training(folder / "calm"))
    stopped(lambda: users_training.train(Training(folder / "cut"), after=leave))
    dist.barrier()
    ended = users_training.train(Training(folder / "cut"))
    return [state_digest(each.state_dict()) for each in (calm, ended)]


def fewer_ranks(folder: Path, rank: int, world: int) -> Any:
    """What was trained by three ranks goes on with two."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("landscape").addHandler(handler)
    done = Training(folder / "cut").resume()
    logging.getLogger("landscape").removeHandler(handler)
    return done["epoch"], lines


def means(folder: Path, rank: int, world: int) -> Any:
    training = Training(folder / "means")
    numbers = torch.tensor([0.1 * (rank + 1), 1e8 * (-1) ** rank, 3.0])
    drawn = [float(torch.rand(())) for _ in range(2) if training.resume() == {}]
    return {
        "mean": training.mean(numbers), "whole": training.sum(torch.tensor([rank, 2**53 + rank])),
        "drawn": drawn[-1], "plain": float(training.mean(float(rank))),
    }  # fmt: skip


def refusals(folder: Path, rank: int, world: int) -> Any:
    """An error that only rank 0 meets ends every rank."""
    found = []
    for work in (
        lambda: Training(folder / "refused").keep(what=object()),
        lambda: Training(folder / "refused").collector(nn.Linear(1, 1), intervals=[[1, 2]]),
        lambda: Training(folder / "foreign").collector(nn.Linear(1, 1), intervals=[[1, 2, 3]]),
    ):
        try:
            work()
        except JobError as error:
            found.append(str(error))
    try:
        ranks.on_first(lambda: 1 // 0)
    except (ZeroDivisionError, LandscapeError) as error:
        found.append(type(error).__name__)
    return found


def recipes(folder: Path, rank: int, world: int) -> Any:
    smooth = recipe(folder / "smooth", smooth_net)
    second = recipe(folder / "second", smooth_net, settings=SECOND_ORDER)
    calm = recipe(folder / "normed", normed_net, settings=SECOND_ORDER)
    stopped(lambda: recipe(folder / "normed-cut", normed_net, until=2, settings=SECOND_ORDER))
    return {
        "smooth": (smooth.loss, smooth.accuracy, smooth.model.state_dict()),
        "second": (second.loss, second.accuracy, second.model.state_dict()),
        "normed": (calm.loss, state_digest(calm.model.state_dict())),
    }


def recipes_go_on(folder: Path, rank: int, world: int) -> Any:
    ended = recipe(folder / "normed-cut", normed_net, settings=SECOND_ORDER)
    return ended.loss, state_digest(ended.model.state_dict())


CASES = [
    (2, equals_one), (4, equals_one), (4, means), (3, interrupted), (2, fewer_ranks), (2, refusals), (2, recipes),
    (2, recipes_go_on),
]  # fmt: skip


def prepare(folder: Path) -> None:
    """What is there before the ranks start: a trajectory of another training."""
    collector = Training(folder / "foreign").collector(nn.Linear(1, 1), intervals=[[0, 1, 2]])
    collector.step(1.0)
    shutil.rmtree(folder / "foreign" / "checkpoints")


def train_as_rank(folder: Path, rank: int) -> None:
    """What one rank does."""
    found: dict[str, Any] = {}
    for number, (world, case) in enumerate(CASES):
        if rank < world:
            store = dist.FileStore(str(folder / f"store-{number}"), world)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
            found[f"{case.__name__}-{world}"] = case(folder, rank, world)
            dist.destroy_process_group()
    torch.save(found, folder / f"rank-{rank}.pt")


def main(folder: Path) -> int:
    """Fork the ranks, and wait for them; 0 where all have done their work."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection in a rank leaves the pages shared
    ranks = [_forked(folder, rank) for rank in range(RANKS)]
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])) for rank in ranks)


def _forked(folder: Path, rank: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            end_with_parent()
            train_as_rank(folder, rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def steps_told(run: Path) -> list[tuple[int, bool]]:
    """The steps and the ends of epochs in a history."""
    return [(line["step"], bool(line.get("epoch_end"))) for line in read_history(run)]


def in_order(steps: int, per_epoch: int) -> list[tuple[int, bool]]:
    """What `steps_told` gives of a training without gaps and doubles."""
    pairs = [
        [(step, False), (step, True)] if step % per_epoch == 0 else [(step, False)] for step in range(1, steps + 1)
    ]
    return list(itertools.chain(*pairs))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
