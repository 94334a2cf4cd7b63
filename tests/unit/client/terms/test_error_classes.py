"""The class of each error code, for the engine and the control plane, and the exception that says what to do."""

import pytest

from dualwrite.client.terms.error_classes import (
    ERROR_CLASSES,
    FENCING_CODES,
    RETRIABLE_CODES,
    ErrorClass,
    class_of,
    error_for,
    raise_for,
    raise_if_retriable,
)
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

PRODUCERS = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE)
CALLS = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)


@pytest.mark.parametrize(
    ("api_key", "code", "error_class"),
    [
        *[(key, ErrorCode.NONE, ErrorClass.SUCCESS) for key in ERROR_CLASSES],
        *[(key, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorClass.RETRIABLE) for key in ERROR_CLASSES],
        *[(key, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorClass.RETRIABLE) for key in ERROR_CLASSES],
        *[(key, ErrorCode.NOT_COORDINATOR, ErrorClass.REFRESH_RETRIABLE) for key in CALLS],
        *[(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorClass.REFRESH_RETRIABLE) for key in CALLS],
        *[(key, ErrorCode.PRODUCER_FENCED, ErrorClass.FENCED) for key in PRODUCERS],
        *[(key, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorClass.FENCED) for key in PRODUCERS],
        *[(key, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorClass.FATAL) for key in PRODUCERS],
        *[(key, ErrorCode.TRANSACTION_ABORTABLE, ErrorClass.ABORTABLE) for key in (*CALLS[1:], ApiKey.PRODUCE)],
        (ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorClass.REFRESH_RETRIABLE),
        (ApiKey.PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorClass.REFRESH_RETRIABLE),
        (ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorClass.RETRIABLE),
        (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR, ErrorClass.RETRIABLE),  # the leader's trouble, not ours
        (ApiKey.PRODUCE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorClass.SUCCESS),
        (ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorClass.ABORTABLE),
        (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, ErrorClass.ABORTABLE),
        (ApiKey.PRODUCE, ErrorCode.INVALID_TXN_STATE, ErrorClass.ABORTABLE),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorClass.FATAL),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, ErrorClass.FATAL),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT, ErrorClass.FATAL),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION, ErrorClass.ABORTABLE),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorClass.FATAL),
        (ApiKey.PRODUCE, 9999, ErrorClass.ABORTABLE),
        (ApiKey.END_TXN, 9999, ErrorClass.FATAL),
    ],
)
def test_an_error_code_has_the_class_that_kafka_gives_it(api_key: ApiKey, code: int, error_class: ErrorClass) -> None:
    assert class_of(api_key, code) is error_class


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            FencedError,
            r"INVALID_PRODUCER_EPOCH \(47\): another producer has taken over \(.*, or of another database under the"
            r" same application name\)",
        ),
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
    error = error_for(ApiKey.PRODUCE, "2 records of t-0", code)
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
    assert type(error_for(ApiKey.INIT_PRODUCER_ID, "asked", code, two_phase=two_phase)) is kind


def test_an_expired_transactional_id_is_not_fencing_and_its_units_may_be_retried() -> None:
    expired = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert expired not in FENCING_CODES
    with pytest.raises(KafkaRefusedError, match=r"asked: the transactional id has expired .*: INVALID_PRODUCER_ID_M"):
        raise error_for(ApiKey.END_TXN, "asked", expired)
    offsets = error_for(ApiKey.TXN_OFFSET_COMMIT, "offsets", expired)
    assert type(offsets) is PrepareFailedError
    assert offsets.retriable


READS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.DESCRIBE_PRODUCERS)
OTHERS = (ApiKey.FIND_COORDINATOR, ApiKey.METADATA, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS)


@pytest.mark.parametrize("api_key", [*PRODUCERS[:3], *READS, *OTHERS, ApiKey.DESCRIBE_CONFIGS])
@pytest.mark.parametrize("code", sorted(RETRIABLE_CODES))
def test_errors_retried_by_the_control_plane_are_retried_by_the_engine(api_key: ApiKey, code: int) -> None:
    """Also an EndTxn that is answered by NOT_LEADER_OR_FOLLOWER, as Kafka's TransactionManager does."""
    assert class_of(api_key, code).is_retriable
    with pytest.raises(KafkaUnavailableError, match="asked: "):
        raise_if_retriable(api_key, "asked", code)


@pytest.mark.parametrize("api_key", [*READS, *OTHERS])
@pytest.mark.parametrize("code", sorted(FENCING_CODES))
def test_only_a_request_with_a_producers_identity_can_be_fenced(api_key: ApiKey, code: int) -> None:
    raise_if_retriable(api_key, "asked", code)
    with pytest.raises(KafkaRefusedError, match="asked: "):
        raise_for(api_key, "asked", code)


def test_only_success_raises_nothing() -> None:
    for api_key in ApiKey:
        raise_for(api_key, "asked", ErrorCode.NONE)
        with pytest.raises(DualWriteError, match="asked"):
            raise_for(api_key, "asked", ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize("api_key", READS)
@pytest.mark.parametrize(
    "code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_log_that_its_leader_cannot_show_yet_is_asked_for_again(api_key: ApiKey, code: int) -> None:
    assert class_of(api_key, code).is_retriable
    assert class_of(ApiKey.DESCRIBE_LOG_DIRS, code) is ErrorClass.FATAL, "there it names a directory that is offline"


def test_a_group_that_may_not_be_looked_up_loses_the_transaction_alone() -> None:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert class_of(ApiKey.FIND_COORDINATOR, code) is ErrorClass.ABORTABLE


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.UNSUPPORTED_VERSION, 'DualWrite runs there with two_phase="resume"'),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the TWO_PHASE_COMMIT operation is not granted"),
    ],
)
def test_two_phase_commit_is_refused_in_the_same_words_to_both(code: int, advice: str) -> None:
    error = error_for(ApiKey.INIT_PRODUCER_ID, "asked", code, two_phase=True)
    assert isinstance(error, TwoPhaseCommitUnavailableError)
    assert advice in str(error)
