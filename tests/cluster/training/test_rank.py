"""One rank in this process: its log, here and in an object store, its pace, and how a training is told of."""

from __future__ import annotations

import logging
import os
import sys

import pytest
import torch
from torch import nn

from cluster.training import rank, report, train
from cluster.training.options import named_function
from cluster.training.rank import (
    MeasurementDone,
    PacedTraining,
    RankFailed,
    TrainingJob,
    is_of_connection,
    plan_of,
    run_rank,
)
from cluster.training.report import Report, TrainingResult, log_rank, read_log, result_of, result_text
from cluster.training.train import Scaling, name_options_as_here, ray_train_settings, scaling_text, scalings_of
from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.core.lock import training_lock
from landscape.core.object_store import ObjectLog
from landscape.model.run_files import Launch, write_launch


def say_everything() -> None:
    print("printed")
    os.write(2, b"written below Python\n")
    logging.getLogger("mine").info("logged")
    logging.getLogger("library.mine").info("of no interest")
    logging.getLogger("library.mine").warning("of interest")


@pytest.mark.parametrize("own_process", [True, False])
def test_the_log_of_a_rank_has_what_its_process_says(tmp_path, capfd, caplog, monkeypatch, own_process):
    monkeypatch.setattr(report, "QUIET", ("library",))
    caplog.set_level(logging.WARNING)  # a test before may have left the process another one
    for _ in range(2):
        with log_rank(str(tmp_path), 1, 2, own_process=own_process):
            say_everything()
    log, shown = read_log(str(tmp_path), 1), capfd.readouterr()
    assert log.count("rank 1 of 2 starts: process") == 2
    assert log.count("printed") == 2
    assert log.count("WARNING library.mine: of interest") == 2
    assert "INFO library.mine" not in log  # other handlers of this process may write to the descriptors what they like
    # What is native or no warning is the rank's only where the process is.
    assert log.count("written below Python") == log.count("INFO mine: logged") == (2 if own_process else 0)
    assert shown.out.count("printed") == (0 if own_process else 2)


def test_bytes_are_printed_in_a_process_of_others_too(tmp_path, capfd):
    with log_rank(str(tmp_path), 0, 1, own_process=False):
        sys.stdout.buffer.write(b"\xff")
        sys.stdout.flush()
    assert capfd.readouterr().out  # as the terminal shows them


class Memory:
    """An object store with one run."""

    name = "s3://bucket/run"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def log(self, path: str) -> ObjectLog:
        return ObjectLog(self, path)

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data


@pytest.mark.parametrize("own_process", [True, False])
def test_a_log_in_an_object_store_is_added_to(monkeypatch, own_process):
    store = Memory()
    monkeypatch.setattr(report, "open_folder", lambda run: store)
    for _ in range(2):
        with log_rank("s3://bucket/run", 0, 1, own_process=own_process):
            say_everything()
    log = store.files["logs/rank-0.log"].decode()
    assert log.count("starts: process") == log.count("printed\n") == 2


def test_a_log_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), log_rank(str(tmp_path), 0, 1, own_process=False):
        pass
    assert not (tmp_path / "other").exists()


def test_a_log_is_followed_from_before_it_is_there_to_its_end(tmp_path, monkeypatch):
    """A look finds no log yet, the next one half a character, a third one the rest."""
    parts = iter([None, "a gr\u00f6".encode()[:-1], "\u00f6\u00dfer step\n".encode()[1:]])
    monkeypatch.setattr(report.time, "sleep", lambda seconds: None)
    over = []

    def is_over() -> bool:
        part = next(parts, b"")
        if part is None:
            return False
        with open(tmp_path / "logs" / "rank-0.log", "ab") as log:
            log.write(part)
        over.append(not part)
        return over[-1]

    (tmp_path / "logs").mkdir()
    written: list[str] = []
    report.follow_log(str(tmp_path), 0, written.append, is_over)
    assert "".join(written) == "a gr\u00f6\u00dfer step\n"
    with pytest.raises(NotFoundError, match="has no log of rank 1; it has logs of ranks 0"):
        report.follow_log(str(tmp_path), 1, written.append, lambda: True)


def test_a_log_that_never_comes_is_not_waited_for(tmp_path):
    write_launch(tmp_path, Launch("digits", 2))
    with pytest.raises(NotFoundError, match=r"^rank: must be below 2, the workers that run .* is trained by, not 2$"):
        report.follow_log(str(tmp_path), 2, print, lambda: False)


# -- the pace ---------------------------------------------------------------------------------------------------


def steps_of(training, epochs=2):
    model = nn.Linear(2, 1)
    network = training.prepare(model)
    for epoch in range(epochs):
        for share in training.batches(10, 4, epoch):
            training.mean((network(torch.ones(len(share.index), 2)) * 0 + len(share.index)).mean())
        training.keep(model=model)


def test_each_epoch_is_told_with_its_mean_loss_over_the_samples(tmp_path):
    news = []
    training = PacedTraining(str(tmp_path / "run"), lambda kind, each: news.append((kind, each)))
    steps_of(training)
    assert [kind for kind, _ in news] == ["pace", "kept", "pace"]
    told = news[0][1]
    assert (told["epoch"], told["samples"], told["count"]) == (1, 10, None)
    assert told["loss"] == pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10)
    summary = training.summary()
    assert (summary["epochs"], summary["steps"], summary["samples"]) == (2, 6, 20)
    assert summary["communication"] is None


def test_a_long_epoch_is_told_of_before_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(rank, "TELL_SECONDS", 0.0)
    news = []
    steps_of(PacedTraining(str(tmp_path / "run"), lambda kind, each: news.append(each)), epochs=1)
    assert [(each.get("samples"), each.get("count")) for each in news[:4]] == [(4, 10), (8, 10), (10, 10), (10, None)]


def test_a_store_that_falls_silent_does_not_hide_why_a_training_was_refused(tmp_path, monkeypatch):
    def silent(folder):
        raise LandscapeError("the store does not answer")

    def refused():
        monkeypatch.setattr(train, "checkpoint_numbers", silent)
        raise JobError("epochs: must be another")

    job = TrainingJob(named_function("lenet-digits"), str(tmp_path))
    with pytest.raises(JobError, match="epochs: must be another"), train.record_launch(job, 1, "", Report()):
        refused()


class Choosy:
    """Takes no state of others, and says why in one clause."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise JobError("choosy: must be the state of another")


def test_what_another_function_left_is_refused_with_the_reason_that_the_object_gives(tmp_path):
    first = PacedTraining(str(tmp_path), lambda *_: None)
    first.resume(choosy=Choosy())
    first.keep(choosy=Choosy())
    another = PacedTraining(str(tmp_path), lambda *_: None, function="new", former="old")
    with pytest.raises(JobError, match=r"was trained by old, not by new; .*\nchoosy: must be the state of another$"):
        another.resume(choosy=Choosy())


def test_a_measurement_ends_after_its_steps_and_leaves_the_first_ones_out(tmp_path):
    training = PacedTraining(str(tmp_path / "run"), lambda *_: None, steps=3, warm=2)
    with pytest.raises(MeasurementDone):
        steps_of(training, epochs=9)
    assert training.pace.steps == 5
    assert len(training.pace.step_seconds) == 3
    assert training.pace.samples == 2 + 4 + 4  # the third batch of the first epoch is its last


# -- a rank -----------------------------------------------------------------------------------------------------


def plan(code, run, **changes):
    return plan_of(TrainingJob(named_function(code), str(run)), **changes)


def test_a_rank_trains_with_one_thread_and_leaves_the_process_as_it_was(tmp_path):
    threads, seen = torch.get_num_threads(), []
    news = []
    torch.set_num_threads(2)
    try:
        run_rank(plan(lambda training: seen.append(torch.get_num_threads()), tmp_path / "run"),
                 lambda kind, each: news.append(kind))  # fmt: skip
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1]
    assert news == ["started", "summary"]


def test_what_the_package_warns_of_is_told_from_a_process_that_nobody_sees(tmp_path):
    def warns(training):
        logging.getLogger("landscape").warning("goes on with %d ranks", 2)
        logging.getLogger("mine").warning("of no interest")

    told = []
    run_rank(plan(warns, tmp_path / "run"), lambda kind, news: told.append((kind, news.get("text"))), own_process=True)
    assert told[1:-1] == [("remark", "goes on with 2 ranks")]
    assert "WARNING landscape: goes on with 2 ranks" in read_log(str(tmp_path / "run"), 0)


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (
            ValueError("no"),
            1,
            r"function: .* raised ValueError: no .* on rank 0; all of it: landscape logs .* --rank 0",
        ),
        (SystemExit(0), 1, r"called sys.exit\(0\)"),
        (JobError("seed: must be 1"), 2, "seed: must be 1"),
    ],
)
def test_what_the_function_raises_is_said_in_a_line_and_its_traceback_logged(tmp_path, raised, code, message):
    def fails(training):
        raise raised

    with pytest.raises(RankFailed, match=message) as failed:
        run_rank(plan(fails, tmp_path / "run"), lambda *_: None)
    assert failed.value.exit_code == code
    assert "Traceback" in read_log(str(tmp_path / "run"), 0)


def test_a_node_that_does_not_see_the_run_is_refused_before_it_writes_there(tmp_path):
    with training_lock(str(tmp_path / "run")) as card:
        run_rank(plan(lambda training: None, tmp_path / "run", card=card), lambda *_: None)
        other = plan(lambda training: None, tmp_path / "elsewhere", card=card)
        with pytest.raises(RankFailed, match="is not the same folder on every node of the cluster; name one"):
            run_rank(other, lambda *_: None)
    assert not (tmp_path / "elsewhere").exists()


# -- what is told -----------------------------------------------------------------------------------------------


def test_lines_of_a_training(capsys, logging_as_it_was):
    report = Report(epochs=3)
    news = {"epoch": 1, "loss": 0.51234, "samples": 1000, "seconds": 0.5, "count": None}
    report.tell("pace", news)
    report.tell("pace", news | {"samples": 250, "seconds": 0.25, "count": 1000, "loss": None})
    report.tell("summary", {"rank": 0, "world": 1, "communication": None})
    report.tell("lost", {"text": "rank 1 is lost; going on from step 3"})
    assert not report.ranks
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1 of 3: loss 0.5123, 2,000 samples/s",
        "epoch 1 of 3, 25% done: 1,000 samples/s",
        "rank 1 is lost; going on from step 3",
    ]


def test_the_result_of_a_training():
    one = {"world": 2, "epochs": 2, "steps": 8, "samples": 100, "seconds": 2.0, "loss": 0.25, "communication": 0.1}
    result = result_of("runs/a", {1: one | {"communication": 0.2}, 0: one})
    assert result == TrainingResult("runs/a", 2, 2, 8, 100, 2.0, 0.25, (0.1, 0.2))
    assert result_text(result) == (
        "'runs/a': 2 epochs, 8 steps, loss 0.2500 over its last epoch; 2 workers, 50 samples/s; "
        "of their time in communication: 10%, 20% (ranks 0 to 1)"
    )
    whole = result_of("runs/a", {0: one | {"communication": None, "total_steps": 20, "total_epochs": 5}})
    assert result_text(whole).endswith(" samples/s; since this start, and with those before 5 epochs, 20 steps")
    assert result_text(result_of("runs/a", {})) == "'runs/a': nothing was left to do"


def test_efficiency_is_the_time_of_one_worker_over_that_of_all():
    def ranks(world, seconds):
        share = None if world == 1 else 0.25
        one = {"world": world, "samples": 64 * len(seconds), "step_seconds": seconds, "communication": share}
        return dict.fromkeys(range(world), one)

    measured = scalings_of([ranks(1, [0.4, 0.4, 9.0]), ranks(2, [0.25, 0.25, 0.25])])
    assert measured[0] == Scaling(1, 3, 0.4, 160.0, 1.0, 1.0, ())
    assert measured[1] == Scaling(2, 3, 0.25, 256.0, pytest.approx(1.6), pytest.approx(0.8), (0.25, 0.25))
    assert scaling_text(measured).splitlines()[2].split() == ["2", "256.0", "250.0", "1.60", "80%", "25%", "25%"]


def test_only_a_private_ray_is_told_to_leave_out_warnings_of_torch(monkeypatch):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    for attached, level in ((True, None), (False, "ERROR")):
        with ray_train_settings(attached):
            assert os.environ.get("TORCH_CPP_LOG_LEVEL") == level
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ


@pytest.mark.parametrize(
    ("text", "of_connection"),
    [
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", True),
        ("no igloo in the data", False),
    ],
)
def test_an_error_of_the_function_is_not_taken_for_a_lost_connection(text, of_connection):
    assert is_of_connection(RuntimeError(text)) == of_connection


def test_an_error_of_the_session_names_the_option_of_trainings():
    with pytest.raises(JobError, match=r"^gpus_per_worker: a worker asks for 2 GPUs"), name_options_as_here():
        raise JobError("num_gpus: a worker asks for 2 GPUs")
    with pytest.raises(JobError, match=r"^workers: too many"), name_options_as_here():
        raise JobError("workers: too many")
