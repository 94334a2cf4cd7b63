"""Committed offsets as bytes: Kafka's own, in both directions, and nothing that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.broker.facts.offsets import (
    OffsetCommitted,
    OffsetFact,
    OffsetForgotten,
    decode_fact,
    encode_fact,
)
from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.ids import TopicPartition

COMMITTED = OffsetCommitted("g-ü", TopicPartition("orders", 3), 1_234_567_890_123, 7, "héllo", 1_700_000_000_000)
PLAIN = OffsetCommitted("g-ü", TopicPartition("orders", 3), 5, -1, "", 1)

KAFKA_KEY = "00010004672dc3bc00066f726465727300000003"
KAFKA_COMMITTED = "00040000011f71fb04cb000000070768c3a96c6c6f0000018bcfe5680000"
KAFKA_PLAIN = "00040000000000000005ffffffff01000000000000000100"
KAFKA_WITH_TOPIC_ID = KAFKA_COMMITTED[:-2] + "01001000000000000000010000000000000002"
KAFKA_OLDER = {
    1: "00010000011f71fb04cb000668c3a96c6c6f0000018bcfe56800ffffffffffffffff",
    3: "00030000011f71fb04cb00000007000668c3a96c6c6f0000018bcfe56800",
}
KAFKA_KEY_OF_A_GROUP = "0003000167"
"""What GroupCoordinatorRecordHelpers and GroupCoordinatorRecordSerde of Apache Kafka 4.4.0 wrote for the same facts."""

texts = st.text(st.characters(codec="utf-8"), max_size=30)
partitions = st.builds(TopicPartition, st.text("abcxyz.-_09", min_size=1, max_size=249), st.integers(0, 2**31 - 1))
numbers = st.integers(-(2**63), 2**63 - 1)
facts = st.builds(OffsetCommitted, texts, partitions, numbers, st.integers(-1, 2**31 - 1), texts, numbers)


def read(key: str, value: str) -> OffsetFact:
    return decode_fact(bytes.fromhex(key), bytes.fromhex(value))


@given(facts)
def test_every_fact_comes_back_as_it_was(fact: OffsetCommitted) -> None:
    assert decode_fact(*encode_fact(fact)) == fact


@given(facts)
def test_a_tombstone_takes_the_key_of_the_fact_that_it_ends(fact: OffsetCommitted) -> None:
    tombstone = OffsetForgotten(fact.group, fact.partition)
    assert encode_fact(tombstone) == (encode_fact(fact)[0], None)
    assert decode_fact(*encode_fact(tombstone)) == tombstone


@given(facts, facts)
def test_facts_about_one_group_and_partition_share_their_key(one: OffsetCommitted, other: OffsetCommitted) -> None:
    same = (one.group, one.partition) == (other.group, other.partition)
    assert (encode_fact(one)[0] == encode_fact(other)[0]) == same


@pytest.mark.parametrize(("fact", "value"), [(COMMITTED, KAFKA_COMMITTED), (PLAIN, KAFKA_PLAIN)])
def test_the_bytes_are_kafkas(fact: OffsetCommitted, value: str) -> None:
    assert [data.hex() for data in encode_fact(fact)] == [KAFKA_KEY, value]
    assert read(KAFKA_KEY, value) == fact


def test_the_topic_id_that_kafka_may_add_is_passed_over() -> None:
    assert read(KAFKA_KEY, KAFKA_WITH_TOPIC_ID) == COMMITTED


@pytest.mark.parametrize("version", KAFKA_OLDER)
def test_a_value_in_an_older_form_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"version {version}; only 4"):
        read(KAFKA_KEY, KAFKA_OLDER[version])


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="key of an unknown type"):
        read(KAFKA_KEY_OF_A_GROUP, KAFKA_COMMITTED)


@pytest.mark.parametrize("fact", [COMMITTED, PLAIN], ids=["full", "plain"])
def test_a_fact_that_was_cut_short_is_a_value_error_wherever_it_was_cut(fact: OffsetCommitted) -> None:
    key, value = encode_fact(fact)
    assert value is not None
    for size in range(len(value)):
        with pytest.raises(ValueError):  # noqa: PT011  any message will do; what counts is that none is taken for whole
            decode_fact(key, value[:size])
    for size in range(len(key)):
        with pytest.raises(ValueError):  # noqa: PT011
            decode_fact(key[:size], value)


def test_bytes_after_a_fact_are_refused() -> None:
    with pytest.raises(ValueError, match="key of another form"):
        read(KAFKA_KEY + "00", KAFKA_COMMITTED)
    with pytest.raises(ValueError, match="value of another form"):
        read(KAFKA_KEY, KAFKA_COMMITTED + "00")


def test_metadata_that_is_null_is_refused() -> None:
    with pytest.raises(ValueError, match="without metadata"):
        read(KAFKA_KEY, KAFKA_PLAIN[:28] + "00" + KAFKA_PLAIN[30:])


def test_the_longest_group_id_has_room_in_the_key() -> None:
    fact = OffsetCommitted("g" * LONGEST_STRING, COMMITTED.partition, 0, 0, "", 0)
    assert decode_fact(*encode_fact(fact)) == fact


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=100), max_size=4), st.binary(max_size=5))
def test_tagged_fields_are_decoded_with_the_position_after_them(fields: dict[int, bytes], rest: bytes) -> None:
    data = bytearray([len(fields)])
    for number, content in fields.items():
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data += bytes([number, len(content)]) + content
    assert decode_tagged_fields(b"before" + bytes(data) + rest, 6) == (fields, 6 + len(data))
