"""`landscape serve` before Ray is started: what is refused, and with which exit code."""

from __future__ import annotations

import ast
import contextlib
import io
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import InProcess

from cluster.commands.publish import NEEDED_BY_SERVE, ServeOptions, serve
from cluster.runtime.placement import Placement, Supply
from cluster.serving import serve as serving
from cluster.serving.replica import Replica
from cluster.serving.serve import handle_settings, refuse_open_service
from cluster.serving.sources import ReplicaStates
from landscape.core.errors import Interrupted, JobError, NotFoundError


@pytest.fixture(autouse=True)
def _in_scene(scene, monkeypatch):
    monkeypatch.chdir(scene)
    monkeypatch.delenv("LANDSCAPE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("places", "options", "error", "message"),
    [
        ((), {}, JobError, "places: must name a run or a job"),
        (("none",), {}, NotFoundError, "run 'none' does not exist"),
        (("small_problem.py",), {}, JobError, "job file 'small_problem.py'"),
        (("lenet",), {"max_points": 0}, JobError, "max-points: must be from 1 on, not 0"),
        (("lenet",), {"queue": -1}, JobError, "queue: must be from 1 on, not -1"),
        (("lenet",), {"cache": -1}, JobError, "cache: must be from 0 on"),
        (("lenet",), {"grpc_port": 70_000}, JobError, "grpc-port: must be from 0 to 65535"),
        (("lenet",), {"port": 70_000}, JobError, "port: must be from 0 to 65535"),
        (("lenet",), {"replicas": "4,2"}, JobError, "replicas: must be MIN or MIN,MAX"),
        (("lenet",), {"token": "two words"}, JobError, "token: must be visible ASCII characters without blanks"),
        (("lenet",), {"token": "\udcff"}, JobError, "token: must be visible ASCII characters without blanks"),
        (("lenet",), {"host": "0.0.0.0", "token": ""}, JobError, "token: must be given where the service listens"),
        (("lenet",), {"host": "no.such.host.invalid"}, JobError, "host: 'no.such.host.invalid' is not known"),
    ],
)
def test_what_cannot_be_is_refused_by_one_sentence(places, options, error, message):
    with pytest.raises(error) as refused:
        serve(*places, how=ServeOptions(**{"port": 0, **options}))
    assert message in str(refused.value)


def test_a_port_that_is_taken_is_refused_and_no_other_one_used():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(JobError, match="is taken; give another one"):
        serve("lenet", how=ServeOptions(port=taken.getsockname()[1]))


def test_a_service_without_a_token_is_for_this_machine_alone():
    refuse_open_service("127.0.0.1", "")
    refuse_open_service("0.0.0.0", None)
    with pytest.raises(JobError, match="token: must be given"):
        refuse_open_service("192.0.2.1", "")


def test_replicas_of_a_private_ray_are_asked_past_a_proxy_and_those_of_a_cluster_by_ray_itself(monkeypatch):
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    assert handle_settings(is_attached=False)["no_grpc_proxy"] == "127.0.0.1,example.org"
    monkeypatch.delenv("no_proxy")
    assert handle_settings(is_attached=False)["no_grpc_proxy"] == "127.0.0.1"
    answers = int(handle_settings(is_attached=False)["RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH"])
    assert answers > 8 * 4096 * 2 * 100, "a hundred observables and their errors at the most points of a batch"
    assert set(handle_settings(is_attached=True)) == {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"}


class Deployed(InProcess):
    """Replicas in this process, whose numbers go through a list; the last one stays."""

    def __init__(self, replica, states, lacks):
        super().__init__(replica)
        self._states, self._lacks = list(states), lacks

    def states(self):
        found = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(found, Exception):
            raise found
        return found

    def lacking(self, placement):
        return self._lacks


@pytest.fixture
def served(monkeypatch):
    """Runs `landscape serve` without Ray until its lines hold a text; returns what it wrote, in order."""
    written = io.StringIO()

    def serve_until(text, *, replicas=None, states=(), lacks="", room=2, slow=0.0):
        @contextlib.contextmanager
        def session(*_):
            yield Placement(room, 1, 0.0)

        @contextlib.contextmanager
        def stopped():
            yield lambda: text in written.getvalue()

        def deploy(sources, placement, scale):
            time.sleep(slow)
            return Deployed(Replica(sources), states or [ReplicaStates(1)], lacks)

        monkeypatch.setattr(serving, "ray_session", session)
        monkeypatch.setattr(serving, "supply", lambda: Supply(({"CPU": float(room)},)))
        monkeypatch.setattr(serving, "refuse_dead_ray", lambda: None)
        monkeypatch.setattr(serving, "graceful_stop", stopped)
        monkeypatch.setattr(serving, "WATCH_SECONDS", 0.01)
        monkeypatch.setattr(serving, "PATIENCE_SECONDS", 0.03)
        monkeypatch.setattr(serving, "TELL_SECONDS", 0.1)
        monkeypatch.setattr(sys, "stderr", written)
        monkeypatch.setitem(sys.modules, "cluster.serving.deployment", SimpleNamespace(deploy=deploy))
        with pytest.raises(Interrupted):
            serve("lenet", how=ServeOptions(port=0, grpc_port=0, replicas=replicas))
        return written.getvalue().splitlines()

    return serve_until


def test_the_start_tells_its_stages_and_those_that_take_long_again(served, capsys):
    lines = served("preparing landscape 2 of 2", slow=0.35)
    assert [line for line in lines if " for " not in line] == [
        "loading the service", "loading Ray Serve", "starting 1 replica with 2 landscapes",
        "preparing landscape 1 of 2: lenet/1/plane",
        "preparing landscape 2 of 2: lenet/1/line",
    ]  # fmt: skip
    assert "starting 1 replica with 2 landscapes, for 0 s" in lines
    # Stdout has the addresses alone, if the service was ready before the signal was seen.
    assert {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()} <= {"url", "grpc", "token"}


def test_replicas_that_come_and_go_are_told_and_serves_silence_is_borne(served):
    states = [ReplicaStates(1), RuntimeError("no answer"), ReplicaStates(1, 1), ReplicaStates(2), ReplicaStates(1)]
    lines = served("replicas: 1 running, 0 starting", replicas="1,2", states=states)
    assert [line for line in lines if line.startswith("replicas:")] == [
        f"replicas: {numbers}, 2 at most" for numbers in ("1 running, 1 starting", "2 running, 0 starting",
                                                          "1 running, 0 starting")
    ]  # fmt: skip


def test_a_replica_that_finds_no_place_is_told_once_and_so_is_too_little_room(served):
    lines = served("replicas: no further", replicas="1,3", states=[ReplicaStates(1, 1)], lacks="no further replica …")
    assert lines.count("replicas: no further replica …") == 1
    (warning,) = (line for line in lines if "there may be" in line)
    assert warning == (
        "replicas: there may be 3, but the cluster has room for 2, each with 1 CPU; give a smaller MAX, or add nodes"
    )


def test_each_package_that_the_service_imports_is_looked_for_before():
    files = Path(serving.__file__).parent.glob("*.py")
    parts = [part for file in files for part in ast.parse(file.read_text()).body]
    names = {name.name for part in parts if isinstance(part, ast.Import) for name in part.names}
    names |= {str(part.module) for part in parts if isinstance(part, ast.ImportFrom)}
    always = {"landscape", "cluster", "numpy", "torch", "filelock", "google_crc32c", *sys.stdlib_module_names}
    assert {first for name in names if (first := name.partition(".")[0]) not in always} <= {
        name.partition(".")[0] for name in NEEDED_BY_SERVE
    }


def test_a_packages_absence_is_told_by_its_extra(monkeypatch):
    monkeypatch.setattr("cluster.commands.publish.NEEDED_BY_SERVE", ("no_such_package.at_all",))
    with pytest.raises(JobError, match=r"needs the package no_such_package.at_all; `pip install .*\[serve\]"):
        serve("lenet")
