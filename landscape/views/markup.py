"""Pieces of HTML: the page's own files, groups of buttons, tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from landscape.views.prepare.tables import Row


def resource(name: str) -> str:
    """The text of a file of the page, which lies beside this one or in another room of the views."""
    return files("landscape.views").joinpath("static", name).read_text(encoding="utf-8")


def svg_texts(texts: Sequence[tuple[float, float, str, str]]) -> str:
    """Small words in a picture.

    Args:
        texts: x and y in pixels, `start`, `middle` or `end` for where the words begin, and the words.
    """
    return "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )


def template(name: str) -> Template:
    """A file beside this one as a template; what is substituted must be escaped already."""
    return Template(resource(name))


def buttons(what: str, choices: Sequence[tuple[str, str]], label: str, pressed: int = 0) -> str:
    """A group of buttons, one of them pressed; empty where there is only one choice.

    Args:
        what: the property of the view that the buttons set, for the page's script.
        choices: the value and the name of each.
        label: what the group is called for screen readers.
        pressed: the number of the one that is pressed, from 0.
    """
    if len(choices) < 2:
        return ""
    states = [str(k == pressed).lower() for k in range(len(choices))]
    items = "".join(
        f'<button type="button" data-set="{what}" data-value="{escape(value)}" aria-pressed="{state}">'
        f"{escape(name)}</button>"
        for (value, name), state in zip(choices, states, strict=True)
    )
    return f'<span class="choice" role="group" aria-label="{label}">{items}</span>'


def table(rows: Sequence[Row]) -> str:
    """A table of two columns, names and values, as plain text that is escaped here."""
    body = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def rows_table(label: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of several columns, which scrolls where it is wider than the page; the texts are escaped here."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr><th scope='row'>{escape(title)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for title, *texts in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )
