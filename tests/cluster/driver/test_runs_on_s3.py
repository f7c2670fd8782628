"""A run on S3 as a user has it: by the commands, and on Ray with workers that know nothing of the store."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from object_stores import SECRET, Raw, Trouble, new_url, s3_server, use

import cluster
import landscape
from cluster.commands.entry import main
from landscape.core.lock import run_lock
from landscape.job.reading import read_job
from landscape.model.parameters import state_digest
from landscape.model.snapshots import read_trajectory
from landscape.surface.surface import OK

Call = Callable[..., tuple[int, str, str]]
DEBUG = ((), ("--debug",))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def place(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, endpoint)
    return new_url()


@pytest.fixture
def call(capfd, monkeypatch, tmp_path) -> Call:
    """Give the command in this process; its exit code, stdout and stderr. No secret may be said."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["landscape", *map(str, arguments)])
        monkeypatch.chdir(tmp_path)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        capfd.readouterr()
        sys.modules.pop("my_problem", None)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        shown = capfd.readouterr()
        assert SECRET not in shown.out + shown.err
        return int(ended.value.code or 0), shown.out, shown.err

    return run


def test_workers_without_credentials_give_the_bytes_of_a_local_run(local_ray, make_job, endpoint, monkeypatch):
    # The local Ray is there before the credentials are, so no worker has them.
    use(monkeypatch, endpoint)
    job = make_job(
        """
        def trouble(x, y):
            note("env.log", f"{os.getpid()} {'AWS_SECRET_ACCESS_KEY' in os.environ}")
        """,
        tile=[3, 4],
    )
    url = new_url()
    found = cluster.run(job.replace(run=url), workers=2)["plane"]
    assert (found.status == OK).all()
    seen = {tuple(line.split()) for line in (job.folder / "env.log").read_text().splitlines()}
    assert {credentials for _, credentials in seen} == {"False"}, seen
    assert len(seen) <= 2, "one process per worker"
    assert str(os.getpid()) not in dict(seen)
    assert "AWS_SECRET_ACCESS_KEY" in os.environ
    landscape.run(job)
    raw = Raw(url, endpoint)
    assert raw.values() == Raw(job.run_path, endpoint).values()
    assert not [key for key in raw.keys() if SECRET.encode() in raw.read(key)]  # noqa: SIM118
    assert "driver.json" not in raw.keys()  # noqa: SIM118


@pytest.mark.faults
def test_every_command_serves_a_run_on_s3(call, write_job, place, endpoint, tmp_path):
    file, raw = write_job(tile=[5, 7]), Raw(place, endpoint)  # each chunk is a request of every command
    code, out, _ = call("plan", file, "--run", place)
    assert code == 0
    assert f"run {place}\nplane: 9 x 7" in out
    assert raw.keys() == [], "plan writes nothing"
    assert call("status", place)[0] == 3

    code, out, _ = call("run", file, "--serial", "--run", place)
    assert code == 0
    assert "plane  complete     63/63 points" in out
    landscape.run(read_job(file, run=str(tmp_path / "local")))
    assert raw.values() == Raw(str(tmp_path / "local"), endpoint).values()
    status = json.loads(call("status", place, "--json")[1])
    assert (status["run"], status["driver"], status["landscapes"][0]["done"]) == (place, False, 63)
    with run_lock(place):
        assert json.loads(call("status", place, "--json")[1])["driver"] is True
        code, _, said = call("run", file, "--serial", "--run", place)
        assert code == 1
        assert "is being written by process" in said
    assert "63 of them still" not in call("plan", file, "--run", place)[1]

    assert call("validate", place)[0] == 0
    key = "landscapes.zarr/plane/loss/c/0/1"
    intact = raw.read(key)
    raw.write(key, intact[:-2])
    code, out, _ = call("validate", place)
    assert code == 1
    assert "loss chunk 0/1" in out
    assert call("run", file, "--serial", "--run", place)[0] == 0
    assert raw.read(key) == intact

    code, out, _ = call("export", place, "--to", "csv,npz")
    assert code == 0
    assert out.splitlines() == ["run-export/plane.csv", "run-export/plane.npz"]
    assert (tmp_path / "run-export" / "plane.csv").is_file()


TRAINING = """
import torch

def train(training, fails: bool = False):
    model = torch.nn.Linear(2, 1)
    network, done = training.prepare(model), training.resume(model=model)
    collector = training.collector(model, unit="epoch", intervals=[[0, 1, 2]])
    for epoch in range(done.get("epoch", 0), 2):
        for share in training.batches(4, 2, epoch):
            collector.step(training.mean(network(torch.ones(2, 2)).mean()))
        collector.end_epoch()
        training.keep(model=model, epoch=epoch + 1)
        if fails:
            raise ValueError(f"after epoch {epoch}")
"""


def test_a_training_on_s3_goes_on_and_has_its_log_there(call, place, endpoint, tmp_path):
    (tmp_path / "trains_on_s3.py").write_text(TRAINING)
    code, out, said = call("train", "trains_on_s3:train", "--run", place, "--fails")
    assert (code, out) == (1, "")
    assert "raised ValueError: after epoch 0 (trains_on_s3.py:14)" in said
    code, out, _ = call("train", "trains_on_s3:train", "--run", place)
    assert code == 0
    assert ": 1 epoch, 2 steps, " in out
    code, out, _ = call("logs", place, "--rank", "0", "--follow")
    assert code == 0
    assert out.count("starts: process") == 2
    assert "ValueError: after epoch 0" in out
    assert list(read_trajectory(place).numbers) == [0, 1, 2]
    assert not [key for key in Raw(place, endpoint).keys() if "training." in key]  # noqa: SIM118


def test_checkpoints_are_imported_to_s3_and_overwritten_when_asked(call, place, endpoint, tmp_path):
    files = [tmp_path / f"{k}.pt" for k in range(3)]
    for k, file in enumerate(files):
        torch.save({"x": torch.full((1, 1), float(k)), "y": torch.zeros(1, 1)}, file)
    code, _, said = call("import", *files, "--run", place)
    assert code == 0
    assert f"3 snapshots in {place}" in said
    code, _, said = call("import", *files[:2], "--run", place)
    assert code == 2
    assert "--overwrite" in said
    assert call("import", *files[:2], "--run", place, "--overwrite")[0] == 0
    assert [key for key in Raw(place, endpoint).keys() if "trajectory" in key] == [  # noqa: SIM118
        "trajectory/step-00000.safetensors", "trajectory/step-00001.safetensors",
    ]  # fmt: skip
    assert call("validate", place)[0] == 0


def test_doctor_tries_the_store_out_and_names_the_remedy(call, place, endpoint, monkeypatch, tmp_path):
    def finding(run: str) -> dict[str, str]:
        _, out, _ = call("doctor", "--run", run, "--json")
        return next(each for each in json.loads(out) if each["what"] == "run")

    found = finding(place)
    assert found["state"] == "good"
    for step in ("look", "write", "read", "list", "create again", "delete"):
        assert f"{step} " in found["value"]
    assert found["value"].count(" ms") == 6
    assert Raw(place, endpoint).keys() == []
    assert finding(str(tmp_path))["state"] == "good"
    missing = finding("s3://no-such-bucket/run")
    assert missing["state"] == "wrong"
    assert "there is no such bucket" in missing["value"]
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "AWS_ALLOW_HTTP=true" in finding(place)["value"]


@pytest.mark.faults
def test_a_store_that_is_down_ends_in_one_line_and_credentials_in_its_address_are_not_repeated(
    call, write_job, place, endpoint, monkeypatch
):
    file = write_job(tile=[9, 7])
    assert call("run", file, "--serial", "--run", place)[0] == 0
    commands = (["run", file, "--serial", "--run", place], ["status", place], ["validate", place])
    with Trouble(endpoint).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_RETRY="0.3")
        trouble.down = True
        for command, debug in itertools.product(commands, DEBUG):
            code, out, said = call(*command, *debug)
            assert code == 1
            assert out == ""
            assert f"store '{place}': GET: 503 Service Unavailable (SlowDown); what was committed is intact" in said
            assert debug or said.count("\n") == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secretword@127.0.0.1:1")
    for debug in DEBUG:
        code, _, said = call("status", place, *debug)
        assert (code, "secretword" in said) == (2, False)
        assert "AWS_ENDPOINT_URL: must not hold credentials" in said


def test_a_wrong_url_is_bad_usage(call, write_job):
    code, _, said = call("run", write_job(), "--serial", "--run", "ftp://host/run")
    assert code == 2
    assert "unknown kind of URL 'ftp://'; known: file, s3" in said


@pytest.mark.faults
def test_a_training_on_s3_goes_on_from_its_checkpoint_there(place, endpoint, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from landscape.recipes import digits

    def stop(epoch: int, metrics: object) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    expected = digits.train(tmp_path / "local", epochs=2)
    with pytest.raises(KeyboardInterrupt):
        digits.train(place, epochs=2, report=stop)
    assert read_trajectory(place).numbers == (0, 1)
    reported: list[int] = []
    found = digits.train(place, epochs=2, report=lambda epoch, metrics: reported.append(epoch))
    assert reported == [2]
    kept = [key for key in Raw(place, endpoint).keys() if key.startswith("checkpoints/")]  # noqa: SIM118  # no mapping
    assert kept == ["checkpoints/step-00000090.pt", "checkpoints/step-00000180.pt"]
    assert state_digest(found.model.state_dict()) == state_digest(expected.model.state_dict())
    for number in (0, 1, 2):
        assert state_digest(read_trajectory(place).snapshot(number).load()) == state_digest(
            read_trajectory(tmp_path / "local").snapshot(number).load()
        )
