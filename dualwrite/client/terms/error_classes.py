"""The meaning of each of Kafka's error codes: its class for the request that it answers, and its exception.

KIP-691 and KIP-890 define the classes; where both are silent, Kafka's TransactionManager and Sender do. The engine and
the control plane use the table as it is. librdkafka's producer gets some of the same codes.
"""

from enum import Enum

from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode, error_name


class ErrorClass(Enum):
    """What a client must do about an error code."""

    SUCCESS = "nothing"
    RETRIABLE = "send the request again, a little later"
    REFRESH_RETRIABLE = "find the current leader or coordinator, and send the request there"
    ABORTABLE = "abort the transaction"
    FATAL = "discard the producer; without a producer: a retry does not help"
    FENCED = "drop the producer: another one has its transactional id"

    @property
    def is_retriable(self) -> bool:
        """True if the request may be sent again."""
        return self in (ErrorClass.RETRIABLE, ErrorClass.REFRESH_RETRIABLE)


FENCING_CODES = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Another producer has the transactional id. INVALID_PRODUCER_ID_MAPPING is not among them: a producer that was idle
for transactional.id.expiration.ms gets it, and a new producer cures it (Kafka: InvalidPidMappingException,
KIP-1050)."""

TAKEN_OVER = (
    "another producer has taken over (of another process, or of another database under the same application name), or "
    "a request of this one's came late"
)
"""These codes only say that the transactional id has a newer epoch. A delayed copy of this producer's own
InitProducerId, which arrives after its connection was lost, causes that as well."""

_COMMON: dict[int, ErrorClass] = {
    ErrorCode.NONE: ErrorClass.SUCCESS,
    **dict.fromkeys(
        (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.REQUEST_TIMED_OUT,
        ),
        ErrorClass.RETRIABLE,
    ),
    **dict.fromkeys(
        (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        ),
        ErrorClass.REFRESH_RETRIABLE,
    ),
}
"""Codes that mean the same in the answers to all requests."""

RETRIABLE_CODES = frozenset(code for code, error_class in _COMMON.items() if error_class.is_retriable)

_FENCED: dict[int, ErrorClass] = dict.fromkeys(FENCING_CODES, ErrorClass.FENCED)
"""Only for requests that carry a producer's identity: in any other answer, these codes fence no producer."""
_ABORTABLE: dict[int, ErrorClass] = {ErrorCode.TRANSACTION_ABORTABLE: ErrorClass.ABORTABLE}
_OF_LOGS: dict[int, ErrorClass] = {
    **_COMMON,
    ErrorCode.OFFSET_NOT_AVAILABLE: ErrorClass.RETRIABLE,  # a new leader is not sure of its high watermark (KIP-207)
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorClass.REFRESH_RETRIABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorClass.RETRIABLE,  # as in the Java consumer: it says nothing of the log
}

ERROR_CLASSES: dict[ApiKey, dict[int, ErrorClass]] = {
    ApiKey.FIND_COORDINATOR: {
        **_COMMON,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: ErrorClass.ABORTABLE,  # the rest can still be aborted
    },
    ApiKey.INIT_PRODUCER_ID: {**_COMMON, **_FENCED},
    ApiKey.END_TXN: {**_COMMON, **_FENCED, **_ABORTABLE},
    ApiKey.ADD_OFFSETS_TO_TXN: {**_COMMON, **_FENCED, **_ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: {
        **_COMMON,
        **_FENCED,
        **_ABORTABLE,
        ErrorCode.REQUEST_TIMED_OUT: ErrorClass.REFRESH_RETRIABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorClass.RETRIABLE,
        **dict.fromkeys(
            (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_AUTHORIZATION_FAILED,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
                ErrorCode.INVALID_GROUP_ID,
                ErrorCode.INVALID_TXN_STATE,
            ),
            ErrorClass.ABORTABLE,
        ),
    },
    ApiKey.PRODUCE: {
        **_COMMON,
        **_FENCED,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ErrorClass.SUCCESS,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorClass.FATAL,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorClass.FATAL,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorClass.FATAL,
        ErrorCode.UNSUPPORTED_VERSION: ErrorClass.FATAL,
        **dict.fromkeys(
            (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.NOT_COORDINATOR,  # the leader asks the coordinator
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ),
            ErrorClass.RETRIABLE,
        ),
        **dict.fromkeys(
            (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.NETWORK_EXCEPTION,
                ErrorCode.KAFKA_STORAGE_ERROR,
            ),
            ErrorClass.REFRESH_RETRIABLE,
        ),
    },
    ApiKey.FETCH: _OF_LOGS,
    ApiKey.LIST_OFFSETS: _OF_LOGS,
    ApiKey.DESCRIBE_PRODUCERS: _OF_LOGS,
}
"""The class of each code by request; a request that is not listed has the common ones. A code that is not listed is
ABORTABLE in Produce, and FATAL elsewhere."""

_OTHERWISE = {ApiKey.PRODUCE: ErrorClass.ABORTABLE}

_EXPIRED_AT_THE_GROUP = ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_ID_MAPPING
"""The transaction is lost with the transactional id, and another attempt gets a new producer."""

_ADVICE: dict[int, str] = {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ": the transactional id has expired (transactional.id.expiration.ms); a new"
    " producer is needed",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: ": the cluster allows less (transaction.max.timeout.ms)",
}
_NO_TWO_PHASE: dict[int, str] = {
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not offer KIP-939's KeepPreparedTxn (the bundled broker does;"
    ' Apache Kafka 4.4 does not, and DualWrite runs there with two_phase="resume")',
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "two-phase commit is off"
    " (transaction.two.phase.commit.enable), or the TWO_PHASE_COMMIT operation is not granted",
}
"""The codes that refuse two-phase commit, if it was requested."""

REFUSES_THE_RECORD = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_RECORD,
    }
)
"""Codes with which a record is given up for good: the same record would be refused again."""


def class_of(api_key: ApiKey, code: int) -> ErrorClass:
    """The class of ``code`` in an answer to ``api_key``."""
    if not code:
        return ErrorClass.SUCCESS
    return ERROR_CLASSES.get(api_key, _COMMON).get(code) or _OTHERWISE.get(api_key, ErrorClass.FATAL)


def error_for(
    api_key: ApiKey, operation: str, code: int, *, two_phase: bool = False, name: str = "", is_retriable: bool = False
) -> DualWriteError:
    """The exception for ``code``, with which ``operation`` is given up: its class tells whether another attempt can
    succeed.

    :param api_key: the request that was answered; Produce for a record, even if the client itself refused it.
    :param operation: the beginning of the message: the request, or how many records, and where.
    :param two_phase: True if two-phase commit was requested, which may be what is refused.
    :param name: the name of ``code``, if it is not one of Kafka's.
    :param is_retriable: True if the client that got ``code`` knows that the request may be sent again.
    """
    name, error_class = name or error_name(code), class_of(api_key, code)
    if two_phase and code in _NO_TWO_PHASE:
        return TwoPhaseCommitUnavailableError(f"{operation}: {name}: {_NO_TWO_PHASE[code]}")
    if error_class is ErrorClass.FENCED:
        return FencedError(f"{operation}: {name} ({code}): {TAKEN_OVER}")
    is_record = api_key is ApiKey.PRODUCE
    if (api_key, code) == _EXPIRED_AT_THE_GROUP or (is_record and code not in REFUSES_THE_RECORD):
        return PrepareFailedError(f"{operation}: {name} ({code}){advice(code)}")
    if (is_retriable or error_class.is_retriable) and not is_record:
        return KafkaUnavailableError(f"{operation}: {name}")
    return KafkaRefusedError(f"{operation}{advice(code)}", code, name)


def raise_for(api_key: ApiKey, operation: str, code: int, *, two_phase: bool = False) -> None:
    """Raise the exception of :func:`error_for`, unless ``code`` is success."""
    if code:
        raise error_for(api_key, operation, code, two_phase=two_phase)


def raise_if_retriable(api_key: ApiKey, operation: str, code: int) -> None:
    """Raise KafkaUnavailableError if the request may be sent again."""
    if class_of(api_key, code).is_retriable:
        raise error_for(api_key, operation, code)


def advice(code: int) -> str:
    """Advice for ``code`` beyond its name."""
    return _ADVICE.get(code, "")
