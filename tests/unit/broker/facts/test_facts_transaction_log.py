"""Transaction facts as bytes: Kafka's own, in both directions, and nothing that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.facts import transaction_log
from dualwrite.broker.facts.transaction_log import decode_fact, encode_fact
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER, ProducerIdentity, TopicPartition
from tests.support.strategies import producers

PREPARED = TransactionRecorded(
    "app-0",
    ProducerIdentity(42, MAX_PRODUCER_EPOCH),
    TransactionStatus.PREPARE_COMMIT,
    NO_TIMEOUT,
    updated_ms=1_000_001,
    partitions=frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("t", 1)}),
    started_ms=1_000_000,
    previous=ProducerIdentity(73, MAX_PRODUCER_EPOCH),
    next_producer=ProducerIdentity(85, 0),
    version=TransactionVersion.TV2,
)
"""Step 9 of KIP-939's second example: three producer ids at once."""

KAFKA_KEY = "000000056170702d30"
KAFKA_PREPARED = (
    "0001000000000000002a7fff7fffffff02"
    "03076f72646572730300000000000000020002740200000001"
    "0000000000000f424100000000000f4240"
    "04"  # tagged fields
    "0008000000000000004901080000000000000055020200020302"
    "0000"
)
KAFKA_EMPTY = "0001000000000000002a00050000ea60000000000000000f4241ffffffffffffffff00"
KAFKA_EMPTY_V0 = "0000000000000000002a00050000ea6000ffffffff00000000000f4241ffffffffffffffff"
"""What TransactionLogKey v0 and TransactionLogValue v1 and v0 of Apache Kafka 4.4.0 wrote for the same states."""

EMPTY = TransactionRecorded("app-0", ProducerIdentity(42, 5), TransactionStatus.EMPTY, 60_000, 1_000_001)

transactional_ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
partitions = st.builds(TopicPartition, st.text("abcxyz.-_09", min_size=1, max_size=249), st.integers(0, 2**31 - 1))
facts = st.builds(
    TransactionRecorded,
    transactional_ids,
    producers,
    st.sampled_from(TransactionStatus),
    st.integers(1, NO_TIMEOUT),
    st.integers(0, 2**63 - 1),
    st.frozensets(partitions, max_size=20),
    st.integers(-1, 2**63 - 1),
    st.just(NO_PRODUCER) | producers,
    st.just(NO_PRODUCER) | producers,
    st.sampled_from(TransactionVersion),
    st.integers(-1, NO_TIMEOUT),
)


@given(facts)
def test_every_fact_comes_back_as_it_was(fact: TransactionRecorded) -> None:
    key, value = encode_fact(fact)
    assert decode_fact(key, value) == fact


@given(transactional_ids)
def test_a_forgotten_id_is_a_tombstone(transactional_id: str) -> None:
    key, value = encode_fact(TransactionForgotten(transactional_id))
    assert value is None
    assert decode_fact(key, value) == TransactionForgotten(transactional_id)


@given(facts, facts)
def test_facts_about_one_id_share_their_key_so_that_a_journal_can_be_compacted(
    one: TransactionRecorded, other: TransactionRecorded
) -> None:
    assert (encode_fact(one)[0] == encode_fact(other)[0]) == (one.transactional_id == other.transactional_id)


def test_the_bytes_are_kafkas_and_one_tagged_field_more() -> None:
    key, value = encode_fact(PREPARED)
    assert key.hex() == KAFKA_KEY
    assert value is not None
    ours, kafkas = value.hex(), KAFKA_PREPARED
    count = kafkas.index("0400080000")
    assert ours == kafkas[:count] + "05" + kafkas[count + 2 :] + "6402" + "7fff", "tag 100: PrevProducerEpoch"


def test_records_written_by_kafka_are_read() -> None:
    fact = decode_fact(bytes.fromhex(KAFKA_KEY), bytes.fromhex(KAFKA_PREPARED))
    assert fact == TransactionRecorded(
        PREPARED.transactional_id,
        PREPARED.producer,
        PREPARED.status,
        PREPARED.timeout_ms,
        PREPARED.updated_ms,
        PREPARED.partitions,
        PREPARED.started_ms,
        ProducerIdentity(73, -1),
        PREPARED.next_producer,
        PREPARED.version,
    )


def test_null_partitions_and_absent_fields_have_their_defaults() -> None:
    assert decode_fact(bytes.fromhex(KAFKA_KEY), bytes.fromhex(KAFKA_EMPTY)) == EMPTY


def test_a_fact_in_the_form_without_tagged_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="version 0; only 1"):
        decode_fact(bytes.fromhex(KAFKA_KEY), bytes.fromhex(KAFKA_EMPTY_V0))


def test_a_key_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="key of an unknown version"):
        decode_fact(bytes.fromhex("0001" + KAFKA_KEY[4:]), None)


def test_tagged_fields_of_later_releases_are_passed_over() -> None:
    value = bytes.fromhex(KAFKA_EMPTY[:-2] + "01" + "63" + "03" + "abcdef")
    assert decode_fact(bytes.fromhex(KAFKA_KEY), value) == EMPTY


@pytest.mark.parametrize("fact", [PREPARED, EMPTY], ids=["prepared", "empty"])
def test_a_fact_that_was_cut_short_is_a_value_error_wherever_it_was_cut(fact: TransactionRecorded) -> None:
    key, value = encode_fact(fact)
    assert value is not None
    for size in range(len(value)):
        with pytest.raises(ValueError):  # noqa: PT011  any message will do; what counts is that none is taken for whole
            decode_fact(key, value[:size])
    for size in range(len(key)):
        with pytest.raises(ValueError):  # noqa: PT011
            decode_fact(key[:size], value)


@pytest.mark.parametrize("status", [7, 99])
def test_an_unknown_status_is_refused(status: int) -> None:
    key, value = encode_fact(EMPTY)
    assert value is not None
    with pytest.raises(ValueError, match=f"{status} is not a valid TransactionStatus"):
        decode_fact(key, value[:16] + bytes([status]) + value[17:])


def test_the_statuses_have_kafkas_names_and_numbers() -> None:
    assert [(status.value, status.kafka_name) for status in TransactionStatus] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
    ]


def test_large_sets_of_partitions_are_not_remembered() -> None:
    """A client could otherwise fill the memory with transactions of a hundred thousand partitions."""
    few, many = (frozenset(TopicPartition("remembered", index) for index in range(count)) for count in (16, 17))
    remembered = transaction_log.encode_few_partitions.cache_info
    before = remembered().misses
    encode_fact(PREPARED._replace(partitions=many))
    assert remembered().misses == before
    encode_fact(PREPARED._replace(partitions=few))
    assert remembered().misses == before + 1
