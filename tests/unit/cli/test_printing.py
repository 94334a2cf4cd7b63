"""Tables, durations and JSON of the operator's verbs."""

import json
from datetime import datetime, timedelta, timezone
from enum import Enum

import pytest

from dualwrite.cli.printing import as_json_text, complain, counted, print_either, print_json, printable, since, table

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert table(("A", "LONG"), [("abc", ""), ("d", "e")]) == ["A    LONG", "abc", "d    e"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("naïve ☕", "naïve ☕"),
        ("a\tb\nc", "a\\tb\\nc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b\u202e", "\\x9b\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_with_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (3 * 86400, "3 d"), (-5, "0 s")],
)
def test_a_duration_is_printed_in_its_largest_unit(seconds: int, words: str) -> None:
    assert since(NOW - timedelta(seconds=seconds), NOW) == words


def test_the_duration_since_no_moment_is_empty() -> None:
    assert since(None) == ""


def test_counts_are_singular_or_plural() -> None:
    assert (counted(0, "slot"), counted(1, "slot"), counted(2, "slot")) == ("0 slots", "1 slot", "2 slots")


class Colour(Enum):
    LIGHT_BLUE = "a light blue"


def test_json_has_names_and_moments(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"moment": NOW, "colour": Colour.LIGHT_BLUE, "nothing": None})
    assert json.loads(capsys.readouterr().out) == {
        "moment": "2026-01-02T00:00:00+00:00",
        "colour": "light_blue",
        "nothing": None,
    }


def test_lines_for_people_have_escapes_and_json_has_the_name_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A name may turn the direction of what follows, or clear the terminal."""
    name = "\u202eorders\x1b[2J-0"
    print_either({"name": name}, [f"{name}: would commit"], is_json=False)
    assert capsys.readouterr().out == "\\u202eorders\\x1b[2J-0: would commit\n"
    print_either({"name": name}, [], is_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": name}


def test_a_json_line_has_no_line_break() -> None:
    text = as_json_text({"moment": NOW, "words": ["on\ntwo lines"]}, is_line=True)
    assert "\n" not in text
    assert json.loads(text) == {"moment": "2026-01-02T00:00:00+00:00", "words": ["on\ntwo lines"]}


def test_a_value_without_a_json_form_is_a_bug() -> None:
    with pytest.raises(TypeError, match="object"):
        print_json(object())


def test_a_complaint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("on\n two lines")
    assert capsys.readouterr().err == "dualwrite: on two lines\n"


def test_a_complaint_has_escapes_for_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    complain("slot \u202eorders\x1b[2J-0: locked")
    assert capsys.readouterr().err == "dualwrite: slot \\u202eorders\\x1b[2J-0: locked\n"
