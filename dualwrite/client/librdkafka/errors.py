"""Translates librdkafka's errors to this library's, by their code and librdkafka's flag ``retriable()``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.terms.error_classes import REFUSES_THE_RECORD, ErrorClass, class_of, error_for
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
)
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode

_KAFKA_CODES: dict[int, int] = {
    KafkaError._FENCED: ErrorCode.PRODUCER_FENCED,
    **dict.fromkeys(
        (
            KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
            KafkaError._QUEUE_FULL,
        ),
        ErrorCode.REQUEST_TIMED_OUT,
    ),
}
"""librdkafka's own codes, as those of Kafka that mean the same."""
_PERMANENT = REFUSES_THE_RECORD | {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}
_FAILED_CONNECTION = "FAIL"
_WAS_UP = "in state UP"
_TIMED_OUT_REQUEST = "REQTMOUT"


class ConnectionWatch:
    """A ``logger`` for confluent-kafka that notices when librdkafka loses a connection that was up.

    librdkafka then silently repeats its unanswered requests. The first copy may still arrive, and as one epoch serves a
    whole session, it could end a later transaction (Jepsen, 2024). So the producer must be replaced, even if its calls
    succeed. librdkafka reports such a loss only in its log. If it closes the connection itself, because a request has
    timed out, it logs the timeout alone (2.12 and newer).

    :param logger: receives every line.
    """

    def __init__(self, logger: Any) -> None:
        self.has_lost_connection = False
        self._logger = logger

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """Take a line of librdkafka's log: its facility, the name of the handle, and the message."""
        is_failure = _FAILED_CONNECTION in arguments[:1] and _WAS_UP in str(arguments[-1])
        if is_failure or _TIMED_OUT_REQUEST in arguments[:1]:
            self.has_lost_connection = True
        self._logger.log(level, text, *arguments)


def is_fenced(error: KafkaError) -> bool:
    """True if ``error`` says that another producer has taken over."""
    return class_of(ApiKey.END_TXN, _kafka_code(error)) is ErrorClass.FENCED


def is_purged(error: KafkaError) -> bool:
    """True if librdkafka dropped the record because of another failure."""
    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def is_permanent(error: KafkaError) -> bool:
    """True if this record itself was refused: a retry would be refused as well."""
    return error.code() in _PERMANENT


def translated(operation: str, error: KafkaError, *, two_phase: bool = True) -> DualWriteError:
    """The exception to raise for ``error``.

    :param operation: a description of the operation that failed, for the message.
    :param two_phase: True if the producer asked for two-phase commit, which the broker may have refused.
    """
    code = _kafka_code(error)
    if two_phase and code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        # librdkafka asks for two-phase commit by a timeout, which a broker that does not offer it refuses.
        code = ErrorCode.UNSUPPORTED_VERSION
    return error_for(
        _request_of(code),
        f"{operation}: {error.str()}",
        code,
        two_phase=two_phase and error.code() != ErrorCode.UNSUPPORTED_VERSION,
        name=error.name(),
        is_retriable=error.retriable(),
    )


def _kafka_code(error: KafkaError) -> int:
    return _KAFKA_CODES.get(error.code(), error.code())


def _request_of(code: int) -> ApiKey:
    """The request that was answered, which librdkafka does not tell: one that carries the producer's identity."""
    return ApiKey.PRODUCE if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else ApiKey.END_TXN


def as_kafka_error(error: DualWriteError) -> KafkaError:
    """``error`` in the form that confluent-kafka's delivery callbacks expect, as the reason why a record was
    dropped."""
    if isinstance(error, KafkaRefusedError):
        code = error.code
    elif isinstance(error, FencedError):
        code = KafkaError._FENCED
    else:
        code = KafkaError._MSG_TIMED_OUT if isinstance(error, KafkaUnavailableError) else KafkaError._PURGE_QUEUE
    return KafkaError(code, str(error))


@contextmanager
def translating(operation: str, *, two_phase: bool = True) -> Iterator[None]:
    """Raise librdkafka's KafkaException as this library's exception.

    :raises DualWriteError: see :func:`translated`.
    """
    try:
        yield
    except KafkaException as error:
        raise translated(operation, error.args[0], two_phase=two_phase) from error
