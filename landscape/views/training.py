"""The section on the training that a run comes from: its history as a figure, and what was trained and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from landscape.views.comparison import differences_table
from landscape.views.markup import table
from landscape.views.prepare.differences import tabulate
from landscape.views.prepare.history import HistoryData
from landscape.views.prepare.tables import Row
from landscape.views.prepare.words import finite
from landscape.views.report_bundle import ReportRun

INFO_NAMES = {
    "network": "network",
    "model": "network",
    "parameters": "parameters",
    "optimiser": "optimiser",
    "optimizer": "optimiser",
    "learning_rate": "learning rate",
    "steps_per_epoch": "steps per epoch",
}
PLOT = '<figure><div class="plot" id="history" role="img" aria-label="training history"></div></figure>'
NOTE = "<figcaption>Shaded: the stretches of training that the trajectory landscapes cover.</figcaption>"
MOST_WATCHED = 12  # steps at which rules fired that are listed


def info_rows(info: Mapping[str, Any]) -> list[Row]:
    """What was trained and how, the usual facts first, then all others that were recorded."""
    named = [(INFO_NAMES[key], _plain(info[key])) for key in INFO_NAMES if info.get(key) not in (None, "", {})]
    rest = [(key.replace("_", " "), _plain(value)) for key, value in info.items() if key not in INFO_NAMES]
    return [*dict(named).items(), *((name, value) for name, value in rest if value)]


def _plain(value: Any) -> str:
    """Nested facts on one line: 'name SGD, momentum 0.9'."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_plain(fact)}" for key, fact in value.items() if fact is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(f"[{_plain(fact)}]" if isinstance(fact, (list, tuple)) else _plain(fact) for fact in value)
    if isinstance(value, float) and finite(value) is not None:
        return f"{value:g}"
    return "" if value is None else str(value)


def watched_list(history: HistoryData) -> str:
    """What the red crosses are: at which step which rule fired in which layer; '' where none did."""
    if not history.marks:
        return ""
    count, several = len(history.marks), len(history.runs) > 1
    lines = [
        f"<li>{escape(f'{history.runs[mark.run]}, ' if several else '')}{escape(mark.line)}</li>"
        for mark in history.marks[:MOST_WATCHED]
    ]
    where = "one step" if count == 1 else f"{count} steps"
    first = "; the first" if count > MOST_WATCHED else ""
    said = f"<p>× in red: rules that watched the training fired at {where}{first}:</p><ul>{''.join(lines)}</ul>"
    return f'<div class="watched">{said}</div>'


def trainings_section(runs: Sequence[ReportRun], history: HistoryData | None) -> str:
    """The section on several trainings: their histories in one figure, and what differs between them."""
    notes = [] if history is None else history.notes
    said = "".join(f"<p>{escape(note)}.</p>" for note in notes)
    plot = "" if history is None else f"<div>{PLOT}{NOTE}{said}{watched_list(history)}</div>"
    differences = differences_table(tabulate([run.table_item() for run in runs]))
    wide = f'<div class="wide" tabindex="0" role="region" aria-label="What differs">{differences}</div>'
    wide = wide if differences else ""
    return f'<section class="training"><h2>Training</h2>{plot}{wide}</section>' if plot or wide else ""


def training_section(info: Mapping[str, Any], history: HistoryData | None) -> str:
    """The section in HTML; empty where nothing is known of the training.

    Args:
        info: what was trained and how (`run.json`).
        history: what it recorded, for whose figure a place is left.
    """
    rows = info_rows(info)
    if not rows and history is None:
        return ""
    plot = "" if history is None else f"<div>{PLOT}{NOTE}{watched_list(history)}</div>"
    parts = [plot, f"<div>{table(rows)}</div>" if rows else ""]
    return f'<section class="training"><h2>Training</h2><div class="tables">{"".join(parts)}</div></section>'
