"""A disk that is full, closed or taken away at any write of a job: one line, nothing false, and the job goes on."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import make_job, quadratic_problem

from landscape import open_run, rename_landscape, run
from landscape.core.errors import LandscapeError
from landscape.core.files import LocalFolder
from landscape.store.chunk_io import DurableStore
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import survey

REASONS = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}
SPECS = [{"name": "a", "directions": [{"kind": "random"}], "size": 4}]


def job_of(place: Path) -> Any:
    problem = quadratic_problem()
    return make_job(place, lambda: problem, SPECS, tile=2, engine="eager", batch_size=23, num_samples=23)


class Failing:
    """Lets so many writes through, of the store's own and of whole files, and then none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int, code: int) -> None:
        self.left, self.code = left, code
        real_put, real_write = DurableStore.put, LocalFolder.write

        def failing_put(store: Any, key: str, data: bytes, exclusive: bool = False) -> None:
            self.count(key)
            real_put(store, key, data, exclusive)

        def failing_write(folder: Any, path: str, data: bytes) -> None:
            self.count(path)
            real_write(folder, path, data)

        monkeypatch.setattr(DurableStore, "put", failing_put)
        monkeypatch.setattr(LocalFolder, "write", failing_write)

    def count(self, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.code, REASONS[self.code], path)


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EROFS, marks=pytest.mark.faults)])
def test_every_write_may_be_the_first_that_fails(tmp_path, monkeypatch, code):
    expected = run(job_of(tmp_path / "whole"))["a"].loss.tobytes()
    with monkeypatch.context() as counted:
        writes = Failing(counted, 10**6, code)
        run(job_of(tmp_path / "counted"))
        total = 10**6 - writes.left
    assert total > 25
    for number in range(0, total, 11 if code == errno.ENOSPC else 19):
        place = tmp_path / f"{number}"
        with monkeypatch.context() as patched:
            Failing(patched, number, code)
            refusal = rf"cannot be written: {REASONS[code]}; what was committed is"
            with pytest.raises(LandscapeError, match=refusal) as caught:
                run(job_of(place))
        assert "\n" not in str(caught.value)
        assert not survey(place).unreadable
        for name, surface in open_run(place).items():
            believed = surface.status != 0
            assert surface.loss[believed].tobytes() == open_run(tmp_path / "whole")[name].loss[believed].tobytes()
        assert run(job_of(place))["a"].loss.tobytes() == expected
        assert LandscapeStore.open(place, "a").problems() == []
        assert not list(place.rglob(".making-*"))


def test_a_run_that_is_taken_away_meanwhile_is_said_and_not_half_made_anew(tmp_path):
    place, gone = tmp_path / "run", False

    def stop() -> bool:
        nonlocal gone
        if not gone and (place / "landscapes.zarr" / "a" / "status" / "c").is_dir():
            gone = True
            shutil.rmtree(place)
        return False

    job = job_of(place)
    with pytest.raises(
        LandscapeError, match=r"cannot be written: .*: '.*'; put back what was moved or deleted, or"
    ) as e:
        run(job, stop=stop)
    assert "\n" not in str(e.value)
    assert not (place / "landscapes.zarr").exists()
    assert (run(job)["a"].status == 1).all()


def test_a_rename_says_whether_it_is_done_and_the_same_call_does_the_rest(tmp_path, monkeypatch):
    run(job_of(tmp_path / "run"))
    said = []
    for number in range(20):
        place = shutil.copytree(tmp_path / "run", tmp_path / f"{number}")
        with monkeypatch.context() as patched:
            Failing(patched, number, errno.ENOSPC)
            message = _refusal(lambda place=place: rename_landscape(place, "a", "z"))
        if not message:
            break
        said.append("'a' is 'z' now" in message)
        assert said[-1] == ("give the same command again" not in message), message
        assert "No space left on device; " in message
        assert list(open_run(place)) == (["z"] if said[-1] else ["a"])
        rename_landscape(place, "a", "z")
        assert list(open_run(place)) == ["z"]
        assert LandscapeStore.open(place, "z").problems() == []
    assert set(said) == {False, True}


def _refusal(call: Callable[[], None]) -> str:
    """What it raises; empty if nothing."""
    try:
        call()
    except LandscapeError as error:
        return str(error)
    return ""
