"""The report's section on measures, the table for other software, and the numbers by which runs are compared."""

from __future__ import annotations

from one_run import render_report

from landscape.page.description import measure_columns
from landscape.views.prepare.tables import lines_of, measure_curves, measure_numbers, table_csv
from landscape.views.report_sections import ReportRun, measures_section

ROWS = {
    "loss": {"value": 0.5, "stderr": 0.01},
    "rise 0.25": {"value": 0.25, "stderr": 0.003, "low": 0.2, "high": 0.3, "draws": 16},
    "radius": {"value": None, "note": "beyond 8 on 1 of the 16 lines"},
    "sam 20 steps": {"value": 1.5},
    "trace": {"value": 12.0, "low": 11.0, "high": 13.0},
}


def measures(*numbers: int) -> dict:
    entries = {
        f"epoch {number}": {"number": number, "unit": "epoch", "weights": "d", "rows": ROWS} for number in numbers
    }
    entries[f"epoch {numbers[-1]}"]["layers"] = {
        "<conv>": {"rise 0.1": {"value": 0.75}, "rise 0.5": {"value": 2.0, "low": -0.5, "high": 4.5}},
        "linear": {"rise 0.1": {"value": 0.25}, "rise 0.5": {"value": None, "note": "not finite"}},
    }
    return {"schema": 1, "settings": {"rho": {"sam": 0.05}}, "origins": entries, "mine": {"sharpness": 2}}


def test_the_section_shows_the_last_weights_first_and_curves_over_snapshots():
    section = measures_section(ReportRun("a", (), measures=measures(1, 5)))
    assert "<h2>Measures</h2><h3>epoch 5</h3>" in section
    assert "worst case in ‖ε‖ ≤ 0.05 (SAM), 20 steps" in section
    assert "[0.2, 0.3]" in section
    assert "&lt;conv&gt;" in section
    assert section.count("<svg") == 4  # loss, rise, trace; bars of the layers
    assert "rise at 0.5, one layer alone" in section
    assert "Andriushchenko et al. 2023" in section
    assert measures_section(ReportRun("a", (), measures=measures(1, 5)), several=True).startswith(
        '<section class="measures"><h2>Measures: a</h2>'
    )


def test_runs_without_measures_have_no_section():
    for other in ({}, {"trace": 3.5}, {"origins": [1]}):
        assert measures_section(ReportRun("a", (), measures=other)) == ""
    assert 'class="measures"' not in render_report([])


def test_curves_have_what_at_least_two_snapshots_have():
    found = measure_curves(measures(1, 2, 5))
    assert [(curve.title, curve.places) for curve in found[:2]] == [("loss", (1, 2, 5)), ("rise at 0.25", (1, 2, 5))]
    assert found[0].errors == (0.02, 0.02, 0.02)
    assert [round(error, 3) for error in found[1].errors] == [0.05, 0.05, 0.05]
    assert measure_curves(measures(1)) == []


def test_runs_are_compared_by_the_numbers_of_their_last_weights():
    found = measure_numbers(measures(1, 5))
    assert found["of"] == "epoch 5"
    assert (found["rise at 0.25"], found["mine"]) == (0.25, {"sharpness": 2})
    assert measure_numbers({"trace": 3.5}) == {"trace": 3.5}


def test_tables_for_people_and_for_software_hold_every_row():
    lines = lines_of(measures(5))
    assert lines[0] == "epoch 5"
    assert [line.split()[0] for line in lines[2:7]] == ["loss", "rise", "flatness", "worst", "trace"]
    assert [" ".join(line.split()) for line in lines[7:11]] == [
        "layers",
        "layer rise at 0.1 rise at 0.5",
        "<conv> 0.75 2 [-0.5, 4.5]",
        "linear 0.25 not finite",
    ]
    table = table_csv(measures(1, 5))
    assert table[0] == ["origin", "number", "layer", "measure", "value", "stderr", "low", "high", "draws", "note",
                        "above", "below"]  # fmt: skip
    assert table[2] == ["epoch 1", "1", "", "rise 0.25", "0.25", "0.003", "0.2", "0.3", "16", "", "", ""]
    assert table[-4][:5] == ["epoch 5", "5", "<conv>", "rise 0.1", "0.75"]


BOUND = {"value": None, "note": "the loss is not finite there", "below": 0.05}


def bounded(**rows: dict) -> dict:
    """Measures of four snapshots, of which the second has these rows and the others a radius."""
    found = measures(1, 2, 5, 9)
    for entry in found["origins"].values():
        entry["rows"] = ROWS | {"radius": {"value": 0.25, "low": 0.2, "high": 0.3}}
    found["origins"]["epoch 2"]["rows"] = ROWS | rows
    return found


def test_a_bound_is_nowhere_shown_as_a_value():
    found = bounded(radius=BOUND)
    (line,) = [line for line in lines_of(found) if "flatness radius" in line and "<" in line]
    assert line.split()[:4] == ["flatness", "radius", "<", "0.05"]
    (row,) = [row for row in table_csv(found) if row[0] == "epoch 2" and row[3] == "radius"]
    assert row[4:] == ["", "", "", "", "", "the loss is not finite there", "", "0.05"]
    (curve,) = [curve for curve in measure_curves(found) if curve.title == "flatness radius"]
    assert (curve.places, curve.bounds) == ((1, 5, 9), ((2, None, 0.05),))
    section = measures_section(ReportRun("a", (), measures=found))
    assert "&lt; 0.05" in section
    figure = next(each for each in section.split("<figure>") if "flatness radius; an open triangle" in each)
    assert figure.count("<circle") == 3
    assert figure.count("<polyline") == 2  # from epoch 5 to 9, and epoch 1 alone: not through the bound
    last = measures(5)
    last["origins"]["epoch 5"]["rows"] = ROWS | {
        "radius": BOUND | {"above": 0.025},
        "sam 20 steps": {"value": None, "above": 2.0},
    }
    shown = measure_numbers(last)
    assert shown["flatness radius"] == "0.025 to 0.05"
    assert shown["worst case in ‖ε‖ ≤ 0.05 (SAM), 20 steps"] == "> 2"
    columns = measure_columns(shown)
    assert columns["flatness radius"] == "0.025 to 0.05"
    assert "of" not in columns
