"""Records as columns and as lines of JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.admin.views import TopicRecord
from dualwrite.cli.kafka.record_output import FORMATS, RecordLines, decoded
from dualwrite.client.terms.record_states import RecordState
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition

RECORD = TopicRecord(
    TopicPartition("orders", 0),
    7,
    1_000_000_000_123,
    b"tea",
    b"one cup",
    (("trace", b"ab"), ("empty", None)),
    RecordState.COMMITTED,
    True,
    ProducerIdentity(5, 1),
    "shop-0",
)


def lines(*records: TopicRecord, form: str = "text", **options: bool) -> list[str]:
    options = {"timestamps": False, "headers": False, **options}
    return list(RecordLines(form, form, **options).of(records))


def test_a_record_is_a_line_of_columns() -> None:
    assert lines(RECORD) == [
        "PARTITION  OFFSET  STATE      TRANSACTION  KEY  VALUE",
        "0          7       committed  shop-0       tea  one cup",
    ]


def test_timestamps_and_headers_are_shown_if_they_are_asked_for() -> None:
    heads, line = lines(RECORD, timestamps=True, headers=True)
    assert heads.split() == ["PARTITION", "OFFSET", "TIME", "STATE", "TRANSACTION", "KEY", "HEADERS", "VALUE"]
    assert line.split()[2] == "2001-09-09T01:46:40.123Z"
    assert line.split()[6] == "trace=ab,empty=null"
    assert lines(replace(RECORD, headers=()), headers=True)[1].split()[5] == "-"


@pytest.mark.parametrize("milliseconds", [-1, 2**62, -(2**62)])
def test_a_timestamp_out_of_range_is_shown_as_it_is(milliseconds: int) -> None:
    time = lines(replace(RECORD, timestamp=milliseconds), timestamps=True)[1].split()[2]
    assert time == ("1969-12-31T23:59:59.999Z" if milliseconds == -1 else str(milliseconds))


@pytest.mark.parametrize(
    ("state", "visible", "shown"),
    [
        (RecordState.COMMITTED, True, "committed"),
        (RecordState.COMMITTED, False, "committed-hidden"),
        (RecordState.PLAIN, False, "plain-hidden"),
        (RecordState.ABORTED, False, "aborted"),
        (RecordState.OPEN, False, "open"),
        (RecordState.COMMIT_MARKER, False, "commit-marker"),
    ],
)
def test_a_state_is_one_word(state: RecordState, visible: bool, shown: str) -> None:
    assert lines(replace(RECORD, state=state, is_visible=visible))[1].split()[2] == shown


def test_markers_have_neither_key_nor_value() -> None:
    marker = replace(RECORD, state=RecordState.ABORT_MARKER, key=b"\0\0\0\0", value=b"\0")
    assert lines(marker)[1].split() == ["0", "7", "abort-marker", "shop-0", "-", "-"]


@pytest.mark.parametrize(
    ("data", "form", "shown"),
    [
        (None, "text", "null"),
        (b"", "text", '""'),
        (b"a\tb\x1b[2J", "text", "a\\tb\\x1b[2J"),
        (b"\xff", "text", "\\xff"),
        ("é".encode(), "text", "é"),
        (b"\x00\xff", "hex", "00ff"),
        (None, "hex", "null"),
        (b'{"a": [1,\n 2]}', "json", '{"a": [1, 2]}'),
        (b'"text"', "json", '"text"'),
        (b"no json", "json", '"no json"'),
        (b"null", "json", "null"),
        (b"NaN", "json", '"NaN"'),
        (b"[1e999]", "json", '"[1e999]"'),
        (b"[" * 100_000, "json", '"' + "[" * 100_000 + '"'),
    ],
)
def test_values_are_shown_in_the_format_that_was_chosen(data: bytes | None, form: str, shown: str) -> None:
    assert lines(replace(RECORD, key=b"k", value=data), form=form)[1].rpartition("  ")[2] == shown


@given(st.none() | st.binary(max_size=30), st.sampled_from(FORMATS))
def test_any_bytes_are_one_line_in_every_format(data: bytes | None, form: str) -> None:
    record = replace(RECORD, key=data, value=data, headers=(("h", data),))
    for line in lines(record, form=form, headers=True):
        assert line.isprintable()
    (line,) = lines(record, form=form, is_json=True)
    assert line.isprintable()
    assert json.loads(line)["value"] == decoded(data, form) or form == "json"


def test_columns_grow_and_do_not_shrink() -> None:
    made = RecordLines("text", "text", timestamps=False, headers=False)
    wide = replace(RECORD, transactional_id="a-long-transactional-id")
    first, second = list(made.of([RECORD, wide])), list(made.of([RECORD]))
    assert len({line.index(word) for line, word in zip(first, ["KEY", "tea", "tea"], strict=True)}) == 1
    assert second[0].index("tea") == first[0].index("KEY"), "no heads again, and the same columns"


def test_a_line_for_programs_has_every_field() -> None:
    (line,) = lines(RECORD, is_json=True)
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_000_000_000_123,
        "state": "committed",
        "visible": True,
        "producer": "5:1",
        "transactional_id": "shop-0",
        "key": "tea",
        "value": "one cup",
        "headers": [{"name": "trace", "value": "ab"}, {"name": "empty", "value": None}],
    }
    plain = replace(RECORD, producer=NO_PRODUCER, transactional_id=None, state=RecordState.PLAIN)
    shown = json.loads(lines(plain, is_json=True)[0])
    assert (shown["producer"], shown["transactional_id"], shown["state"]) == (None, None, "plain")
