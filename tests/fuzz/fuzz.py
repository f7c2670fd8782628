"""Four seeded fuzzers, judged by rule: `python tests/fuzz/fuzz.py --cases 5000 --seed 0`; `make fuzz N=5000`.

Every case is a function of its number and the seed, so that one is done again by `--only NUMBER`, and a stopped one goes
on with `--resume FILE`, to which each case adds a line. All in this process, every twentieth as a real command.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import fuzz_attributes
import fuzz_damage
import fuzz_inputs
import fuzz_page
import numpy as np
import scene as scenes
from cases import Case, Step
from commands import Leftovers, give
from judging import Ended, Kept, Verdict, judge

REAL = 20  # every so many cases are real commands
FUZZERS = {
    "inputs": fuzz_inputs.KINDS,
    "damage": fuzz_damage.KINDS,
    "attributes": fuzz_attributes.KINDS,
    "page": fuzz_page.KINDS,
}
SHARES = {"inputs": 5, "damage": 3, "attributes": 2, "page": 1}


@dataclass(frozen=True)
class Result:
    """A case that was done."""

    number: int
    kind: str
    what: str
    real: bool
    codes: tuple[int | None, ...]
    faults: tuple[str, ...]
    unclear: tuple[str, ...]
    seconds: float


class Fuzzing:
    """A healthy scene, made once, and the cases that start from a copy of it."""

    def __init__(self, folder: Path, seed: int, only: str | None = None, *, aloud: bool = False) -> None:
        self._folder, self._seed, self._aloud = folder, seed, aloud
        self._shares = {only: 1} if only else SHARES
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._temporary)
        os.environ["LANDSCAPE_CACHE"] = str(folder / "cache")
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        self._healthy = scenes.make(folder / "healthy")
        self._values = scenes.values(self._healthy.run)

    def do(self, number: int) -> Result:
        chance = random.Random(f"{self._seed}/{number}")
        fuzzer = chance.choices(list(self._shares), list(self._shares.values()))[0]
        kinds = FUZZERS[fuzzer]
        kind = chance.choices(list(kinds), [weight for _, weight in kinds.values()])[0]
        place = self._folder / f"case-{number}"
        scene = scenes.copied(self._healthy, place)
        started, real = time.monotonic(), number % REAL == 0
        try:
            case = kinds[kind][0](chance, scene)
            verdict, codes = self._judged(case, scene, real)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        seconds = round(time.monotonic() - started, 2)
        return Result(number, f"{fuzzer}: {kind}", case.what, real, codes, verdict.faults, verdict.unclear, seconds)

    def _judged(self, case: Case, scene: scenes.Scene, real: bool) -> tuple[Verdict, tuple[int | None, ...]]:
        users, leftovers, verdict, codes = scene.kept(), Leftovers(self._temporary), Verdict(), []
        for step in case.steps:
            before = _snapshots(scene) if step.keeps and "import" in step.words else None
            asks = step.words[0] == fuzz_page.PAGE
            words = step.words[1:] if asks else step.words
            ended = fuzz_page.ask(words, scene.folder) if asks else give(words, scene.folder, real=real)
            codes.append(ended.code)
            if self._aloud:
                print(f"$ landscape {shlex.join(step.words)}\n{ended.out}{ended.err}-> {ended.code}", file=sys.stderr)
            found = judge(ended, step.named, refused=step.refused, raised=step.raised)
            found += self._values_as_before(step, ended, scene)
            if before is not None and ended.code != 0:
                found += before.verdict()
            verdict += Verdict(
                *(tuple(f"{step.words[0]}: {each}" for each in kind) for kind in (found.faults, found.unclear))
            )
        return verdict + users.verdict() + leftovers.verdict(), tuple(codes)

    def _values_as_before(self, step: Step, ended: Ended, scene: scenes.Scene) -> Verdict:
        """A job that was done again has the values that it had."""
        if not step.same or ended.code != 0:
            return Verdict()
        faults = []
        try:
            found = scenes.values(scene.run)
        except Exception as error:
            return Verdict((f"code 0, and cannot be read: {type(error).__name__}: {error}"[:200],))
        for name, observables in self._values.items():
            for observable, values in observables.items():
                other = found[name].get(observable)
                if other is None or not np.array_equal(values, other, equal_nan=values.dtype.kind == "f"):
                    faults.append(f"{name}/{observable} has other values")
        return Verdict(tuple(faults[:2]))


def _snapshots(scene: scenes.Scene) -> Kept:
    files = [*scene.run.glob("trajectory/*.safetensors"), scene.run / "history.jsonl", scene.run / "run.json"]
    return Kept.of(*(each for each in files if each.is_file()))


def report(results: Sequence[Result], seconds: float) -> str:
    faults = [each for each in results if each.faults]
    unclear = [each for each in results if each.unclear and not each.faults]
    lines = [f"{len(results)} cases in {seconds:.0f} s: {len(faults)} break a rule, {len(unclear)} unclear"]
    by_kind = collections.Counter(each.kind for each in results)
    lines += [f"  {kind:24} {count:5}" for kind, count in sorted(by_kind.items())]
    for title, those, which in (("breaks a rule", faults, "faults"), ("unclear", unclear, "unclear")):
        for each in those:
            lines.append(
                f"{title}: --only {each.number} ({each.kind}; {each.what[:110]}): {'; '.join(getattr(each, which))[:300]}"
            )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case, by its number, with all that it says")
    parser.add_argument("--fuzzer", choices=sorted(FUZZERS), help="this one alone")
    parser.add_argument("--resume", type=Path, help="a file of results to add to; what it holds is not done again")
    given = parser.parse_args(words)
    done = (
        [json.loads(line) for line in given.resume.read_text().splitlines()]
        if given.resume and given.resume.exists()
        else []
    )
    results = [Result(**{**each, **{k: tuple(each[k]) for k in ("codes", "faults", "unclear")}}) for each in done]
    known = {each.number for each in results}
    numbers = [given.only] if given.only is not None else [k for k in range(given.cases) if k not in known]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llf", ignore_cleanup_errors=True) as name:
        fuzzing = Fuzzing(Path(name) / "f", given.seed, given.fuzzer, aloud=given.only is not None)
        for number in numbers:
            result = fuzzing.do(number)
            results.append(result)
            if given.resume:
                with open(given.resume, "a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            if result.faults or given.only is not None:
                print(f"{number}: {result}", file=sys.stderr, flush=True)
    print(report(results, time.monotonic() - started))
    return (
        1
        if any(each.faults for each in results) or sum(bool(each.unclear) for each in results) > len(results) / 100
        else 0
    )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    gc.freeze()
    sys.exit(code)
