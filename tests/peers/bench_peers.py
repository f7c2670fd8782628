"""Time per point of public loss-landscape packages and of this project, on the same model, samples, plane and thread.

`make bench-peers` installs the packages into an environment of its own and runs this; see README.md beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from adapters import COMPILED, contenders
from report import agreements, record, table
from rounds import run_rounds
from subjects import SUBJECTS, Lattice, MissingData

from landscape.evaluation.tuning.choices import CACHE

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"lenet": 9, "resnet20": 4}  # rows as long as those of short tiles
BATCH_SIZES = (32, 64, 128, 256, 512, 2048)
PACKAGES = ("torch", "numpy", "loss-landscapes", "landscaper", "loss-landscape-3d", "loss-landscape-cluster")


def surroundings() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(), "processor": _processor(), "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(), "versions": versions,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SUBJECTS, "all"], default="all")
    parser.add_argument("--side", type=int, help="side × side points a round; default 9 for LeNet-5, 4 for ResNet-20")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=BATCH_SIZES, help="of which each peer gets its best"
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument(
        "--no-search", action="store_true", help="this project as in a short job: no engine is searched for or kept"
    )
    parser.add_argument("--compiled", action="store_true", help="also the bare forward under torch.compile (needs gcc)")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument(
        "--quick", action="store_true", help="256 samples, 2 rounds of 3 × 3: whether it works, no figures"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.side, options.rounds, options.samples, options.batch_sizes = 3, 2, 256, (64, 256)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(1)
    if options.no_search:
        os.environ[CACHE] = ""
    names = list(SUBJECTS) if options.model == "all" else [options.model]
    found: dict[str, Any] = {**surroundings(), "results": []}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ll") as folder:
            lattice = Lattice(options.side or SIDES[name])
            _progress(f"{name}: begins")
            try:
                subject = SUBJECTS[name](options.data, Path(folder), options.samples)
            except MissingData as reason:
                print(f"{name}: left out: {reason}")
                found["results"].append({"model": name, "reason": str(reason)})
                continue
            tools = [
                *([COMPILED] if options.compiled else []),
                *contenders(Path(folder), searches=not options.no_search),
            ]
            rows = run_rounds(tools, subject, lattice, options.rounds, options.batch_sizes, _progress)
            agreed = agreements(subject, rows)
        print(table(subject, lattice, rows, agreed), end="\n\n")
        found["results"].append(record(subject, lattice, rows, agreed))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
