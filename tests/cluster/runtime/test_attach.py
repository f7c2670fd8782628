"""Who answers at an address: real heads, open and with a token, on this machine's own address; and what is no head."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_commands import CLI, command

from cluster.runtime import address as attach
from landscape.core.errors import ClusterUnreachableError, JobError

TOKEN = secrets.token_hex(32)
OWN_VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch, tmp_path):
    for name in (*OWN_VARIABLES, attach.IN_A_RAY_JOB):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_what_listens_but_is_no_head_is_told_from_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"220 mail\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ClusterUnreachableError, match="what listens there is no Ray head"):
            attach.check_address(f"127.0.0.1:{port}", allow_open=False)
        server.shutdown(socket.SHUT_RDWR)


def test_a_cluster_behind_certificates_is_left_to_ray(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert attach.check_address(f"127.0.0.1:{server.getsockname()[1]}", allow_open=False) == "tls"


@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        ("ray://127.0.0.1:10001", JobError, "Ray Client"),
        ("somewhere", JobError, "host:port"),
        ("127.0.0.1:1", ClusterUnreachableError, "no Ray cluster answers"),
    ],
)
def test_what_is_no_address_is_refused_at_once(address, kind, said):
    with pytest.raises(kind, match=said):
        attach.check_address(address, allow_open=True)


@pytest.mark.parametrize(
    ("environment", "shown", "with_file"),
    [
        ({}, False, False),
        ({"RAY_AUTH_MODE": "token"}, False, True),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}, True, True),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, False, False),
        ({"RAY_AUTH_TOKEN": "x"}, False, False),
    ],
)
def test_a_token_is_shown_where_it_is_asked_for_and_found(environment, shown, with_file, monkeypatch, tmp_path):
    """Ray shows none without its mode, even where a token lies in the usual file."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert attach.has_token() is shown
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x")
    assert attach.has_token() is with_file


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("10.0.0.1", False), ("head.example.org", False),
    ],
)  # fmt: skip
def test_only_this_machine_counts_as_loopback(host, here):
    assert attach.is_loopback(host) is here


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="where a socket is bound is read from Linux's /proc")
@pytest.mark.parametrize(
    ("bound", "family", "dual", "beyond"),
    [
        ("127.0.0.1", socket.AF_INET, False, False),
        ("127.8.8.8", socket.AF_INET, False, False),
        ("0.0.0.0", socket.AF_INET, False, True),
        ("::ffff:127.0.0.1", socket.AF_INET6, True, False),
        ("::1", socket.AF_INET6, False, False),
        ("::", socket.AF_INET6, True, True),
    ],
)
def test_what_a_head_is_bound_to_counts_not_the_address_it_is_called_by(bound, family, dual, beyond):
    with socket.socket() as free:
        free.bind(("", 0))  # at every address: another's socket of that number would count
        port = free.getsockname()[1]
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        try:
            server.bind((bound, port))
        except OSError:
            pytest.skip("this machine has no such address")
        server.listen()
        assert attach.bound_addresses(port) == [bound.removeprefix("::ffff:")]
        assert [attach.is_beyond(host, port) for host in ("127.0.0.1", "localhost", "[::1]")] == [beyond] * 3
        assert attach.is_beyond("192.0.2.1", port)


def test_a_socket_that_is_listed_twice_counts_once(tmp_path, monkeypatch):
    """Linux repeats rows of its tables where sockets appear while they are read."""
    row = "  0: 0000000000000000FFFF00000100007F:1F90 {zeros}:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1"
    (tmp_path / "tcp6").write_text("header\n" + 2 * (row.format(zeros=32 * "0") + "\n"))
    monkeypatch.setattr(attach, "SOCKET_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert attach.bound_addresses(0x1F90) == ["127.0.0.1"]
    assert attach.bound_addresses(0x1F91) == []


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "RAY_AUTH_MODE is not set"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, "RAY_AUTH_MODE='disabled'"),
        ({"RAY_AUTH_MODE": "token"}, "neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set, and ~/.ray/auth_token"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nonexistent/t"},
            "RAY_AUTH_TOKEN_PATH='/nonexistent/t': no such file",
        ),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/"}, "RAY_AUTH_TOKEN_PATH='/': is a directory"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/dev/null"},
            "RAY_AUTH_TOKEN_PATH='/dev/null': it is empty",
        ),
    ],
)
def test_no_token_that_was_sent_is_told_from_one_that_is_refused(environment, why, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = str(attach.wrong_token("the cluster"))
    assert told.startswith(f"address: no token was sent ({why}")
    assert "the cluster asks for a token; " in told
    assert ("set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in told) is ("_PATH=" not in why)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    assert str(attach.wrong_token("the cluster")).startswith("address: the cluster refuses the token; ")


def test_a_head_that_falls_silent_is_told_of_once_with_its_deadline_and_its_return(monkeypatch, caplog):
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv(attach.PATIENCE, raising=False)
    time.tzset()
    now, answers = 36000.0, True
    watch = attach.HeadWatch("10.0.0.1:6379", lambda: answers, lambda: now)

    def look(seconds: float, answered: bool) -> None:
        nonlocal now, answers
        now, answers = now + seconds, answered
        watch.look()

    look(3, True)
    look(3, False)
    look(3, True)  # too short for a word
    look(3, False)
    look(3, False)
    assert not caplog.messages
    for _ in range(3):
        look(3, False)
    assert caplog.messages == [
        "the cluster at '10.0.0.1:6379' has not answered since 10:00:12; it is waited for until about 10:01:12. Then "
        "this ends with code 5: what is done is kept, and the same command goes on"
    ]
    look(3, True)
    look(3, True)
    assert caplog.messages[1:] == ["the cluster at '10.0.0.1:6379' answers again, after 15 s"]
    monkeypatch.undo()
    time.tzset()


# -- real heads ------------------------------------------------------------------------------------------------


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        try:
            found.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        return str(found.getsockname()[0])


@contextmanager
def head(token: str | None, **surroundings: str) -> Iterator[str]:
    """`ray start --head` on this machine's own address, ended by its process id."""
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= surroundings
    environment["PYTHONPATH"] = str(Path(attach.__file__).parents[1])
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("", 0))
        ports = [each.getsockname()[1] for each in (one, two)]
    command = [
        Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--node-ip-address={own_address()}",
        f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}", "--include-dashboard=false",
        "--dashboard-agent-listen-port=0", f"--temp-dir={folder}", "--num-cpus=2", "--num-gpus=0",
        "--object-store-memory=100000000", "--disable-usage-stats",
    ]  # fmt: skip
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address, end = f"{own_address()}:{ports[0]}", time.monotonic() + 90
        while attach.ask(address, 2) == "none":
            assert process.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < end, (folder / "head.log").read_text()
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=100)
        shutil.rmtree(folder, ignore_errors=True)


def run(job, address: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return command("run", job.folder / "job.yaml", "--address", address, *words, **environment)


@pytest.mark.slow
def test_an_open_cluster_beyond_loopback_is_refused_unless_it_is_told_otherwise(make_job, monkeypatch, caplog):
    job = make_job()
    with head(None) as address:
        refused = run(job, address)
        assert refused.returncode == 2, refused.stderr
        assert "runs code of anybody who reaches it; start it with RAY_AUTH_MODE=token, or say --allow-open" in (
            refused.stderr
        )
        assert len(refused.stderr.splitlines()) == 1
        assert not (job.folder / "run" / "landscapes.zarr").exists()
        by_loopback = f"127.0.0.1:{address.rpartition(':')[2]}"
        assert attach.check_address(by_loopback, allow_open=False) == "open"
        (warning,) = caplog.messages
        assert f"the cluster at '{by_loopback}' listens beyond this machine and asks for no token" in warning
        looked = command("doctor", "--address", by_loopback)
        assert "none, and it listens beyond this machine: who reaches the head can run code on it" in looked.stdout
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(JobError, match="runs code of anybody"):
            attach.check_address("auto", allow_open=False)
        monkeypatch.setenv(attach.IN_A_RAY_JOB, "{}")
        attach.check_address(address, allow_open=False)  # who submitted this job has decided
        monkeypatch.delenv(attach.IN_A_RAY_JOB)
        looked = command("doctor", "--address", address)
        assert looked.returncode == 1
        assert "who reaches the head can run code on it; start every node with RAY_AUTH_MODE=token" in looked.stdout
        assert f"node {socket.gethostname()}" in looked.stdout
        assert "2 of 2 CPUs free" in looked.stdout
        greedy = run(job, address, "--allow-open", "--num-gpus", "1")
        assert greedy.returncode == 2, greedy.stderr
        assert "num_gpus: a worker asks for 1 GPUs, the cluster has 0" in greedy.stderr
        large = job.folder / "large"
        with large.open("wb") as file:
            file.truncate(201 << 20)
        shipped = run(job, address, "--allow-open")
        assert shipped.returncode == 2, shipped.stderr
        assert "holds more than 200 MiB" in shipped.stderr
        large.unlink()
        told = run(job, address, "--allow-open", "--workers", "1")
        assert told.returncode == 0, told.stderr


@pytest.mark.slow
def test_a_cluster_with_a_token_is_attached_to_with_it_and_refused_without(make_job):
    job = make_job()
    with head(TOKEN) as address:
        for environment in ({}, {"RAY_AUTH_MODE": "disabled"}):
            refused = run(job, address, **environment)
            assert refused.returncode == 5, refused.stderr
            assert "asks for a token; set RAY_AUTH_MODE=token" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        looked = command("doctor", "--address", address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH="/nonexistent/t")
        assert looked.returncode == 5
        assert "no token was sent (RAY_AUTH_TOKEN_PATH='/nonexistent/t': no such file)" in looked.stdout
        looked = command("doctor", "--address", address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        assert "the cluster asks for a token" in looked.stdout
        assert "wrong" not in looked.stdout
        assert looked.returncode == 0
        done = run(job, address, "--workers", "1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        wrong = run(job, address, "--run", f"{job.folder}/other", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="f" * 64)
        assert wrong.returncode == 5, wrong.stderr
        assert "refuses the token" in wrong.stderr
        assert len(wrong.stderr.splitlines()) == 1
        assert TOKEN not in done.stdout + done.stderr + wrong.stderr


@pytest.mark.slow
def test_where_a_launcher_may_add_nodes_a_worker_without_a_place_is_explained_and_is_demand(make_job):
    """As on a cluster of `ray up` or KubeRay, whose nodes are labelled with their kind."""
    job = make_job()
    with head(TOKEN, RAY_NODE_TYPE_NAME="head") as address:
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        words = ["run", job.folder / "job.yaml", "--address", address, "--num-gpus", "2", "--workers", "1"]
        driver = subprocess.Popen(
            [*CLI, *map(str, words)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert driver.stderr is not None
        try:
            line = next(each for each in driver.stderr if "each asks" in each)  # after the stages of its start
            assert "each asks for GPU 2 of 0 (0 free, 0 on one node); waiting for a larger node" in line
            assert "of which its autoscaler is told" in line
            ray = [Path(sys.executable).parent / "ray", "status", f"--address={address}"]
            status = subprocess.run(ray, env=environment, capture_output=True, text=True, check=False, timeout=60)
            assert "'GPU': 2.0" in status.stdout, status
            driver.send_signal(signal.SIGINT)
            driver.wait(timeout=60)
            assert driver.returncode == 130
        finally:
            driver.kill()
            driver.communicate()
