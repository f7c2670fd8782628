"""Whatever a user's value or exception holds, what is said of it is short, on one line, and acts on no terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landscape.core.errors import (
    LONGEST_LINE,
    LONGEST_OWN_LINE,
    LONGEST_VALUE,
    few_lines,
    flat,
    message_of,
    nearest,
    one_line,
    printable,
    quoted,
)


def alias_bomb(levels: int = 200, width: int = 9) -> object:
    """What YAML's anchors expand to: few objects, and 9²⁰⁰ of them when each is written out."""
    found: object = "lol"
    for _ in range(levels):
        found = [found] * width
    return {"a": found}


def endless() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__


VALUES = {
    "alias bomb": alias_bomb(), "a list that holds itself": endless(), "200 kB": "x" * 200_000, "bytes": b"x" * 10**7,
    "number of 100,000 bits": 1 << 100_000, "many keys": {str(k): k for k in range(10**5)}, "hostile": Hostile(),
    "control": "a\x1b[31m\u202eb\nc\x00\ud800", "named so": type("\x1b[2J", (), {})(), "set": set(range(10**5)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_shown_on_one_short_line(name):
    """The alias bomb ends the test by its time alone where it is written out before it is cut."""
    text = quoted(VALUES[name])
    assert 0 < len(text) <= LONGEST_VALUE
    assert printable(text) == text
    assert "\n" not in text


def test_what_is_short_is_shown_as_python_writes_it():
    for value in ("a b", 3, 2.5, None, True, [1, [2, "x"]], (1, 2), {"b": 1, "a": 2}, {3}, float("nan"), b"x", "it's"):
        assert quoted(value) == repr(value)


def test_the_ends_of_what_is_long_are_kept():
    path = "/first" + "/folder" * 100 + "/last.yaml"
    assert quoted(path).startswith("'/first/")
    assert quoted(path).endswith("/last.yaml'")
    assert quoted([list(range(50)), "end"]) == "[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...], 'end']"


@given(st.text(st.characters(codec=None)))
def test_printable_text_holds_nothing_that_acts_on_a_terminal(text):
    found = printable(text)
    found.encode()  # no surrogate is left
    left = [each for each in found if each not in "\n\t"]
    assert not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(each) for each in left}
    assert not {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"} & {*map(unicodedata.bidirectional, left)}
    assert printable(found) == found


@given(st.text())
def test_json_means_the_same_when_it_is_printable(text):
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_an_exception_is_one_short_line_whatever_it_says():
    assert one_line(ValueError("a\n b")) == "ValueError: a b"
    assert one_line(ValueError()) == "ValueError"
    assert one_line(Hostile()) == "Hostile: (its message cannot be read)"
    assert one_line(ValueError("\x1b[2J\u202e")) == "ValueError: \\u001b[2J\\u202e"
    assert len(one_line(ValueError("x" * 200_000))) == LONGEST_LINE
    assert len(one_line(type("X" * 5000, (Exception,), {})("x" * 5000), 200)) == 200
    assert message_of(KeyError("x")) == "'x'"
    assert flat("a" * 10 + " \t\n b") == "aaaaaaaaaa b"


def test_a_message_is_a_few_lines_of_bounded_length():
    assert few_lines("seed: must be 1\nsize: must be 2") == "seed: must be 1\nsize: must be 2"
    text = few_lines("\n".join(["a\x1b[2J" + "b" * 200_000] * 50))
    assert text.count("\n") == 2
    assert max(map(len, text.splitlines())) == LONGEST_OWN_LINE
    assert printable(text) == text
    assert few_lines("") == ""


def test_a_remedy_lists_names_that_are_short_few_and_printable():
    assert nearest("siez", ["size", "range"]) == "did you mean 'size'? known: size, range"
    text = nearest("x" * 200_000, ["x" * 150_000, "\x1b[2J", *(f"name-{k}" for k in range(10_000))])
    assert text.endswith("and 9978 more")
    assert len(text) < 1000
    assert printable(text) == text
