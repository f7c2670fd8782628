"""`landscape doctor`: in good and in bad situations; whatever is not good says how to mend it."""

from __future__ import annotations

import errno
import json
import os
import socket

import pytest

from cluster.commands import doctor
from cluster.commands.doctor import (
    GOOD,
    NOTE,
    WRONG,
    check_node,
    check_places,
    diagnose,
    diagnosis_text,
    exit_code,
    probe_run,
    run_check,
)
from landscape.core.errors import JobError

SEEN = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "cuda": 0, "shm": 9e9, "disk": 9e9}


def by_name(found):
    return {each["what"]: each for each in found}


def test_this_machine_is_looked_at_and_what_is_not_good_has_a_remedy(tmp_path):
    found = diagnose(run=str(tmp_path / "deep" / "run"))
    names = by_name(found)
    wanted = {"python", "torch", "ray", "zarr", "disk", "host name", "ports", "run", "run's latency"}
    assert wanted <= set(names)
    assert all(each["remedy"] for each in found if each["state"] != GOOD)
    assert names["run"]["state"] == GOOD
    assert "write and sync" in names["run's latency"]["value"]
    assert list(tmp_path.iterdir()) == [], "the probe leaves nothing, and makes no run"
    assert len(diagnosis_text(found).splitlines()) == len(found) + 1


def test_a_place_that_takes_no_files_is_wrong(tmp_path):
    (tmp_path / "file").write_text("")
    (found,) = probe_run(str(tmp_path / "file" / "run"))
    assert found["state"] == WRONG
    assert "Not a directory" in found["value"]
    assert found["remedy"]


def test_a_slow_place_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW_STORE", 0.0)
    assert by_name(probe_run(str(tmp_path)))["run's latency"]["state"] == NOTE


def test_a_port_that_is_taken_is_noted(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(doctor, "HEAD_PORTS", (taken.getsockname()[1],))
        found = by_name(doctor.check_network())["ports"]
    assert found["state"] == NOTE
    assert "in use" in found["value"]


NODE = {"NodeManagerHostname": "a", "NodeID": "0" * 56, "Resources": {"CPU": 2.0}}
NODES = [
    (NODE, {}, []),
    (NODE, {"torch": "2.12.0"}, ["torch 2.12.0 there"]),
    (NODE, {"torch": "none"}, ["torch none there"]),
    (NODE | {"Resources": {"GPU": 2.0}}, {"cuda": 1}, ["Ray counts 2 GPUs, torch sees 1"]),
    (NODE, {"shm": 6.4e7}, ["0.1 GB of shared memory"]),
    (NODE, {"disk": 1e9}, ["1.0 GB free in its temporary folder"]),
    (NODE, {"clock": 0.0}, ["its clock is"]),
]


@pytest.mark.parametrize(("node", "seen", "said"), NODES)
def test_what_is_wrong_on_a_node_is_named(node, seen, said, monkeypatch):
    monkeypatch.setattr("cluster.commands.doctor.platform.python_version", lambda: "3.11.7")
    monkeypatch.setattr("cluster.commands.doctor.version", lambda name: SEEN[name])
    monkeypatch.setattr("cluster.commands.doctor.time.time", lambda: 1e9)
    bad = [each for each in check_node("node a", node, SEEN | {"clock": 1e9} | seen) if each["state"] != GOOD]
    assert len(bad) == len(said)
    for each, words in zip(bad, said, strict=True):
        assert words in each["value"]
        assert each["remedy"]


@pytest.mark.parametrize(
    ("resources", "free", "state"),
    [
        ({"CPU": 2.0}, {"CPU": 1.0}, GOOD),
        ({"CPU": 2.0}, {}, NOTE),
        ({}, {}, WRONG),
    ],
)
def test_a_cluster_without_room_is_said_to_have_none(resources, free, state):
    found = check_places([NODE | {"Resources": resources}], free, 1.0)
    assert found["state"] == state
    assert bool(found["remedy"]) is (state != GOOD)


def test_a_check_that_breaks_is_a_finding_and_our_errors_bring_their_remedy():
    def breaks():
        yield {"state": GOOD}
        raise ZeroDivisionError("by zero")

    def refuses():
        raise JobError("run: is no place; name another")
        yield

    first, second = run_check("a", breaks)
    assert (first["state"], second["state"], second["value"]) == (GOOD, WRONG, "ZeroDivisionError: by zero")
    (found,) = run_check("run", refuses)
    assert (found["value"], found["remedy"]) == ("is no place", "name another")
    assert exit_code([first]) == 0
    assert exit_code([first, second]) == 1


def test_a_cluster_that_does_not_answer_ends_with_5(call):
    code, out, _ = call("doctor", "--address", "127.0.0.1:1", "--json")
    assert code == 5
    found = by_name(json.loads(out))["address"]
    assert found["state"] == WRONG
    assert "no Ray cluster answers" in found["value"]
    assert "ray start --head" in found["remedy"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EROFS, "mount it for writing"), (errno.EACCES, "change its")],
)
def test_what_a_disk_refuses_has_the_remedy_for_it(tmp_path, monkeypatch, code, remedy):
    def refuse(place: str) -> list[str]:
        raise OSError(code, os.strerror(code), place)

    monkeypatch.setattr(doctor, "probe", refuse)
    (found,) = probe_run(str(tmp_path))
    assert found["state"] == WRONG
    assert found["remedy"].startswith(remedy)
