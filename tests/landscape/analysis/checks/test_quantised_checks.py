"""Checks of a landscape whose network is rounded: what evaluates is judged so, derivatives are not."""

from __future__ import annotations

import pytest
from small_models import conv_problem, make_job

from landscape import run
from landscape.analysis.checks import evaluations
from landscape.analysis.checks.table import check_landscape
from landscape.surface.record_entries import Check

FIELDS = {"num_samples": 20, "batch_size": 8, "engine": "eager"}


def checked(folder, quantise, problem=conv_problem, **fields) -> dict[str, Check]:
    run(make_job(folder, problem, [{"name": "a", "size": 3, "quantise": quantise}], **FIELDS | fields))
    return {check.number: check for check in check_landscape(folder, "a", problem=problem).results}


@pytest.mark.parametrize(
    ("quantise", "fields"),
    [
        ({"bits": 4}, {}),
        ({"bits": 1, "scheme": "per-tensor"}, {}),
        ({"bits": 3, "scale": "origin"}, {"precision": "float64"}),
    ],
)
def test_the_centre_and_points_are_those_of_the_rounded_network(tmp_path, quantise, fields):
    found = checked(tmp_path, quantise, **fields)
    assert [found[number].state for number in ("1", "3", "4")] == ["holds"] * 3
    assert "the centre is your model with weights rounded to " in found["1"].text
    assert "weights rebuilt from the stored axes and rounded" in found["3"].text
    assert found["10"].state != "unjudged", "statistics of batch norm are those of the rounded network"
    derivatives = {found[number].text.partition(": ")[2] for number in ("8", "8b", "9")}
    assert len(derivatives) == 1
    assert "between which gradients and curvature are zero" in derivatives.pop()


def test_values_of_a_network_that_is_not_rounded_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "round_weights", lambda weights, station: None)
    found = checked(tmp_path, {"bits": 2})
    assert (found["1"].state, found["3"].state) == ("fails", "fails")


def test_rounded_activations_have_no_plain_forward_pass_and_a_reason_is_told_once(tmp_path):
    found = checked(tmp_path, {"bits": 8, "activations": "calibrated"})
    assert found["4"].state == "holds"
    text = " ".join(check_landscape(tmp_path, "a", problem=conv_problem).text("a").split())
    assert "– centre, spot check: a plain forward pass does not round the inputs of layers" in text
    assert "– curvature, centre cell, hidden: the loss of rounded weights has steps" in text
    assert text.count("rounded weights has steps") == text.count("does not round the inputs") == 1
