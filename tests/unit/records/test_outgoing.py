"""An OutgoingRecord has checked arguments, whichever way it is made."""

import pickle
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from dualwrite.records.outgoing import OutgoingRecord


def test_a_topic_is_enough() -> None:
    assert OutgoingRecord("t") == ("t", None, None, -1, 0, (), None)


def test_the_arguments_are_in_the_order_of_confluent_kafkas() -> None:
    record = OutgoingRecord("t", "v", "k", 3, 5, {"h": "x"}, print)
    assert (record.topic, record.value, record.key, record.partition, record.timestamp) == ("t", b"v", b"k", 3, 5)
    assert (record.headers, record.on_delivery) == ((("h", b"x"),), print)


def test_an_outgoing_record_is_immutable() -> None:
    record = OutgoingRecord("t")
    with pytest.raises(AttributeError):
        record.topic = "u"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        record.other = 5  # type: ignore[attr-defined]


def test_a_copy_with_another_callback_is_otherwise_the_same() -> None:
    record = OutgoingRecord("t", b"v", b"k", 3, 5, [("h", None)])
    copy = record.reporting_to(print)
    assert copy == OutgoingRecord("t", b"v", b"k", 3, 5, [("h", None)], print)
    assert type(copy) is OutgoingRecord
    assert record.on_delivery is None


def test_an_outgoing_record_survives_pickling() -> None:
    record = OutgoingRecord("t", "v", "k", 3, 5, {"h": "x"})
    copy = pickle.loads(pickle.dumps(record))
    assert copy == record
    assert type(copy) is OutgoingRecord


@pytest.mark.parametrize("given", [5, None, b"t"])
def test_a_topic_that_is_not_text_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=f"topic of type {type(given).__name__}: give text"):
        OutgoingRecord(given)


@pytest.mark.parametrize(
    ("given", "encoded"),
    [(None, None), (b"x", b"x"), ("ü", "ü".encode()), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), ("", b"")],
)
def test_text_is_utf_8_and_bytes_are_unchanged(given: Any, encoded: bytes | None) -> None:
    record = OutgoingRecord("t", given, given)
    assert (record.value, record.key) == (encoded, encoded)
    assert encoded is None or type(record.value) is bytes


@pytest.mark.parametrize("name", ["value", "key"])
def test_a_key_or_value_that_is_neither_text_nor_bytes_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="a key or value of type int: give bytes, text or None"):
        OutgoingRecord("t", **{name: 7})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        (None, ()),
        ({}, ()),
        ([], ()),
        ({"a": "1", "b": None}, (("a", b"1"), ("b", None))),
        ([("a", b"1"), ["a", "2"]], (("a", b"1"), ("a", b"2"))),
        (((name, b"1") for name in "ab"), (("a", b"1"), ("b", b"1"))),
    ],
)
def test_headers_are_pairs(given: Any, pairs: Any) -> None:
    assert OutgoingRecord("t", headers=given).headers == pairs


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (3, "headers of type int: give pairs"),
        ("ab", "headers of type str: give pairs"),
        ([("a", "b", "c")], r"header \('a', 'b', 'c'\): give a pair"),
        ([b"ab"], "header b'ab': give a pair"),
        ({"h": 7}, "header 'h': a value of type int: give bytes, text or None"),
        ([(b"a", b"1")], "name of type bytes: give text"),
    ],
)
def test_other_headers_are_refused(given: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        OutgoingRecord("t", headers=given)


@pytest.mark.parametrize(
    "arguments", [{"value": "\ud800"}, {"key": "\ud800"}, {"headers": {"\ud800": "x"}}, {"headers": {"x": "\ud800"}}]
)
def test_text_without_a_utf_8_form_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"text that has no UTF-8 form \(surrogates not allowed\)"):
        OutgoingRecord("t", **arguments)


@pytest.mark.parametrize("given", [0, 1, 2**63 - 1])
def test_a_timestamp_is_milliseconds_in_64_bits(given: int) -> None:
    assert OutgoingRecord("t", timestamp=given).timestamp == given


@pytest.mark.parametrize(
    ("given", "error"), [(-1, ValueError), (2**63, ValueError), (2**70, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_a_timestamp_that_no_record_can_have_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timestamp"):
        OutgoingRecord("t", timestamp=given)


@pytest.mark.parametrize("given", [-1, 0, 2**31 - 1, TopicPartition("t", 5).partition])
def test_a_partition_is_a_whole_number_in_32_bits_or_the_partitioners(given: int) -> None:
    assert OutgoingRecord("t", partition=given).partition == given


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("0", TypeError),
        (None, TypeError),
        (0.5, TypeError),
        (-1.0, TypeError),
        (True, TypeError),
        (-2, ValueError),
        (2**31, ValueError),
    ],
)
def test_a_partition_that_no_topic_can_have_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition"):
        OutgoingRecord("t", partition=given)


class Awaited:
    async def __call__(self, _error: Any, _record: Any) -> None:
        """Its coroutine would never be awaited."""


@pytest.mark.parametrize("given", [5, "f", Awaited(), Awaited.__call__, partial(Awaited.__call__, None)])
def test_an_invalid_delivery_callback_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="on_delivery"):
        OutgoingRecord("t", on_delivery=given)


@pytest.mark.parametrize("given", [print, [].append, partial(print, "x"), lambda error, record: None])
def test_a_delivery_callback_is_what_can_be_called(given: Any) -> None:
    assert OutgoingRecord("t", on_delivery=given).on_delivery is given
