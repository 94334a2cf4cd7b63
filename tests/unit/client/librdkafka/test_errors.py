"""librdkafka's errors, each with the advice that fits it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.librdkafka.errors import is_fenced, is_permanent, translating
from dualwrite.client.terms.error_classes import REFUSES_THE_RECORD, error_for
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
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
    (KafkaError(KafkaError.NOT_COORDINATOR, retriable=True), KafkaUnavailableError),
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


def test_a_refusal_keeps_kafkas_code_and_name() -> None:
    with pytest.raises(KafkaRefusedError) as caught:
        translate(KafkaError(KafkaError.INVALID_TXN_STATE))
    assert (caught.value.code, caught.value.name) == (48, "INVALID_TXN_STATE")


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
