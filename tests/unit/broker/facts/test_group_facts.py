"""Facts about groups as bytes: Kafka's own, in both directions, and nothing that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.facts.groups import (
    GroupFact,
    GroupForgotten,
    GroupRecorded,
    MemberRecorded,
    decode_fact,
    encode_fact,
)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
counts = st.integers(-(2**31), 2**31 - 1)
members = st.builds(
    MemberRecorded,
    texts,
    st.none() | texts,
    texts,
    texts,
    counts,
    counts,
    st.binary(max_size=300),
    st.binary(max_size=9),
)
recorded = st.builds(
    GroupRecorded,
    texts,
    st.none() | texts.filter(bool),
    counts,
    st.none() | texts,
    st.none() | texts,
    st.integers(-(2**63), 2**63 - 1),
    st.lists(members, max_size=3).map(tuple),
)
facts = recorded | st.builds(GroupForgotten, texts)

FULL = GroupRecorded(
    "g", "consumer", 3, "range", "m-1", 1_700_000_000_000,
    (MemberRecorded("m-1", "i", "c", "/127.0.0.1", 60_000, 10_000, b"\x01", b"\x02\x03"),),
)  # fmt: skip
KEY = "0002" + "000167"
VALUE = (
    "0004" + "09636f6e73756d6572" + "00000003" + "0672616e6765" + "046d2d31" + "0000018bcfe56800" + "02"
    + "046d2d31" + "0269" + "0263" + "0b2f3132372e302e302e31" + "0000ea60" + "00002710"
    + "0201" + "030203" + "00" + "00"
)  # fmt: skip
"""GroupMetadataKey v2 and GroupMetadataValue v4, field by field as the schemas of Apache Kafka have them."""
EMPTY = GroupRecorded("g", "consumer", 4, None, None, 5)
EMPTY_VALUE = "0004" + "09636f6e73756d6572" + "00000004" + "00" + "00" + "0000000000000005" + "01" + "00"


@given(facts)
def test_every_fact_comes_back_as_it_was(fact: GroupFact) -> None:
    assert decode_fact(*encode_fact(fact)) == fact


@given(facts, facts)
def test_facts_about_one_group_share_their_key_so_that_a_journal_can_be_compacted(
    one: GroupFact, two: GroupFact
) -> None:
    assert (encode_fact(one)[0] == encode_fact(two)[0]) == (one.group == two.group)


@pytest.mark.parametrize(("fact", "value"), [(FULL, VALUE), (EMPTY, EMPTY_VALUE)], ids=["full", "empty"])
def test_the_bytes_are_kafkas(fact: GroupRecorded, value: str) -> None:
    assert encode_fact(fact) == (bytes.fromhex(KEY), bytes.fromhex(value))


@pytest.mark.parametrize("fact", [FULL, EMPTY], ids=["full", "empty"])
def test_a_fact_that_was_cut_short_is_a_value_error_wherever_it_was_cut(fact: GroupRecorded) -> None:
    key, value = encode_fact(fact)
    assert value is not None
    for size in range(len(value)):
        with pytest.raises(ValueError):  # noqa: PT011  any message will do; what counts is that none is taken for whole
            decode_fact(key, value[:size])
    for size in range(len(key)):
        with pytest.raises(ValueError):  # noqa: PT011
            decode_fact(key[:size], value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("0003000167", VALUE, "unknown type"),
        (KEY + "00", VALUE, "key of another form"),
        (KEY, VALUE + "00", "value of another form"),
        (KEY, "0003" + VALUE[4:], "version 3; only 4"),
        (KEY, VALUE.replace("0263", "00", 1), "must not be null"),
    ],
)
def test_records_of_other_releases_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_fact(bytes.fromhex(key), bytes.fromhex(value))
