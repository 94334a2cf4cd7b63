"""What each error code costs the native producer, and the exception that says what to do."""

import pytest

from dualwrite.client.terms.error_classes import COSTS, FENCING_CODES, Cost, cost_of, error_of_call, error_of_record
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

CALLS = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)


@pytest.mark.parametrize(
    ("api_key", "code", "cost"),
    [
        *[(key, ErrorCode.NONE, Cost.NOTHING) for key in COSTS],
        *[(key, ErrorCode.CONCURRENT_TRANSACTIONS, Cost.RETRY) for key in COSTS],
        *[(key, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Cost.RETRY) for key in COSTS],
        *[(key, ErrorCode.NOT_COORDINATOR, Cost.MOVE) for key in CALLS],
        *[(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, Cost.MOVE) for key in CALLS],
        *[(key, ErrorCode.PRODUCER_FENCED, Cost.TAKEN_OVER) for key in COSTS],
        *[(key, ErrorCode.INVALID_PRODUCER_EPOCH, Cost.TAKEN_OVER) for key in COSTS],
        *[(key, ErrorCode.INVALID_PRODUCER_ID_MAPPING, Cost.PRODUCER) for key in COSTS],
        *[(key, ErrorCode.TRANSACTION_ABORTABLE, Cost.TRANSACTION) for key in (*CALLS[1:], ApiKey.PRODUCE)],
        (ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, Cost.MOVE),
        (ApiKey.PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Cost.MOVE),
        (ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Cost.RETRY),
        (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR, Cost.RETRY),  # the leader's trouble, not ours
        (ApiKey.PRODUCE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, Cost.NOTHING),
        (ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Cost.TRANSACTION),
        (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, Cost.TRANSACTION),
        (ApiKey.PRODUCE, ErrorCode.INVALID_TXN_STATE, Cost.TRANSACTION),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Cost.PRODUCER),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, Cost.PRODUCER),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT, Cost.PRODUCER),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION, Cost.TRANSACTION),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Cost.PRODUCER),
        (ApiKey.PRODUCE, 9999, Cost.TRANSACTION),
        (ApiKey.END_TXN, 9999, Cost.PRODUCER),
    ],
)
def test_an_error_code_costs_what_kafka_says(api_key: ApiKey, code: int, cost: Cost) -> None:
    assert cost_of(api_key, code) is cost


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, FencedError, "INVALID_PRODUCER_EPOCH: another producer has taken over"),
        (ErrorCode.MESSAGE_TOO_LARGE, KafkaRefusedError, r"MESSAGE_TOO_LARGE \(10\)"),
        (ErrorCode.TRANSACTION_ABORTABLE, PrepareFailedError, r"TRANSACTION_ABORTABLE \(120\)"),
        (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            PrepareFailedError,
            r"INVALID_PRODUCER_ID_MAPPING .* has expired",
        ),
    ],
)
def test_a_record_that_is_given_up_has_an_error_that_says_what_to_do(
    code: int, kind: type[DualWriteError], words: str
) -> None:
    error = error_of_record("2 records of t-0", code)
    assert type(error) is kind
    with pytest.raises(kind, match=f"2 records of t-0: {words}"):
        raise error


@pytest.mark.parametrize(
    ("code", "two_phase", "kind"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, TwoPhaseCommitUnavailableError),
        (ErrorCode.UNSUPPORTED_VERSION, True, TwoPhaseCommitUnavailableError),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False, KafkaRefusedError),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, False, KafkaRefusedError),
        (ErrorCode.PRODUCER_FENCED, True, FencedError),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False, KafkaRefusedError),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, False, KafkaUnavailableError),
    ],
)
def test_a_call_that_is_given_up_has_an_error_that_says_what_to_do(
    code: int, two_phase: bool, kind: type[DualWriteError]
) -> None:
    assert type(error_of_call("asked", code, two_phase=two_phase)) is kind


def test_what_has_expired_is_no_takeover_and_what_belongs_to_the_transaction_may_be_asked_again() -> None:
    expired = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert expired not in FENCING_CODES
    with pytest.raises(KafkaRefusedError, match=r"asked: the transactional id has expired .*: INVALID_PRODUCER_ID_M"):
        raise error_of_call("asked", expired)
    offsets = error_of_call("offsets", expired, is_content=True)
    assert type(offsets) is PrepareFailedError
    assert offsets.retriable
