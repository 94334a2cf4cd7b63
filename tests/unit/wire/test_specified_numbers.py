"""Numbers and layouts that the KIPs write down. Where a KIP's text and released Kafka differ, Kafka's count."""

import pytest

from dualwrite.broker.access.acls import AclOperation
from dualwrite.wire.apis import (
    FindCoordinatorRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)
from dualwrite.wire.codec import read_body
from dualwrite.wire.error_codes import ErrorCode

LAST_OF_KIP_98, LAST_BEFORE_KIP_939, KIP_939 = 1, 5, 6

IDENTITY = {"transactional_id": "t", "transaction_timeout_ms": 1, "producer_id": 2, "producer_epoch": 3}
FLAGS = {"enable2_pc": True, "keep_prepared_txn": False}
ANSWER = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 2, "producer_epoch": 3}
ONGOING = {"ongoing_txn_producer_id": 4, "ongoing_txn_producer_epoch": 5}

REQUEST_BYTES = "0274 00000001 0000000000000002 0003"
ANSWER_BYTES = "00000000 0000 0000000000000002 0003"


def test_init_producer_id_has_the_two_flags_of_kip_939_behind_the_identity() -> None:
    before = bytes(InitProducerIdRequest(**IDENTITY).encode(version=LAST_BEFORE_KIP_939))
    assert before == bytes.fromhex(REQUEST_BYTES + "00")
    body = bytes(InitProducerIdRequest(**IDENTITY, **FLAGS).encode(version=KIP_939))
    assert body == bytes.fromhex(REQUEST_BYTES + "01 00" + "00")
    read = read_body(InitProducerIdRequest, KIP_939, body, 0)
    assert (read.enable2_pc, read.keep_prepared_txn) == (True, False)


def test_its_answer_has_the_identity_of_the_ongoing_transaction_behind_the_clients() -> None:
    before = bytes(InitProducerIdResponse(**ANSWER).encode(version=LAST_BEFORE_KIP_939))
    assert before == bytes.fromhex(ANSWER_BYTES + "00")
    body = bytes(InitProducerIdResponse(**ANSWER, **ONGOING).encode(version=KIP_939))
    assert body == bytes.fromhex(ANSWER_BYTES + "0000000000000004 0005" + "00")
    none = bytes(InitProducerIdResponse(**ANSWER).encode(version=KIP_939))
    assert none == bytes.fromhex(ANSWER_BYTES + "ffffffffffffffff ffff" + "00"), "-1 where no transaction is ongoing"


def test_init_producer_id_of_kip_98_has_a_transactional_id_and_a_timeout_and_nothing_else() -> None:
    body = bytes(InitProducerIdRequest(**IDENTITY).encode(version=LAST_OF_KIP_98))
    assert body == bytes.fromhex("0001 74 00000001")


def test_the_operation_of_two_phase_commit_is_number_15() -> None:
    assert AclOperation(15) is AclOperation.TWO_PHASE_COMMIT


@pytest.mark.parametrize(
    ("number", "released"), [(85, "NO_REASSIGNMENT_IN_PROGRESS"), (86, "GROUP_SUBSCRIBED_TO_TOPIC")]
)
def test_the_numbers_of_the_draft_of_kip_447_belong_to_other_errors(number: int, released: str) -> None:
    """The draft has CONCURRENT_PRODUCER_COMMIT (85) and PENDING_TRANSACTION (86)."""
    assert ErrorCode(number).name == released


def test_offsets_that_are_pending_have_the_error_of_the_final_kip_447() -> None:
    assert ErrorCode.UNSTABLE_OFFSET_COMMIT == 88
    assert not {"CONCURRENT_PRODUCER_COMMIT", "PENDING_TRANSACTION"} & {code.name for code in ErrorCode}


@pytest.mark.parametrize(
    ("request_class", "has"), [(InitProducerIdRequest, "transactional_id"), (FindCoordinatorRequest, "key_type")]
)
def test_a_transaction_coordinator_is_told_of_no_consumer_group(request_class: type, has: str) -> None:
    """The draft of KIP-447 gives InitProducerId a group, a generation and the assigned partitions."""
    fields = set(dir(request_class))
    assert has in fields
    assert not {"consumer_group_id", "consumer_group_generation", "generation_id", "assigned_partitions"} & fields


def test_offsets_in_a_transaction_carry_the_generation_and_the_member_from_version_3_on() -> None:
    place = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    common = {"transactional_id": "t", "group_id": "g", "producer_id": 2, "producer_epoch": 3}
    entry = place.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        **common, generation_id=4, member_id="m", group_instance_id=None, topics=[place(name="a", partitions=[entry])]
    )
    identity = "0000000000000002 0003"
    third = bytes(request.encode(version=3))
    assert third.startswith(bytes.fromhex("0274 0267" + identity + "00000004 026d 00")), "generation, member, instance"
    second = bytes(request.encode(version=2))
    offsets = "00000001 0001 61 00000001 00000000 0000000000000007 ffffffff 0000"
    assert second == bytes.fromhex("0001 74 0001 67" + identity + offsets), "and no retention time, which KIP-98 has"
