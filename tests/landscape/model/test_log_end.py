"""Where a log ends, by the one function that tells it, and the stretches that say whether its loss still fell."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev

import pytest

from cluster.runtime.status import training_lines
from landscape.model.history import LAST_LINES, LogEnd, LossStretch, last_stretches, log_end, training_state, went_on_to
from landscape.model.snapshots import Snapshot
from landscape.page.description import training_facts


def lines_of(epochs, steps, *, every=1, ended=True):
    """The history of a training whose loss at step n is 1/n."""
    lines = []
    for epoch in range(1, epochs + 1):
        of_epoch = range((epoch - 1) * steps + 1, epoch * steps + 1)
        lines += [{"step": step, "epoch": epoch, "loss": 1 / step} for step in of_epoch if step % every == 0]
        if epoch < epochs or ended:
            lines.append({"step": epoch * steps, "epoch": epoch, "epoch_end": True, "held_out": 0.5})
    return lines


def losses(first, count):
    return [1 / step for step in range(first, first + count)]


def write(run, lines):
    run.mkdir(exist_ok=True)
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def by_plain_loop(lines, unit=None, number=math.inf):
    """The same from the first line on."""
    until = [line for line in lines if unit is None or line[unit] <= number]
    known = [line for line in until if "loss" in line]
    last = [line["loss"] for line in known if line["epoch"] == known[-1]["epoch"]][-LAST_LINES:]
    error = stdev(last) / math.sqrt(len(last)) if len(last) > 1 else 0.0
    epochs = sum("epoch_end" in line for line in until)
    return until[-1]["step"], epochs, pytest.approx(mean(last)), pytest.approx(error)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("until", [None, ("epoch", 3), ("epoch", 5), ("step", 77), ("step", 60)])
def test_a_log_ends_where_a_loop_over_it_does(tmp_path, every, ended, until):
    lines = lines_of(5, 30, every=every, ended=ended)
    found = log_end(write(tmp_path / "run", lines), until)
    assert (found.step, found.epoch, found.loss, found.stderr) == by_plain_loop(lines, *(until or ()))


def test_status_tells_the_same_end(tmp_path):
    run = write(tmp_path / "run", lines_of(4, 30))
    found = log_end(run)
    state = training_state(run, found)
    assert (state["steps"], state["epochs"], state["loss"]) == (found.step, found.epoch, found.loss)


def test_what_other_programs_wrote_ends_as_far_as_it_tells(tmp_path):
    run = tmp_path / "run"
    assert log_end(run) is None
    assert log_end(write(run, [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])) == LogEnd(None, 2, 0.25)
    assert log_end(write(run, [{"step": 1, "loss": 0.5}, {"step": 2, "accuracy": 1.0}])) == LogEnd(2, None, 0.5)
    assert log_end(write(run, [{"accuracy": 0.5}])) == LogEnd()
    assert log_end(run, ("epoch", 0)) == LogEnd()


def test_a_log_that_ends_in_losses_that_are_not_finite_says_so(tmp_path):
    lines = [{"step": n, "epoch": 1 + (n - 1) // 20, "loss": 0.42 if n < 150 else None} for n in range(1, 201)]
    run = write(tmp_path / "run", lines)
    found = log_end(run)
    assert (found.step, found.loss, found.is_finite, found.loss_at) == (200, pytest.approx(0.42), False, "step 149")
    assert found.not_finite == "no finite loss at its log's end, 0.42 on average up to step 149"
    assert training_state(run, found)["loss_not_finite"] == found.not_finite
    assert training_lines(training_state(run, found)) == [f"training: 200 steps, 9 epochs, {found.not_finite}"]
    assert log_end(run, ("step", 149)) == LogEnd(149, 7, pytest.approx(0.42), pytest.approx(0, abs=1e-9))
    assert went_on_to(found, Snapshot("epoch", 7, "", 140)) == "epoch 9 (no finite loss)"
    assert went_on_to(log_end(run, ("step", 149)), Snapshot("epoch", 6, "", 120)) == "epoch 7"
    assert training_facts(lines)[1] == [("final loss", "not finite at the end, 0.42 before")]
    once = [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5}, {"step": 2, "epoch": 1, "epoch_end": True}]
    assert log_end(write(run, once)).is_finite, "a step in between"
    assert log_end(write(run, [{"loss": None}])).not_finite == "no finite loss at its log's end"
    assert log_end(write(run, [{"loss": 0.5}, {"loss": None}])).not_finite.endswith(", 0.5 on average up to then")
    epochs = [{"epoch": 3, "loss": 0.0}, {"epoch": 4, "loss": None}]
    assert log_end(write(run, epochs)).not_finite.endswith(", 0 on average up to epoch 3")


def test_stretches_are_whole_epochs_where_each_step_was_logged(tmp_path):
    lines = lines_of(5, 30)
    found = last_stretches(write(tmp_path / "run", lines))
    assert [each.mean for each in found] == pytest.approx([mean(losses(start, 30)) for start in (61, 91, 121)])
    assert all(each.whole and each.count == 30 for each in found)
    assert not any(each.whole for each in last_stretches(write(tmp_path / "run", lines_of(5, 30, every=7))))
    begun = [*lines, {"step": 151, "epoch": 6, "loss": 9.0}]
    assert last_stretches(write(tmp_path / "run", begun)) == found, "an epoch that has only begun is left out"
    assert last_stretches(tmp_path / "run", ("epoch", 4))[-1] == found[1]


def test_stretches_of_a_log_of_one_epoch_are_of_equal_length(tmp_path):
    found = last_stretches(write(tmp_path / "run", lines_of(1, 1000)))
    assert [each.count for each in found] == [50, 50, 50]
    assert found[-1].mean == pytest.approx(mean(losses(951, 50)))
    assert not any(each.whole for each in found)
    (only,) = last_stretches(write(tmp_path / "run", lines_of(1, 30)))
    assert (only.count, only.mean) == (LAST_LINES, pytest.approx(mean(losses(11, 20))))
    assert only.stderr == pytest.approx(stdev(losses(11, 20)) / math.sqrt(20))
    once = [{"epoch": number, "loss": 1 / number} for number in (1, 2, 4)]
    assert last_stretches(write(tmp_path / "run", once))[-1] == LossStretch(0.25, 0.0, 1, whole=True)


@pytest.mark.parametrize(
    ("unit", "number", "step", "said"),
    [
        ("epoch", 4, 120, "epoch 5"),
        ("epoch", 4, None, "epoch 5"),
        ("epoch", 5, 150, ""),
        ("epoch", 5, None, ""),
        ("step", 149, 149, "step 150"),
        ("step", 150, 150, ""),
        ("step", 150, None, ""),
        ("epoch", 5, 140, "step 150"),  # it was kept before the epoch had ended
    ],
)
def test_a_snapshot_is_not_the_end_where_the_log_goes_on(tmp_path, unit, number, step, said):
    run = write(tmp_path / "run", lines_of(5, 30))
    assert went_on_to(log_end(run), Snapshot(unit, number, "", step)) == said
    assert went_on_to(log_end(tmp_path / "none"), Snapshot(unit, number, "", step)) == ""
