"""The history of one or several runs: which columns, where on the axis, which stretches are shaded."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from one_run import prepare_history

from landscape.core.errors import JobError
from landscape.views.draw.history import draw_history
from landscape.views.prepare.history import (
    Mark,
    PathInterval,
    TrainingRecord,
    prepare_histories,
    spread_with_extremes,
)
from landscape.views.report import trainings_section
from landscape.views.report_sections import training_section


def steps(count: int, per_epoch: int = 10, rate: float = 0.1) -> list[dict[str, Any]]:
    """A history with a loss per step, and three metrics at each epoch's end."""
    rows: list[dict[str, Any]] = [
        {"step": k, "epoch": 1 + (k - 1) // per_epoch, "loss": 1.0 / k, "learning_rate": rate}
        for k in range(1, count + 1)
    ]
    ends = range(1, count // per_epoch + 1)
    metrics = [{"accuracy": 0.1 * e, "validation_loss": 2.0 / e, "f1": 0.2, "top5": 0.3} for e in ends]
    return rows + [
        {"step": per_epoch * e, "epoch": e, "epoch_end": True} | row for e, row in zip(ends, metrics, strict=True)
    ]


def recorded(label: str, rows: list[dict[str, Any]], per_epoch: Any = 10, **paths: Any) -> TrainingRecord:
    return TrainingRecord(label, rows, {name.replace("_", "-"): path for name, path in paths.items()}, per_epoch)


@pytest.fixture
def two(make: ModuleType) -> list[TrainingRecord]:
    first, last = make.spiral(3), replace(make.spiral(2), step=np.array([4, 5]))
    return [
        recorded("sgd", steps(50), early=first, late=last),
        recorded("adam", steps(80, per_epoch=20), per_epoch=20, early=first),
    ]


def test_every_recorded_column_has_a_panel_the_loss_first_and_the_learning_rate_last() -> None:
    history = prepare_history(steps(30))
    assert history is not None
    assert history.columns == ("loss", "accuracy", "f1", "top5", "validation_loss", "learning_rate")
    drawn = draw_history(history)
    titles = [drawn.layout[f"yaxis{k or ''}"].title.text for k in ("", 2, 3, 4, 5, 6)]
    assert titles == ["loss", "accuracy", "f1", "top5", "validation loss", "learning rate"]


def test_runs_are_overlaid_by_epoch_and_equal_stretches_are_one(two: list[TrainingRecord]) -> None:
    history = prepare_histories(two)
    assert history is not None
    assert history.unit == "epoch"
    assert history.runs == ("sgd", "adam")
    losses = [one for one in history.series if one.name == "loss"]
    assert [one.run for one in losses] == [0, 1]
    np.testing.assert_allclose(losses[1].x, np.arange(1, 81) / 20)
    assert history.intervals == (PathInterval("early", 1.0, 3.0, (0, 1)), PathInterval("late", 4.0, 5.0, (0,)))


def test_by_step_the_stretches_of_epochs_are_counted_in_steps(two: list[TrainingRecord]) -> None:
    history = prepare_histories(two, unit="step")
    assert history is not None
    assert [(each.name, each.start, each.stop, each.runs) for each in history.intervals] == [
        ("early", 10.0, 30.0, (0,)),
        ("late", 40.0, 50.0, (0,)),
        ("early", 20.0, 60.0, (1,)),
    ]
    unknown = [replace(one, steps_per_epoch=None) for one in two]
    by_step = prepare_histories(unknown, unit="step")
    assert by_step is not None
    assert by_step.intervals == ()


def test_a_run_without_a_place_on_the_axis_is_told_of(two: list[TrainingRecord]) -> None:
    only_epochs = recorded("epochs", [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 0.5}])
    assert (by_default := prepare_histories([*two, only_epochs])) is not None
    assert by_default.unit == "epoch"
    history = prepare_histories([*two, only_epochs, recorded("empty", [])], unit="step")
    assert history is not None
    assert history.notes == ("epochs has no step by which to place its history", "empty recorded no history")
    assert "epochs has no step" in draw_history(history).layout.meta["caption"]


def test_the_step_at_which_a_rule_fired_has_all_of_its_digits() -> None:
    rows = [{"step": 1_234_567, "loss": 1.0, "watch": [{"layer": "fc", "rule": "relu_zeros"}]}]
    history = prepare_history([*rows, {"step": 1_300_000, "loss": 0.5}])
    assert history is not None
    assert [mark.line for mark in history.marks] == ["step 1234567: fc: relu_zeros"]


def test_rules_that_fired_are_marked_on_the_first_curve() -> None:
    rows: list[dict[str, Any]] = [{"step": k, "epoch": 1, "loss": 4.0 - k, "accuracy": 0.5} for k in range(1, 4)]
    rows[1]["watch"] = [
        {"layer": "fc<1>", "rule": "relu_zeros", "value": 1.0},
        {"layer": "b", "rule": "c", "value": None},
    ]
    rows[2]["watch"] = "damaged"
    history = prepare_history(rows)
    assert history is not None
    line = "step 2: fc<1>: relu_zeros, and 1 more: c of b"
    assert history.marks == (Mark(2.0, ("fc<1>: relu_zeros", "b: c"), line=line),)
    figure = draw_history(history)
    (trace,) = [trace for trace in figure.data if trace.meta["role"] == "watch"]
    assert (trace.name, trace.showlegend, figure.layout.showlegend) == ("a rule of watch fired", True, True)
    assert (list(trace.x), list(trace.y), trace.yaxis) == ([2.0], [2.0], "y")
    assert trace.text == ("fc&lt;1&gt;: relu_zeros<br>b: c",)
    assert history.columns == ("loss", "accuracy")
    said = (
        "× in red: rules that watched the training fired at one step:</p><ul><li>step 2: fc&lt;1&gt;: relu_zeros, and"
    )
    assert said in training_section({}, history)
    both = prepare_histories([recorded("<a>", rows), recorded("b", rows)])
    assert both is not None
    assert [trace.showlegend for trace in draw_history(both).data if trace.meta["role"] == "watch"] == [True, False]
    assert "fired at 2 steps:</p><ul><li>&lt;a&gt;, step 2: fc" in trainings_section([], both)


def test_nothing_recorded_and_an_unknown_unit() -> None:
    assert prepare_histories([recorded("a", []), recorded("b", [{"step": 1, "loss": None}])]) is None
    assert prepare_histories([]) is None
    with pytest.raises(JobError, match="unit: unknown 'batch'"):
        prepare_history(steps(3), unit="batch")


def test_a_long_history_keeps_its_peaks_and_its_ends() -> None:
    values = np.zeros(20_001)
    values[[777, 12_345]] = [50.0, -3.0]
    kept = spread_with_extremes(values, 3000)
    assert len(kept) <= 3000
    assert {0, 777, 12_345, 20_000} <= set(kept.tolist())
    rows = [{"step": k, "loss": float(value)} for k, value in enumerate(values)]
    history = prepare_history(rows)
    assert history is not None
    assert history.series[0].y.max() == 50.0
    assert history.series[0].x[-1] == 20_000


def test_runs_differ_by_line_style_as_well_as_colour_and_are_named_once(two: list[TrainingRecord]) -> None:
    history = prepare_histories(two, log=True)
    assert history is not None
    for theme in ("light", "dark"):
        drawn = draw_history(history, theme)
        curves = [trace for trace in drawn.data if trace.meta["role"] == "field"]
        looks = {trace.meta["run"]: (trace.line.color, trace.line.dash) for trace in curves}
        assert len({colour for colour, _ in looks.values()}) == len({dash for _, dash in looks.values()}) == 2
        assert [trace.name for trace in curves if trace.showlegend] == ["sgd", "adam"]
    axes = {drawn.layout[f"yaxis{k or ''}"].title.text: drawn.layout[f"yaxis{k or ''}"].type for k in ("", 2, 5, 6)}
    assert axes == {"loss": "log", "accuracy": None, "validation loss": "log", "learning rate": None}


def test_a_path_with_gaps_shades_what_it_covers_and_is_named_once(make: ModuleType) -> None:
    gaps = replace(make.spiral(7), step=np.array([0, 1, 2, 3, 9, 10, 11, 12]))
    alone = replace(make.spiral(2), step=np.array([1, 2, 7]))
    uneven = replace(make.spiral(5), step=np.array([1, 2, 4, 8, 16, 32]))
    history = prepare_histories([recorded("sgd", steps(320), gaps=gaps, alone=alone, uneven=uneven)])
    assert history is not None
    found = [(one.name, one.start, one.stop) for one in history.intervals]
    assert found == [("gaps", 0, 3), ("gaps", 9, 12), ("alone", 1, 2), ("alone", 7, 7), ("uneven", 1, 32)]
    drawn = draw_history(history)
    shades = [(shape.name, shape.x0, shape.x1) for shape in drawn.layout.shapes]
    assert shades == found
    colours = [shape.fillcolor for shape in drawn.layout.shapes]
    assert (colours[0], colours[2]) == (colours[1], colours[3])
    assert len(set(colours)) == 3
    assert drawn.layout.shapes[3].line.width > 0, "a snapshot by itself can be seen"
    assert [note.text for note in drawn.layout.annotations] == ["gaps", "alone", "uneven"]


def test_a_stretch_is_found_by_the_name_of_its_landscape(two: list[TrainingRecord]) -> None:
    history = prepare_histories(two)
    assert history is not None
    drawn = draw_history(history)
    assert [shape.name for shape in drawn.layout.shapes] == ["early", "late"]
    late = drawn.layout.meta["intervals"][1]
    assert late == {"landscape": "late", "runs": [0], "labels": ["sgd"], "start": 4.0, "stop": 5.0}
    targets = {trace.meta["landscape"]: trace for trace in drawn.data if trace.meta["role"] == "interval"}
    assert set(targets) == {"early", "late"}
    assert targets["late"].x[0] == 4.0
    assert targets["late"].x[-1] == 5.0
    assert "late (sgd)" in targets["late"].hovertemplate


def test_a_training_of_a_recipe_is_drawn_with_its_accuracy_and_without_its_pace():
    rows = [
        {"step": step, "epoch": 1, "loss": 1 / step, "learning_rate": 0.1, "seconds": 0.01 * step}
        | ({"accuracy": step / 300} if step % 100 == 0 else {})
        for step in range(1, 301)
    ]
    rows.append({"step": 300, "epoch": 1, "epoch_end": True, "held_out_loss": 1.0, "samples_per_second": 900.0})
    history = prepare_history(rows)
    assert history.columns == ("loss", "accuracy", "held_out_loss", "learning_rate")
    accuracy = next(one for one in history.series if one.name == "accuracy")
    assert accuracy.x.tolist() == [100, 200, 300]
