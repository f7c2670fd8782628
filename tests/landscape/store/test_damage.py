"""Every kind of file of a run damaged in every way: said in a line, mended or refused by name, and nothing lost.

The damages are in `tests/support/damages.py`; here are the run that they happen to and the rule that judges what
follows.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damages import Damage, damaged_copy, damages_of, kinds_of
from small_models import Quadratic, make_job, quadratic_problem, train_quadratic

from cluster.runtime.status import run_status, status_text, validate_run, validation_text
from landscape import TrajectoryCollector, open_run, run
from landscape.core.errors import LandscapeError

# `b` needs nothing of what training left, so that no damage there keeps it from being read.
SPECS = [
    {"name": "a", "trajectory": [1, 2, 3], "size": [4, 3]},
    {"name": "b", "origin": "problem", "directions": [{"kind": "random"}], "size": 5},
]
INTERNAL = re.compile(
    r"Traceback|JSONDecode|KeyError|TypeError|ValueError|AttributeError|RecursionError|UnicodeDecode|IndexError"
    r"|Errno|zarr\.core|zarr\.errors|pydantic|NodeNotFound|object at 0x|\x1b"
)
SAMPLE = 12


def job_of(place: Path) -> Any:
    problem = quadratic_problem()
    return make_job(place, lambda: problem, SPECS, tile=2, engine="eager", batch_size=16, num_samples=23)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A training of three epochs, and both landscapes computed."""
    place = tmp_path_factory.mktemp("whole") / "run"
    model = Quadratic()
    collector = TrajectoryCollector(place, model, unit="epoch", intervals=[[1, 2, 3]], num_samples=23)
    train_quadratic(collector, model, range(3))
    run(job_of(place))
    return place


def cases(whole: Path, count: int | None = None) -> list[tuple[str, Damage, int]]:
    """Damages of every kind of file, each with its seed; so many of them at random, the documents' ones first."""
    found = [(path, each) for path in kinds_of(whole).values() for each in damages_of(path)]
    numbered = [(path, damage, seed) for seed, (path, damage) in enumerate(found)]
    if count is None:
        return numbered
    telling = ("run.json", "history.jsonl", "zarr/zarr.json", "a/zarr.json", "a/status/zarr.json")
    first = [case for case in numbered if case[0].endswith(telling)]
    rest = [case for case in numbered if case not in first]
    chance = random.Random(0)
    return [*chance.sample(first, count // 2), *chance.sample(rest, count - count // 2)]


@pytest.mark.faults
def test_damages_are_met_by_rule(whole, tmp_path):
    assert not "\n".join(judged(whole, tmp_path, cases(whole, SAMPLE)))


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_every_damage_is_met_by_rule(whole, tmp_path):
    assert not "\n".join(judged(whole, tmp_path, cases(whole)))


def judged(whole: Path, tmp_path: Path, chosen: list[tuple[str, Damage, int]]) -> list[str]:
    """What breaks the rule, a line for each case that does."""
    wrong = []
    for path, damage, seed in chosen:
        place = tmp_path / "damaged" / "run"
        shutil.rmtree(place.parent, ignore_errors=True)
        damaged_copy(whole, place, path, damage, seed)
        try:
            judge(whole, place, path)
        except AssertionError as error:
            wrong.append(f"{path}: {damage.name} (seed {seed}): {str(error)[:500]}")
        except Exception as error:
            wrong.append(f"{path}: {damage.name} (seed {seed}): raised {type(error).__name__}: {str(error)[:300]}")
    return wrong


def judge(whole: Path, place: Path, path: str) -> None:
    """The rule: what must hold of a run with one damaged file, before and after the job is given again."""
    look(whole, place, path)
    before = files_of(place)
    again = attempt(lambda: run(job_of(place)))
    after = files_of(place)
    for name, data in before.items():
        if name != path and not name.endswith("zarr.json"):
            assert after.get(name) == data, f"{name} is lost or changed"
    if again is None:
        return look(whole, place, path)
    for name, data in files_of(whole).items():
        if "/c/" in name:
            assert after.get(name) == data, f"{name} has other bytes than before"
    if path.startswith("landscapes.zarr"):
        assert validate_run(str(place))["damaged"] == 0, "it is mended"
    return None


def look(whole: Path, place: Path, path: str) -> None:
    """All readers: none falls over, and the landscape that is not damaged is read as it was."""
    status = attempt(lambda: run_status(str(place)))
    assert status is not None
    said(status_text(status))
    said(validation_text(validate_run(str(place))))
    opened, expected = open_run(place), open_run(whole)
    for name in ("a", "b"):
        surface = attempt(lambda name=name: opened[name])
        if f"/{name}/" not in path:
            assert surface is not None, f"{name} cannot be read"
            assert surface.loss.tobytes() == expected[name].loss.tobytes()
        elif surface is not None:
            believed = surface.status != 0
            assert surface.loss[believed].tobytes() == expected[name].loss[believed].tobytes()
    attempt(lambda: opened.history)
    attempt(lambda: opened.info)


def attempt(action: Callable[[], Any]) -> Any:
    """What it returns, or None where it is refused in a line or two."""
    try:
        return action()
    except LandscapeError as error:
        refusal = error
    said(str(refusal))
    assert refusal.exit_code in (1, 2, 3, 4)
    assert str(refusal).count("\n") <= 2
    return None


def said(text: str) -> None:
    assert not INTERNAL.search(text), text
    assert all(len(line) < 1500 for line in text.splitlines())


def files_of(place: Path) -> dict[str, bytes]:
    """Every file by its path; what is none by an empty content."""
    found = (each for each in place.rglob("*") if not each.name.startswith("driver.") and not each.is_dir())
    return {each.relative_to(place).as_posix(): each.read_bytes() if each.is_file() else b"" for each in found}
