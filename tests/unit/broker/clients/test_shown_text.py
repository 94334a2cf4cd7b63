"""Text of clients in the log, which may not write lines of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.clients.shown_text import one_line, shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("app-1", "'app-1'"),
        ("it's", '"it\'s"'),
        ("a\nb", r"'a\nb'"),
        ("a\x1b[31mb", r"'a\x1b[31mb'"),
        ("a\u2028b", r"'a\u2028b'"),
        ("x" * 200, f"'{'x' * 100}'…"),
        ("Grüße", "'Grüße'"),
    ],
)
def test_a_name_is_between_quotes_and_short(text: str, line: str) -> None:
    assert shown(text) == line


@given(st.text())
def test_every_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert shown(text).isprintable()
    assert len(shown(text)) <= 10 * 100 + 3


@given(st.text().filter(str.isprintable))
def test_a_printable_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text
