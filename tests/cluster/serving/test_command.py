"""`landscape serve` before Ray is started: what is refused, and with which exit code."""

from __future__ import annotations

import socket

import pytest

from cluster.commands.publish import ServeOptions, serve
from cluster.serving.serve import handle_settings, refuse_open_service
from landscape.core.errors import JobError, NotFoundError


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


def test_a_packages_absence_is_told_by_its_extra(monkeypatch):
    monkeypatch.setattr("cluster.commands.publish.NEEDED_BY_SERVE", ("no_such_package.at_all",))
    with pytest.raises(JobError, match=r"needs the package no_such_package.at_all; `pip install .*\[serve\]"):
        serve("lenet")
