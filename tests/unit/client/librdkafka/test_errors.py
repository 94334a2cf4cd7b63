"""librdkafka's errors, each with the advice that fits it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.librdkafka.errors import as_kafka_error, is_fenced, is_permanent, is_purged, translating
from dualwrite.client.terms.error_classes import REFUSES_THE_RECORD, error_for
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.wire.apis import ApiKey

TABLE = [
    (KafkaError(KafkaError._FENCED, fatal=True), FencedError),
    (KafkaError(KafkaError.PRODUCER_FENCED, fatal=True), FencedError),
    (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), FencedError),
    (KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING), KafkaRefusedError),
    (KafkaError(KafkaError._TIMED_OUT, retriable=True), KafkaUnavailableError),
    (KafkaError(KafkaError._TRANSPORT), KafkaUnavailableError),
    (KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaUnavailableError),
    (KafkaError(KafkaError._MSG_TIMED_OUT), KafkaUnavailableError),
    (KafkaError(KafkaError._RESOLVE), KafkaUnavailableError),
    (KafkaError(KafkaError._QUEUE_FULL), KafkaUnavailableError),
    (KafkaError(KafkaError.NOT_COORDINATOR, retriable=True), KafkaUnavailableError),
    (KafkaError(KafkaError._STATE, retriable=True), KafkaUnavailableError),
    (KafkaError(KafkaError._STATE), KafkaRefusedError),
    (KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True), TwoPhaseCommitUnavailableError),
    (KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True), TwoPhaseCommitUnavailableError),
    (KafkaError(KafkaError.INVALID_TXN_STATE, txn_requires_abort=True), KafkaRefusedError),
    (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), KafkaRefusedError),
    (KafkaError(KafkaError._FATAL, fatal=True), KafkaRefusedError),
]


def translate(error: KafkaError) -> None:
    with translating("commit_transaction() of app-0"):
        raise KafkaException(error)


@pytest.mark.parametrize(("error", "expected"), TABLE)
def test_an_error_becomes_the_exception_that_says_what_to_do(error: KafkaError, expected: type[DualWriteError]) -> None:
    with pytest.raises(DualWriteError, match=r"^commit_transaction\(\) of app-0: ") as caught:
        translate(error)
    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, KafkaException)
    assert is_fenced(error) == (expected is FencedError)


@pytest.mark.parametrize(
    ("code", "two_phase", "expected"),
    [
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, False, KafkaRefusedError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False, KafkaRefusedError),
        (KafkaError.UNSUPPORTED_VERSION, True, KafkaRefusedError),
    ],
    ids=["a timeout that is too long", "no right to the id", "a version that librdkafka needs"],
)
def test_only_a_refusal_of_two_phase_commit_reads_as_one(
    code: int, two_phase: bool, expected: type[DualWriteError]
) -> None:
    with pytest.raises(DualWriteError) as caught, translating("init", two_phase=two_phase):
        raise KafkaException(KafkaError(code, fatal=True))
    assert type(caught.value) is expected
    assert getattr(caught.value, "code", None) == code


def test_records_out_of_order_ask_for_another_attempt() -> None:
    with pytest.raises(PrepareFailedError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        translate(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER))


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_a_record_that_was_dropped_for_another_reason_says_nothing_of_its_own(code: int) -> None:
    assert is_purged(KafkaError(code))
    assert not is_purged(KafkaError(KafkaError._MSG_TIMED_OUT))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaRefusedError("1 record", KafkaError.MSG_SIZE_TOO_LARGE, "MESSAGE_TOO_LARGE"), 10),
        (FencedError("taken over"), KafkaError._FENCED),
        (KafkaUnavailableError("no answer"), KafkaError._MSG_TIMED_OUT),
        (InvalidTransactionStateError("closed"), KafkaError._PURGE_QUEUE),
    ],
)
def test_a_delivery_callback_gets_confluent_kafkas_error_of_the_same_meaning(error: DualWriteError, code: int) -> None:
    given = as_kafka_error(error)
    assert (given.code(), given.str()) == (code, str(error))


def test_a_refusal_keeps_kafkas_code_and_name() -> None:
    with pytest.raises(KafkaRefusedError) as caught:
        translate(KafkaError(KafkaError.INVALID_TXN_STATE))
    assert (caught.value.code, caught.value.name) == (48, "INVALID_TXN_STATE")


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC])
def test_a_record_for_what_librdkafka_does_not_know_is_refused_for_good(code: int) -> None:
    assert is_permanent(KafkaError(code))


@pytest.mark.parametrize("code", sorted(REFUSES_THE_RECORD))
def test_a_record_that_is_refused_for_good_with_one_producer_is_so_with_the_other(code: int) -> None:
    assert is_permanent(KafkaError(code))
    assert isinstance(error_for(ApiKey.PRODUCE, "1 record", code), KafkaRefusedError)


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._PURGE_QUEUE])
def test_a_record_that_may_be_taken_the_next_time_is_not_refused_for_good(code: int) -> None:
    assert not is_permanent(KafkaError(code))


def test_errors_of_other_libraries_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), translating("x"):
        raise ZeroDivisionError
