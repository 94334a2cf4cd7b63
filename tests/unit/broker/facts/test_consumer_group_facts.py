"""The records of consumer groups: what is written can be read, and what is damaged is refused."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import (
    ClassicMembership,
    ConsumerGroupFact,
    ConsumerGroupPartForgotten,
    ConsumerGroupRecorded,
    MemberAssigned,
    MemberState,
    MemberSubscribed,
    RecordType,
    TargetAssigned,
    TargetEpochRecorded,
    decode_fact,
    encode_fact,
    is_consumer_group_key,
)
from dualwrite.broker.facts.fields import LaterReleaseError
from dualwrite.broker.runtime.groups.group_log import decode, encode

TOPIC = uuid.UUID(int=7)
P0, P1 = TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 1)

names = st.text(max_size=20)
numbers = st.integers(-(2**31), 2**31 - 1)
partitions = st.builds(TopicIdPartition, st.uuids(), st.integers(0, 9))
held = st.dictionaries(partitions, numbers, max_size=6)
facts = st.one_of(
    st.builds(ConsumerGroupRecorded, names, numbers, st.integers(-(2**63), 2**63 - 1)),
    st.builds(TargetEpochRecorded, names, numbers),
    st.builds(TargetAssigned, names, names, st.frozensets(partitions, max_size=6)),
    st.builds(MemberAssigned, names, names, numbers, numbers, st.sampled_from(MemberState), held, held),
    st.builds(
        MemberSubscribed,
        names,
        names,
        st.none() | names,
        st.none() | names,
        names,
        names,
        st.lists(names, max_size=4).map(tuple),
        st.none() | names,
        numbers,
        st.none() | names,
        st.none()
        | st.builds(
            ClassicMembership, numbers, st.lists(st.tuples(names, st.binary(max_size=9)), max_size=3).map(tuple)
        ),
    ),
    st.builds(ConsumerGroupPartForgotten, st.sampled_from([RecordType.GROUP, RecordType.TARGET_EPOCH]), names),
    st.builds(
        ConsumerGroupPartForgotten,
        st.sampled_from([RecordType.MEMBER, RecordType.TARGET, RecordType.CURRENT]),
        names,
        names,
    ),
)


@given(facts)
def test_every_fact_is_read_as_it_was_written(fact: ConsumerGroupFact) -> None:
    assert decode_fact(*encode_fact(fact)) == fact
    assert decode(*encode(fact)) == fact


@pytest.mark.parametrize(
    ("fact", "key", "value"),
    [
        (ConsumerGroupRecorded("g", 3, 5), "0003 0001 67", "0000 00000003 01 00 08 0000000000000005"),
        (TargetEpochRecorded("g", 4), "0006 0001 67", "0000 00000004 00"),
        (
            TargetAssigned("g", "m", frozenset({P0, P1})),
            "0007 0001 67 0001 6d",
            f"0000 02 {TOPIC.hex} 03 00000000 00000001 00 00",
        ),
        (
            MemberAssigned("g", "m", 5, 4, MemberState.UNREVOKED_PARTITIONS, {P0: 2}, {P1: 3}),
            "0008 0001 67 0001 6d",
            f"0000 00000005 00000004 01 02 {TOPIC.hex} 02 00000000 01 00 05 02 00000002"
            f" 02 {TOPIC.hex} 02 00000001 01 00 05 02 00000003 00",
        ),
        (
            MemberSubscribed("g", "m", None, "r", "c", "h", ("t",), None, 9, "range"),
            "0005 0001 67 0001 6d",
            "0000 00 02 72 02 63 02 68 02 02 74 00 00000009 06 72616e6765 00",
        ),
        (
            MemberSubscribed("g", "m", "i", None, "c", "h", (), None, 9, None, ClassicMembership(7, (("a", b"xy"),))),
            "0005 0001 67 0001 6d",
            "0000 02 69 00 02 63 02 68 01 00 00000009 00 01 00 0d 01 00000007 02 02 61 03 7879 00 00",
        ),
        (ConsumerGroupPartForgotten(RecordType.CURRENT, "g", "m"), "0008 0001 67 0001 6d", None),
    ],
)
def test_a_record_has_kafkas_bytes(fact: ConsumerGroupFact, key: str, value: str | None) -> None:
    written_key, written = encode_fact(fact)
    assert written_key == bytes.fromhex(key)
    assert written == (None if value is None else bytes.fromhex(value))


def test_partitions_without_assignment_epochs_have_the_epoch_zero() -> None:
    key, _ = encode_fact(MemberAssigned("g", "m", 5, 4, MemberState.STABLE))
    value = bytes.fromhex(f"0000 00000005 00000004 00 02 {TOPIC.hex} 03 00000000 00000001 00 01 00")
    assert decode_fact(key, value) == MemberAssigned("g", "m", 5, 4, MemberState.STABLE, {P0: 0, P1: 0})


@given(facts, st.data())
def test_a_record_that_is_cut_short_is_refused(fact: ConsumerGroupFact, data: st.DataObject) -> None:
    key, value = encode_fact(fact)
    if value is None:
        return
    length = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(ValueError, match=r"."):
        decode_fact(key, value[:length])


@pytest.mark.parametrize("more", [b"\x00", b"\x00\x00"])
def test_a_record_with_more_bytes_is_refused(more: bytes) -> None:
    key, value = encode_fact(TargetEpochRecorded("g", 4))
    assert value is not None
    with pytest.raises(ValueError, match="another form"):
        decode_fact(key, value + more)
    with pytest.raises(ValueError, match="another form"):
        decode_fact(key + more, value)


def test_a_record_of_a_later_release_names_it_as_such() -> None:
    key, value = encode_fact(TargetEpochRecorded("g", 4))
    assert value is not None
    with pytest.raises(LaterReleaseError, match="version 1"):
        decode_fact(key, b"\x00\x01" + value[2:])
    with pytest.raises(LaterReleaseError, match="unknown type"):
        decode_fact(b"\x00\x10" + key[2:], value)


@pytest.mark.parametrize("tag", ["00 01 00", "07 01 00"], ids=["null", "unknown"])
def test_a_member_without_the_part_of_the_classic_protocol_has_none(tag: str) -> None:
    fact = MemberSubscribed("g", "m", None, None, "c", "h", (), None, 9, None)
    key, value = encode_fact(fact)
    assert value is not None
    assert decode_fact(key, value[:-1] + bytes.fromhex(f"01 {tag}")) == fact


def test_a_member_of_the_classic_protocol_in_another_form_is_refused() -> None:
    member = MemberSubscribed("g", "m", None, None, "c", "h", (), None, 9, None, ClassicMembership(1, ()))
    key, value = encode_fact(member)
    assert value is not None
    assert value.endswith(bytes.fromhex("01 00 07 01 00000001 01 00"))
    with pytest.raises(ValueError, match="another form"):
        decode_fact(key, value[:-8] + bytes.fromhex("08 01 00000001 01 00 00"))


@pytest.mark.parametrize(("number", "is_one"), [(1, False), (2, False), (3, True), (4, False), (8, True), (16, False)])
def test_the_first_number_of_a_key_tells_the_records_apart(number: int, is_one: bool) -> None:
    assert is_consumer_group_key(number.to_bytes(2, "big") + b"rest") is is_one
    assert not is_consumer_group_key(b"\x00")
