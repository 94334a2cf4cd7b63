"""Every request of the client: in which versions it may be sent, and what a broker reads in each."""

from typing import Any

import pytest

from dualwrite.client.protocol.requests import (
    EARLIEST,
    GROUP,
    LATEST,
    TRANSACTION,
    CommittedOffset,
    CoordinatorOf,
    GroupMember,
    VersionedRequest,
    add_offsets_to_txn,
    code_in,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    list_transactions,
    metadata,
    txn_offset_commit,
)
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

ID, PRODUCER = "app-0", ProducerIdentity(7, 3)
PARTITIONS = [TopicPartition("t", 0), TopicPartition("u", 4), TopicPartition("t", 2)]
PLAIN: dict[str, Any] = {"two_phase_commit": False, "keep_prepared_txn": False}
OFFSETS = [CommittedOffset("t", 0, 5), CommittedOffset("u", 1, 6, 2, "note")]
CALLS = [
    find_coordinator(CoordinatorOf(TRANSACTION, ID)),
    find_coordinator(CoordinatorOf(GROUP, "g")),
    metadata(["t", "u"], creates=True),
    metadata(None),
    metadata(["t"], with_ids=True),
    init_producer_id(ID, 5, **PLAIN),
    init_producer_id(ID, 5, **PLAIN, expected=PRODUCER),
    init_producer_id(ID, 5, two_phase_commit=True, keep_prepared_txn=False),
    init_producer_id(ID, 5, two_phase_commit=False, keep_prepared_txn=True),
    end_txn(ID, PRODUCER, True, bumps_epoch=True),
    end_txn(ID, PRODUCER, False, bumps_epoch=False),
    txn_offset_commit(ID, PRODUCER, OFFSETS, GroupMember("g", 2, "m", "i")),
    txn_offset_commit(ID, PRODUCER, OFFSETS, GroupMember("g"), joins=False),
    add_offsets_to_txn(ID, PRODUCER, "g"),
    describe_transactions(ID),
    list_transactions(),
    describe_producers(PARTITIONS),
    list_offsets(PARTITIONS, LATEST, committed=True),
    list_offsets(PARTITIONS, EARLIEST),
    fetch(PARTITIONS[0], 9, committed=True, most=100),
    describe_configs(2, ["b", "a"]),
    describe_log_dirs(2),
]


def as_read(call: VersionedRequest, version: int) -> Message:
    """The request as a broker reads it in ``version``."""
    return APIS[call.api_key].request.decode(call.message.encode(version=version), version=version)


def lowest_and_highest(call: VersionedRequest) -> tuple[Message, Message]:
    return as_read(call, call.floor), as_read(call, call.cap or call.floor)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.operation)
def test_a_request_can_be_written_in_each_of_its_versions(call: VersionedRequest) -> None:
    ours = APIS[call.api_key].request
    highest = ours.max_version if call.cap is None else call.cap
    assert ours.min_version <= max(call.floor, ours.min_version) <= highest <= ours.max_version
    for version in range(max(call.floor, ours.min_version), highest + 1):
        assert isinstance(as_read(call, version), ours)


@pytest.mark.parametrize("flag", PLAIN)
def test_two_phase_commit_is_asked_for_in_the_one_version_that_knows_it(flag: str) -> None:
    call = init_producer_id(ID, 5, **(PLAIN | {flag: True}))
    assert (call.floor, call.cap) == (6, 6)
    asked = as_read(call, 6)
    assert (asked.enable2_pc, asked.keep_prepared_txn) == (flag == "two_phase_commit", flag == "keep_prepared_txn")


def test_an_expected_identity_is_never_left_out() -> None:
    """A version without the field would fence whoever has a newer identity."""
    call = init_producer_id(ID, 5, **PLAIN, expected=PRODUCER)
    for asked in lowest_and_highest(call):
        assert ProducerIdentity(asked.producer_id, asked.producer_epoch) == PRODUCER
    assert (call.floor, call.cap) == (3, 5)
    assert init_producer_id(ID, 5, **PLAIN).floor == 0, "without one, every broker understands it"


def test_an_end_that_must_fence_is_sent_in_the_version_that_does_or_not_at_all() -> None:
    assert end_txn(ID, PRODUCER, True, bumps_epoch=True)[3:5] == (5, 5)
    assert end_txn(ID, PRODUCER, True, bumps_epoch=False)[3:5] == (0, 4)


@pytest.mark.parametrize("bumps_epoch", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_an_end_names_its_producer_and_the_outcome_in_every_version(bumps_epoch: bool, committed: bool) -> None:
    call = end_txn(ID, PRODUCER, committed, bumps_epoch=bumps_epoch)
    assert call.operation == f"EndTxn ({'commit' if committed else 'abort'}) of app-0"
    for asked in lowest_and_highest(call):
        assert (asked.transactional_id, asked.committed) == (ID, committed)
        assert ProducerIdentity(asked.producer_id, asked.producer_epoch) == PRODUCER


def test_the_end_of_committed_records_is_asked_in_no_version_that_cannot_tell_it() -> None:
    for asked in lowest_and_highest(list_offsets(PARTITIONS, LATEST, committed=True)):
        assert asked.isolation_level == 1
        indexes = {topic.name: [partition.partition_index for partition in topic.partitions] for topic in asked.topics}
        assert indexes == {"t": [0, 2], "u": [4]}


def test_a_topic_is_made_only_for_one_that_writes_to_it() -> None:
    assert as_read(metadata(["t"], creates=True), 9).allow_auto_topic_creation
    assert not as_read(metadata(["t"]), 9).allow_auto_topic_creation


def test_the_first_refused_partition_decides_about_offsets() -> None:
    response = APIS[ApiKey.TXN_OFFSET_COMMIT].response
    topic = response.TxnOffsetCommitResponseTopic
    codes = {0: 0, 1: ErrorCode.ILLEGAL_GENERATION, 2: ErrorCode.NOT_COORDINATOR}
    partitions = [
        topic.TxnOffsetCommitResponsePartition(partition_index=index, error_code=int(code))
        for index, code in codes.items()
    ]
    answer = response(throttle_time_ms=0, topics=[topic(name="t", partitions=partitions)])
    assert code_in(ApiKey.TXN_OFFSET_COMMIT, answer) == (ErrorCode.ILLEGAL_GENERATION, "t-1")
    partitions[1:] = []
    assert code_in(ApiKey.TXN_OFFSET_COMMIT, answer) == (ErrorCode.NONE, "")


def test_offsets_that_must_join_a_transaction_are_sent_in_the_version_that_does_or_not_at_all() -> None:
    assert txn_offset_commit(ID, PRODUCER, OFFSETS, GroupMember("g"))[3:5] == (5, 5)
    assert txn_offset_commit(ID, PRODUCER, OFFSETS, GroupMember("g"), joins=False)[3:5] == (3, 4)
    assert add_offsets_to_txn(ID, PRODUCER, "g").cap == 4


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("bumps_epoch", [True, False])
def test_the_end_of_a_transaction_is_repeated_only_if_its_caller_allows_it(bumps_epoch: bool, repeatable: bool) -> None:
    """A late copy could end a later transaction of the same identity."""
    call = end_txn(ID, PRODUCER, True, bumps_epoch=bumps_epoch, repeatable=repeatable)
    assert call.repeatable is repeatable
