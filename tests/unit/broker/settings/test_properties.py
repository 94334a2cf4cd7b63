"""Java's syntax of properties, as java.util.Properties reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.settings.properties import PropertiesError, parse_properties, write_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a: 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t1", {"a": "1"}),
        ("  a  =  1 2 ", {"a": "1 2 "}),
        ("a = = 1", {"a": "= 1"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=a", {"": "a"}),
        ("# a=1\n! b=2\n  # c=3\n\n \t\nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("# no continuation \\\na=1", {"a": "1"}),
        ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\n# still a value", {"a": "1# still a value"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\n2", {"a": "1\\2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a\\ b\\:c=1", {"a b:c": "1"}),
        ("a=\\ 1", {"a": " 1"}),
        ("a=x\\ty\\nz\\rw\\fv", {"a": "x\ty\nz\rw\fv"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ('a=\\q\\"', {"a": 'q"'}),
        ("a=-----BEGIN X-----\\n\\\n  abc\\n\\\n  -----END X-----", {"a": "-----BEGIN X-----\nabc\n-----END X-----"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=1\n\na=secret", "line 3: a is given twice"),
        ("a=1\\\n2\nb=\\u12", "line 3: expected four hexadecimal digits after \\u"),
        ("b=\\u12g4", "line 1: expected four hexadecimal digits after \\u"),
    ],
)
def test_a_mistake_is_named_by_its_line_and_shows_no_value(text: str, why: str) -> None:
    with pytest.raises(PropertiesError) as raised:
        parse_properties(text)
    assert str(raised.value) == why


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=5))
def test_written_properties_are_read_back(properties: dict[str, str]) -> None:
    assert parse_properties(write_properties(properties)) == properties


@given(st.text(alphabet="ab\\=: \t\n\r#!u0f", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_properties(text)
    except PropertiesError as error:
        assert str(error).startswith("line ")  # noqa: PT017 - or properties
