"""What is logged, as text and as JSON lines: the format, what every event carries, and what workers say."""

from __future__ import annotations

import json
import logging
import os
import warnings

import pytest
from real_commands import command

from cluster.driver.worker import Receipt, WorkerHandle
from cluster.driver.worker_manager import log_done, log_failure, log_given_up, log_lost, log_ready, relay_log
from cluster.runtime import logs
from cluster.runtime.logs import JsonLines, Listener, bind, choose_format, configure, event_fields, write_remark
from cluster.runtime.supervision import Child, ChildOutputs, Pipe, relay_output
from landscape.compute.tasks import Task
from landscape.core.errors import JobError
from landscape.surface.record_parts import Failure

WORKER = WorkerHandle("worker-2", None, ready=True, host="node7", node="f" * 56, pid=41, device="cuda")
TASK = Task("minimum", tile=(3, 1))


pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_is_as_it_was():
    record = logging.LogRecord("landscape", logging.WARNING, __file__, 1, "%s is\nlost", ("worker-2",), None)
    record.created = 1_795_000_000.25
    for name, value in event_fields(
        "worker-lost", pid=41, seconds=2.5, worker="worker-2", run="runs/é", node=""
    ).items():
        setattr(record, name, value)
    assert JsonLines().format(record) == (
        '{"time": "2026-11-18T11:06:40.250+00:00", "level": "warning", "event": "worker-lost", '
        '"message": "worker-2 is\\nlost", "run": "runs/é", "worker": "worker-2", "seconds": 2.5, "pid": 41}'
    )


def test_every_event_of_a_task_names_task_worker_node_attempt_and_cause(capsys):
    configure("json", debug=False)
    bind(run="/runs/mine")
    raised = Receipt(cause="ValueError: no", traceback="Traceback ...")
    log_ready(WORKER)
    log_done(WORKER, TASK, 2, 64, 1.25)
    log_failure(WORKER, TASK, 1, raised)
    log_given_up("minimum", Failure(TASK.label, 3, "worker-2", raised.cause, raised.traceback, "node7", "f" * 56))
    log_lost(WORKER, "its node is lost")
    found = lines(capsys.readouterr().err)
    assert [each["event"] for each in found] == [
        "worker-ready", "task-done", "task-failed", "task-given-up", "worker-lost",
    ]  # fmt: skip
    for each in found:
        assert (each["run"], each["worker"], each["host"], each["node"]) == (
            "/runs/mine",
            "worker-2",
            "node7",
            "f" * 56,
        )
    for each in found[1:4]:
        assert (each["landscape"], each["task"]) == ("minimum", TASK.label)
        assert each["attempt"] >= 1
    assert found[1]["seconds"] == 1.25
    for each in found[2:4]:
        assert (each["cause"], each["traceback"]) == (raised.cause, raised.traceback)


def test_what_is_printed_after_the_run_is_known_is_an_event_of_that_run(capsys):
    """Though it comes by another pipe, and nobody has read what was told before."""
    configure("json", debug=False)
    (told_of, tells), pipes = os.pipe(), ChildOutputs(Pipe(*os.pipe()), Pipe(*os.pipe()))
    os.set_blocking(told_of, False)
    child = Child(os.getpid(), told_of)
    os.write(tells, b'{"context": {"run": "/runs/mine"}}\n')
    os.write(pipes.printed.writer, b"a line\n")
    for thread in relay_output(child, pipes):
        thread.join()
    child.close()
    child.listen()  # by then nothing is asked of a descriptor that another file may have
    os.close(tells)
    (line,) = lines(capsys.readouterr().err)
    assert (line["message"], line.get("run")) == ("a line", "/runs/mine")


def test_text_stays_short_and_without_fields(capsys):
    configure("text", debug=False)
    bind(run="/runs/mine")
    log_ready(WORKER)
    log_done(WORKER, TASK, 1, 64, 1.25)
    log_given_up("minimum", Failure(TASK.label, 3, "worker-2", "ValueError: no"))
    relay_log(WORKER, Receipt(said=(logs.Said(logging.WARNING, "root", "careful"),)))
    log_lost(WORKER, "gone")
    write_remark("next: look")
    assert capsys.readouterr().err.splitlines() == [
        "worker-2 (node7, pid 41, node ffffffff) is lost (gone); its tasks go back to the queue",
        "next: look",
    ]


def test_remarks_warnings_and_exceptions_are_lines_too(capsys):
    configure("json", debug=False)
    write_remark("sent", "submitted", job="landscape-a-1")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("overflow", stacklevel=1)
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("landscape").exception("it broke")
    sent, warned, broke = lines(capsys.readouterr().err)
    assert (sent["event"], sent["message"], sent["job"]) == ("submitted", "sent", "landscape-a-1")
    assert warned["level"] == "warning"
    assert "overflow" in warned["message"]
    assert "KeyError: 'x'" in broke["traceback"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_ray_remarks_is_not_shown_and_what_is_worse_comes_in_the_same_form(form, capsys):
    from ray.dashboard.modules.dashboard_sdk import logger

    levels = {each: logging.getLogger(each).level for each in ("ray", logger.name)}
    configure(form, debug=False)
    logs.quieten("ray")
    logger.info("Uploading package gcs://_ray_pkg_1.zip.")
    assert capsys.readouterr().err == ""
    logger.critical("it is gone")
    said = capsys.readouterr().err
    assert (json.loads(said)["message"] if form == "json" else said.strip()) == "it is gone"
    configure(form, debug=True)
    logs.quieten("ray")
    logger.info("Uploading")
    assert "Uploading" in capsys.readouterr().err
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_a_worker_hears_each_warning_once_and_hands_it_over():
    listener, own = Listener(), logging.getLogger("my_model")
    with warnings.catch_warnings(), listener.listening():
        warnings.simplefilter("always")
        for _ in range(3):
            own.warning("slow path")
            warnings.warn("a nan", RuntimeWarning, stacklevel=1)
        own.info("not of interest")
    heard = listener.take()
    assert [each.logger for each in heard] == ["my_model", "py.warnings"]
    assert "RuntimeWarning: a nan" in heard[1].message
    with listener.listening():
        own.warning("slow path")
    assert listener.take() == ()
    assert listener not in logging.getLogger().handlers


def test_a_flood_of_messages_does_not_travel():
    listener = Listener()
    with listener.listening():
        for k in range(100):
            logging.getLogger("flood").warning("%d %s", k, "x" * 10_000)
    heard = listener.take()
    assert len(heard) == logs.MOST
    assert max(len(each.message) for each in heard) == logs.LONGEST


def test_the_format_comes_from_the_option_then_the_environment(monkeypatch):
    assert choose_format() == "text"
    monkeypatch.setenv(logs.VARIABLE, "json")
    assert choose_format() == "json"
    assert choose_format("text") == "text"
    with pytest.raises(JobError, match="log_format: must be text or json, not 'yaml'"):
        choose_format("yaml")


@pytest.mark.faults
def test_a_run_on_ray_says_everything_as_json_lines(make_job, local_ray):
    import ray

    job = make_job(
        """
        def trouble(x, y):
            import logging, warnings
            logging.getLogger("my_problem").warning("a remark of the callback")
            if x == 1 and y == 3:
                raise ValueError("this point is wrong")
    """
    )
    address = ray.get_runtime_context().gcs_address
    ended = command("run", job.folder / "job.yaml", "--address", address, "--workers", 1, "--log-format", "json")
    assert ended.returncode == 4, ended.stderr
    assert "63 points" in ended.stdout, "stdout carries the data, as ever"
    found = [json.loads(line) for line in ended.stderr.splitlines()]
    by_event = {each["event"]: each for each in found}
    assert {"worker-ready", "worker-log", "task-done", "task-failed", "task-given-up", "progress"} <= set(by_event)
    assert all(each["run"] == job.run_path for each in found)
    remarks = [each for each in found if each["event"] == "worker-log"]
    assert [each["message"] for each in remarks] == ["worker-1: a remark of the callback"]
    assert sum(each["event"] == "task-failed" for each in found) == 3
    given_up = by_event["task-given-up"]
    assert given_up["cause"] == "ValueError: this point is wrong"
    assert given_up["attempt"] == 3
    assert 'raise ValueError("this point is wrong")' in given_up["traceback"]
    assert len(given_up["node"]) == 56
    assert by_event["progress"]["points"] == 63


@pytest.mark.long
def test_errors_of_the_command_are_lines_as_well(tmp_path):
    ended = command("status", tmp_path / "none", LANDSCAPE_LOG_FORMAT="json")
    assert ended.returncode == 3
    (line,) = [json.loads(each) for each in ended.stderr.splitlines()]
    assert (line["level"], line["event"], line["code"]) == ("error", "error", 3)
    assert str(tmp_path / "none") in line["message"]
    wrong = command("status", tmp_path, "--log-format=yaml")
    assert wrong.returncode == 2
    assert "text or json" in wrong.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_is_said_acts_on_a_terminal(capsys, form):
    hostile = "a\x1b[2Jb\x9b31mc\u202ed\x07\r"
    configure(form, debug=False)
    write_remark(hostile)
    logging.getLogger("landscape").warning("worker says %s", hostile)
    told_of = capsys.readouterr().err
    assert not set(hostile) & set(told_of) - set("abcdJm[231")
    assert "\\u001b[2J" in told_of
    assert form == "text" or all(json.loads(line) for line in told_of.splitlines())
