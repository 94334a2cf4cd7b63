"""librdkafka's errors as this library's: what the caller should do, read off the code and the three flags."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
    TwoPhaseCommitUnavailableError,
)

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_NO_TWO_PHASE = frozenset({KafkaError.INVALID_TRANSACTION_TIMEOUT, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
_UNAVAILABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._QUEUE_FULL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
)


def is_fenced(error: KafkaError) -> bool:
    """True if ``error`` says that another producer has taken over."""
    return error.code() in _FENCED


def translated(what: str, error: KafkaError) -> DualWriteError:
    """The exception to raise for ``error``, which happened while ``what`` was asked."""
    text = f"{what}: {error.str()} ({error.name()})"
    if is_fenced(error):
        return FencedError(f"{text}: another producer has taken over")
    if error.code() in _NO_TWO_PHASE:
        return TwoPhaseCommitUnavailableError(text)
    if error.code() in _UNAVAILABLE or error.retriable():
        return KafkaUnavailableError(text)
    return KafkaRefusedError(f"{what}: {error.str()}", error.code(), error.name())


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Raise librdkafka's KafkaException as this library's exception.

    :raises DualWriteError: see :func:`translated`.
    """
    try:
        yield
    except KafkaException as error:
        raise translated(what, error.args[0]) from error
