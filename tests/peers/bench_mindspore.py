"""Time per point of MindSpore's SummaryLandscape and of this project: equal samples, batches, directions and threads.

`make bench-mindspore` installs MindSpore into an environment of its own and runs this; see README.md beside it.
MindSpore runs in a child process. Either side computes a row of the grid while the other one waits for it; MindSpore's
processes are stopped meanwhile, since that of its SummaryRecord waits in a busy loop. Neither is bound to a core. A
last row gives this project its own choice of the batch size, beside the tutorial's batches of 32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
import torch
from adapters import ours
from bench_peers import surroundings
from report import spread
from subjects import EPOCHS, Lattice, Points, State, Subject, reference

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from mindspore_planes import MINDSPORE, random_directions, write_test_images

from landscape.recipes import mnist

HALF = 1.0  # MindSpore's grid of a result goes from -1 to 1


@dataclass(frozen=True)
class Tutorial(Subject):
    """The tutorial's network with its samples; the directions are those that MindSpore draws."""

    axes: tuple[State, State] = field(kw_only=True)


@dataclass
class Side:
    """One tool: the seconds per point of each round, on the clock and of the processor, and all losses."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def tutorial(data: Path, folder: Path, samples: int) -> Tutorial:
    """Trained here, as MindSpore's own network is: without convolution biases, on pixels resized as uint8."""
    source = write_test_images(folder / "mnist", data)
    options = {"scaling": "resize-uint8", "conv_bias": False, "split": "test", "intervals": [[0, 1, 2]]}
    model = mnist.train(folder / "trained", folder / "mnist", EPOCHS, **options).model.cpu().eval()
    images, labels = mnist.network_input(mnist.read_mnist(folder / "mnist", "test"), "resize-uint8")
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    np.savez(folder / "weights.npz", **weights)
    axes = [{name: torch.from_numpy(values) for name, values in one.items()} for one in random_directions(weights)]
    return Tutorial(
        "LeNet-5", model, images[:samples], labels[:samples], f"{source}, trained for {EPOCHS} epochs",
        axes=(axes[0], axes[1]),
    )  # fmt: skip


def grid_rows(size: int) -> list[Points]:
    """MindSpore's grid, row by row: the first coordinate is the quick one."""
    values = np.linspace(-HALF, HALF, size).tolist()
    return [[(alpha, beta) for alpha in values] for beta in values]


@contextlib.contextmanager
def started(command: Sequence[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A child process, which ends with all that it started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True) as child:
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def run_in_turns(
    subject: Tutorial, folder: Path, batch_size: int, own_batches: int | None, size: int, threads: int
) -> tuple[Side, Side, Any]:
    """MindSpore's rows and ours, each row a round; the first, in which both begin, gives values but no times.

    Args:
        own_batches: None lets this project choose.
    """
    theirs, own = Side(), Side()
    prepared = ours(folder, "float32", 40**2)(subject, Lattice(size, 2 * HALF / (size - 1)), own_batches)
    assert prepared.losses_at is not None
    command = [MINDSPORE, HERE / "mindspore_rows.py", folder / "mnist", folder]
    command = [*map(str, [*command, batch_size, len(subject.targets), size, threads])]
    with (
        (folder / f"mindspore-{batch_size}-{own_batches}.log").open("w+") as log,
        started(command, log) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        for number, points in enumerate(grid_rows(size)):
            line = child.stdout.readline()
            if not line:
                log.seek(0)
                raise SystemExit(f"MindSpore failed:\n{log.read()[-4000:]}")
            row = json.loads(line)
            os.killpg(child.pid, signal.SIGSTOP)
            wall, processor = time.perf_counter(), time.process_time()
            losses = prepared.losses_at(points)
            taken = time.perf_counter() - wall, time.process_time() - processor
            theirs.losses += row["losses"]
            own.losses += losses
            if number:
                for side, seconds in ((theirs, (row["seconds"], row["processor_seconds"])), (own, taken)):
                    side.seconds.append(seconds[0] / size)
                    side.processor.append(seconds[1] / size)
            os.killpg(child.pid, signal.SIGCONT)
            child.stdin.write("go\n")
            child.stdin.flush()
        child.communicate()
    return theirs, own, prepared.notes["plan"]


def report(subject: Tutorial, batch_size: int, size: int, sides: tuple[Side, Side, Any]) -> dict[str, Any]:
    theirs, own, plan = sides
    ratios = [a / b for a, b in zip(theirs.seconds, own.seconds, strict=True)]
    of_processor = [a / b for a, b in zip(theirs.processor, own.processor, strict=True)]
    apart = np.abs(np.array(theirs.losses) - own.losses)
    corners = [point for row in (grid_rows(size)[0], grid_rows(size)[-1]) for point in (row[0], row[-1])]
    exact = np.array(reference(subject, corners))
    at = [0, size - 1, size * (size - 1), size * size - 1]
    return {
        "batch_size": batch_size, "own_batch_size": plan["batch_size"], "samples": len(subject.targets),
        "points": size * size, "rounds": len(ratios),
        "engine": plan["engine"], "mindspore_ms": [1e3 * each for each in theirs.seconds],
        "ours_ms": [1e3 * each for each in own.seconds], "ratios": ratios, "processor_ratios": of_processor,
        "largest_difference": float(apart.max()),
        "largest_relative_difference": float((apart / np.array(own.losses)).max()),
        "corners_from_float64": {
            "mindspore": float(np.abs(np.array(theirs.losses)[at] / exact - 1).max()),
            "ours": float(np.abs(np.array(own.losses)[at] / exact - 1).max()),
        },
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> str:
    names = ("batches of, MindSpore", "of this", "MindSpore, ms per point", "this, ms per point", "ratio")
    head = f"| {' | '.join((*names, 'by processor time', 'rounds', 'values'))} |"
    lines = [head, "|---" * 8 + "|"]
    for row in results:
        cells = [
            str(row["batch_size"]), str(row["own_batch_size"]),
            *(spread(row[name]) for name in ("mindspore_ms", "ours_ms")),
            *(spread(row[name], 1) for name in ("ratios", "processor_ratios")), str(row["rounds"]),
            f"{row['largest_relative_difference']:.1e} apart at {row['points']} points",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16, help="size × size points; each row but the first is a round")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=(512, 32), help="equal on both sides")
    parser.add_argument("--threads", type=int, default=1, help="of either tool's computing")
    parser.add_argument("--data", type=Path, default=HERE.parents[1].parent / "shared" / "data")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--quick", action="store_true", help="512 samples, 3 × 3 points: whether it works, no figures")
    options = parser.parse_args(arguments)
    if options.quick:
        options.size, options.samples = 3, 512
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if not MINDSPORE.exists():
        raise SystemExit(f"{MINDSPORE} is not there; `make bench-mindspore` installs it")
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {**surroundings(), "results": []}
    with tempfile.TemporaryDirectory(prefix="ll") as name:
        folder = Path(name)
        subject = tutorial(options.data, folder, options.samples)
        for batch_size, own_batches in [*((both, both) for both in options.batch_sizes), (32, None)]:
            sides = run_in_turns(subject, folder, batch_size, own_batches, options.size, options.threads)
            found["results"].append(report(subject, batch_size, options.size, sides))
            print(f"batches of {batch_size}: ratio {median(found['results'][-1]['ratios']):.1f}", file=sys.stderr)
    found["load"] = os.getloadavg()
    print(
        f"{subject.name}: {subject.source}; {len(subject.targets)} samples, {options.threads} thread(s) on either side"
    )
    print(table(found["results"]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
