"""What code of the user's raises, wherever it runs: one line that says what it did and where."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import make_job, observe_quadratic, quadratic_problem, quadratic_samples
from torch.utils.data import DataLoader, Dataset
from waiting import wait_for

from landscape import JobError, Problem, run
from landscape.compute.prepare import prepare
from landscape.problem import user_code
from landscape.problem.callback import load_problem
from landscape.problem.selection import select_samples
from landscape.problem.user_code import calling
from landscape.surface.surface import QUARANTINED

RAISING = {
    "an end": ("import sys\nsys.exit(0)", r"called sys\.exit\(0\)", 2),
    "an end in words": ("raise SystemExit('no data')", r"called sys\.exit\(no data\)", 1),
    "an end without a word": ("raise SystemExit", r"called sys\.exit\(\)", 1),
    "the end of a generator": ("raise GeneratorExit('boom')", r"raised GeneratorExit: boom", 1),
    "recursion": ("def f():\n    f()\nf()", "calls itself without end", 2),
    "memory": ("raise MemoryError('8 TiB')", "ran out of memory: 8 TiB", 1),
    "long": ("raise ValueError('x' * 200_000)", "raised ValueError: x+…x+", 1),
    "coloured": ("raise ValueError('\\x1b[31mred\\nline')", r"raised ValueError: \\u001b\[31mred line", 1),
    "mute": ("class Mute(Exception):\n    __str__ = lambda self: 1 / 0\nraise Mute", r"raised Mute: .*read\)", 3),
}


def told(call) -> str:
    with pytest.raises(JobError) as found:
        call()
    line = str(found.value)
    assert "\n" not in line
    assert len(line) < 700
    return line


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("raising", None)


def test_a_callback_that_takes_long_is_named_while_it_runs(tmp_path, monkeypatch, caplog):
    def slow() -> Problem:
        wait_for(lambda: caplog.messages, "a word about the slow callback")
        return quadratic_problem()

    monkeypatch.setattr(user_code, "SLOW_SECONDS", 0.05)
    prepare(make_job(tmp_path / "run", slow, [{"name": "a", "size": 3}], num_samples=4))
    [said] = caplog.messages
    assert said.startswith("problem: slow has not returned for 0.05 s; every command and every worker calls it")


def test_a_file_that_is_read_slowly_is_not_taken_for_a_callback(tmp_path, monkeypatch, caplog):
    def read(*_: object) -> Problem:
        time.sleep(0.2)
        return quadratic_problem()

    monkeypatch.setattr(user_code, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr("landscape.compute.prepare.load_problem", read)
    problem = "model.onnx with samples.npz and mse"
    prepare(make_job(tmp_path / "run", problem, [{"name": "a", "size": 3}], num_samples=4))
    assert not caplog.messages


@pytest.mark.parametrize(("body", "words", "line"), RAISING.values(), ids=RAISING)
def test_a_module_that_raises_when_it_is_imported(folder, body, words, line):
    (folder / "raising.py").write_text(body)
    pattern = rf"^problem: module 'raising' does not import: it {words} \(raising\.py:{line}\); it is looked up"
    with pytest.raises(JobError, match=pattern):
        load_problem("raising:problem", folder)


@pytest.mark.parametrize(("body", "words", "line"), RAISING.values(), ids=RAISING)
def test_a_callback_that_raises(folder, body, words, line):
    indented = "\n    ".join(body.splitlines())
    (folder / "raising.py").write_text(f"def problem():\n    {indented}\n")
    pattern = rf"^problem: raising:problem {words} \(raising\.py:{line + 1}\); it must return a Problem"
    with pytest.raises(JobError, match=pattern):
        load_problem("raising:problem", folder)


class Raising(Dataset):
    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def __len__(self) -> int:
        self.perhaps("len")
        return 20

    def __getitem__(self, index: int) -> float:
        self.perhaps("item")
        return float(index)

    def collate(self, items: list[float]):
        self.perhaps("collate")

    def perhaps(self, where: str) -> None:
        if where == self.where:
            raise self.error


PLACES = {
    "len": r"data: len\(\) of Raising",
    "item": r"data: sample \d+ of Raising \(length 20\)",
    "collate": "data: the collate function, given 5 samples of Raising,",
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(0), r"called sys\.exit\(0\)"),
        (StopIteration(), "raised StopIteration"),
        (OSError("x"), "raised OSE"),
    ],
    ids=["exit", "stop", "error"],
)
def test_data_that_raise_name_the_sample_and_the_place(where, error, words):
    data = Raising(where, error)
    line = told(lambda: select_samples(DataLoader(data, collate_fn=data.collate), 5, 0).samples.batch(0, 5))
    with pytest.raises(JobError, match=rf"^{PLACES[where]} {words}.*test_usercode\.py:\d+\)$"):
        raise JobError(line)


def without_end(model, batch):
    return without_end(model, batch)


def leaving(model, batch):
    sys.exit(0)


ENDINGS = {
    "exit": (leaving, r"called sys\.exit\(0\) \(.*test_usercode\.py:\d+\)"),
    "recursion": (without_end, r"calls itself without end \(.*test_usercode\.py:\d+\)"),
}


@pytest.fixture
def nothing_to_collect() -> Iterator[None]:
    """Where the stack is full, the finalisers of what other tests have left would fail."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.long
@pytest.mark.usefixtures("nothing_to_collect")
@pytest.mark.parametrize(("observe", "words"), ENDINGS.values(), ids=ENDINGS)
def test_an_observe_that_ends_the_process_is_told_at_the_first_look(tmp_path, observe, words):
    problem = Problem(quadratic_problem().model, quadratic_samples(), observe)
    with pytest.raises(JobError, match=rf"^observe: {words} on the first 2 samples$"):
        run(make_job(tmp_path, lambda: problem, [{"name": "plane", "size": 3}]))


@pytest.mark.long
@pytest.mark.usefixtures("nothing_to_collect")
@pytest.mark.parametrize(("trouble", "words"), ENDINGS.values(), ids=ENDINGS)
def test_an_observe_that_ends_the_process_later_fails_its_tiles(tmp_path, trouble, words):
    def observe(model, batch):
        return trouble(model, batch) if len(batch) > 2 else observe_quadratic(model, batch)

    problem = Problem(quadratic_problem().model, quadratic_samples(), observe)
    spec = {"name": "plane", "directions": [{"kind": "random"}], "size": 3}
    surface = run(make_job(tmp_path, lambda: problem, [spec], engine="eager", tile=3))["plane"]
    assert (surface.status == QUARANTINED).all()
    (failure,) = surface.attributes["failures"]
    assert re.fullmatch(words, failure["cause"])


def test_torchs_complaints_about_samples_come_without_a_place_in_torch():
    line = told(lambda: select_samples([object()] * 9, 5, 0))
    assert line.startswith("data: the collate function, given 2 samples of list, raised TypeError: default_collate")
    assert "site-packages" not in line


def test_an_interruption_is_not_told_as_a_failure():
    with pytest.raises(KeyboardInterrupt), calling("data: reading"):
        raise KeyboardInterrupt


def test_a_librarys_error_names_the_users_line_that_called_it():
    with (
        pytest.raises(JobError, match=r"^data: a loader raised ValueError: .*test_usercode\.py:\d+\)$"),
        calling("data: a loader"),
    ):
        DataLoader([1], batch_size=-1)
