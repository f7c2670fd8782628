"""What the landscape of a large language model takes beside its forward passes: memory, setting weights, tokens/s.

    python tests/measure/large_models.py [135m | 1b | 30m] [--in file|host|device] [--precision bfloat16]

A GPT of random weights is written to a safetensors file, and read from there. Printed are live tensor bytes over the
bytes of the weights, counted by a dispatch mode without the activations of a plain forward pass; the resident size; the
seconds of setting a point from seeds over a forward pass; and tokens per second over those of a plain loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import torch
from live_bytes import LiveBytes
from safetensors.torch import save_file

from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, match_state
from landscape.model.weight_files import load_weights
from landscape.problem.large_models import without_weights
from landscape.problem.terms import Problem
from landscape.recipes.gpt import GPT

SIZES = {
    "1m": {"vocabulary": 256, "width": 128, "depth": 4, "heads": 4},
    "30m": {"vocabulary": 8192, "width": 512, "depth": 8, "heads": 8},
    "135m": {"vocabulary": 49152, "width": 768, "depth": 14, "heads": 12},
    "1b": {"vocabulary": 50304, "width": 2048, "depth": 18, "heads": 16},
}


def resident() -> dict[str, int]:
    """MiB that are resident: of the process itself, and of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {key: int(fields[key].split()[0]) >> 10 for key in ("RssAnon", "RssFile", "VmHWM")}


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def write_weights(size: str, folder: Path) -> Path:
    file = folder / f"{size}.safetensors"
    if not file.exists():
        with without_weights():
            model = GPT(context=4096, **SIZES[size]).bfloat16()
        generator, state = torch.Generator().manual_seed(0), {}
        for name, parameter in model.named_parameters():
            norm = "norm" in name
            made = torch.empty(parameter.shape, dtype=torch.bfloat16)
            state[name] = made.fill_(float("weight" in name)) if norm else made.normal_(0, 0.02, generator=generator)
        save_file(state, file)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", default="135m", choices=SIZES)
    parser.add_argument("--in", dest="origin_in", default="file", choices=["file", "host", "device"])
    parser.add_argument("--precision", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--held", action="store_true", help="hold the directions instead of drawing them")
    parser.add_argument("--points", type=int, default=0, help="a grid of so many points per axis")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = write_weights(options.size, options.folder)
    with without_weights():
        model = GPT(context=4096, **SIZES[options.size]).bfloat16().eval()
    vocabulary = SIZES[options.size]["vocabulary"]
    rows = options.tokens // options.sequence
    tokens = torch.randint(0, vocabulary, (rows, options.sequence), generator=torch.Generator().manual_seed(1))
    problem = Problem.causal_lm(model, tokens)
    origin, infos = match_state(model, load_weights(file), str(file)), describe_parameters(model)
    start = time.perf_counter()
    directions = [random_direction(origin, infos, seed) for seed in (1, 2)]
    scales = time.perf_counter() - start
    if options.held:
        directions = [dict(direction) for direction in directions]
    rounds = options.precision == "bfloat16"
    plan = Plan(rows, options.threads, "cpu", options.precision, bfloat16_weights=rounds)
    weights = sum(tensor.numel() for tensor in origin.values()) * (2 if rounds else 4)
    gc.collect()
    known = [*origin.values(), *(tensor for direction in directions if options.held for tensor in direction.values())]
    with LiveBytes(known) as live:
        evaluator = Evaluator(
            model, tokens, problem.observe, plan, torch.device("cpu"), origin, directions, origin_in=options.origin_in
        )
        evaluator.weights.set_point([0.3, -0.2])
        of_weights = live.peak
        held = live.now
    setting = seconds(lambda: evaluator.weights.set_point([0.3, -0.2]))
    point = np.array([[0.3, -0.2]])
    evaluator.evaluate(point)
    whole = seconds(lambda: evaluator.evaluate(point))
    own = evaluator.evaluated_model

    def plain() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=rounds):
            problem.observe(own, tokens)

    forward = seconds(plain)
    count = sum(tensor.numel() for tensor in origin.values())
    print(json.dumps({
        "parameters": count, "weights": weights, "held": held / weights, "peak": of_weights / weights,
        "scales_s": scales, "setting_s": setting, "ns_per_parameter": 1e9 * setting / count, "forward_s": forward,
        "setting_over_forward": setting / forward, "point_s": whole,
        "plain_over_point_less_setting": forward / (whole - setting),
        **resident(),
    }, indent=1))  # fmt: skip
    if options.points:
        axis = np.linspace(-1, 1, options.points)
        grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
        start = time.perf_counter()
        values = evaluator.evaluate(grid).mean["loss"]
        print(values.reshape(options.points, -1), time.perf_counter() - start, resident(), os.getpid())


if __name__ == "__main__":
    main()
