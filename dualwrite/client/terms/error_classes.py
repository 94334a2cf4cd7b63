"""The meaning of each of Kafka's error codes: its cost for a transactional producer, and its exception.

KIP-691 and KIP-890 define the classes; where both are silent, Kafka's TransactionManager and Sender do. The control
plane and librdkafka's producer get the same codes, so their common meaning is here too.
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

FENCING_CODES = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Another producer has the transactional id. INVALID_PRODUCER_ID_MAPPING is not among them: a producer that was idle
for transactional.id.expiration.ms gets it, and a new producer cures it (Kafka: InvalidPidMappingException,
KIP-1050)."""

FENCED = "another producer has taken over, or a request of this one's came late"
"""These codes only say that the transactional id has a newer epoch. A delayed copy of this producer's own
InitProducerId, which arrives after its connection was lost, causes that as well."""

NO_TWO_PHASE_CODES = frozenset({ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
"""If two-phase commit was requested, these codes refuse it."""


class Cost(Enum):
    """What an error code costs."""

    NOTHING = "none: it is success"
    RETRY = "a retry there, a little later"
    MOVE = "a retry, once it is known who is in charge now"
    TRANSACTION = "the transaction: it can only be aborted"
    PRODUCER = "the producer: it must be dropped"
    TAKEN_OVER = "the producer: somebody else has its transactional id"


_BUSY: dict[int, Cost] = dict.fromkeys(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    ),
    Cost.RETRY,
)
_MOVED: dict[int, Cost] = dict.fromkeys((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE), Cost.MOVE)
_TAKEN_OVER: dict[int, Cost] = dict.fromkeys(FENCING_CODES, Cost.TAKEN_OVER)
_ABORTABLE: dict[int, Cost] = {ErrorCode.TRANSACTION_ABORTABLE: Cost.TRANSACTION}
_OF_COORDINATOR: dict[int, Cost] = {ErrorCode.NONE: Cost.NOTHING, **_BUSY, **_MOVED, **_TAKEN_OVER}

COSTS: dict[ApiKey, dict[int, Cost]] = {
    ApiKey.INIT_PRODUCER_ID: _OF_COORDINATOR,
    ApiKey.END_TXN: {**_OF_COORDINATOR, **_ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: {
        **_OF_COORDINATOR,
        **_ABORTABLE,
        ErrorCode.REQUEST_TIMED_OUT: Cost.MOVE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Cost.RETRY,
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
            Cost.TRANSACTION,
        ),
    },
    ApiKey.PRODUCE: {
        ErrorCode.NONE: Cost.NOTHING,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Cost.NOTHING,
        **_BUSY,
        **_TAKEN_OVER,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Cost.PRODUCER,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Cost.PRODUCER,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Cost.PRODUCER,
        ErrorCode.UNSUPPORTED_VERSION: Cost.PRODUCER,
        **dict.fromkeys(
            (
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ),
            Cost.RETRY,
        ),
        **dict.fromkeys(
            (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.LEADER_NOT_AVAILABLE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.NETWORK_EXCEPTION,
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.FENCED_LEADER_EPOCH,
            ),
            Cost.MOVE,
        ),
    },
}
"""The cost of each answer. A code that is not listed costs the transaction in Produce, and the producer elsewhere."""

_OTHERWISE = {ApiKey.PRODUCE: Cost.TRANSACTION}

_ADVICE: dict[int, str] = {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ": the transactional id has expired (transactional.id.expiration.ms); a new"
    " producer is needed",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: ": the cluster allows less (transaction.max.timeout.ms)",
}
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


def cost_of(api_key: ApiKey, code: int) -> Cost:
    """The cost of ``code`` in an answer to ``api_key``."""
    if not code:
        return Cost.NOTHING
    return COSTS[api_key].get(code) or _OTHERWISE.get(api_key, Cost.PRODUCER)


def error_of_record(what: str, code: int) -> DualWriteError:
    """The exception for a record that was given up with ``code``: its class tells whether another attempt can succeed.

    :param what: the beginning of the message: how many records, and where.
    """
    if code in FENCING_CODES:
        return FencedError(f"{what}: {error_name(code)}: {FENCED}")
    if code in REFUSES_THE_RECORD:
        return KafkaRefusedError(what, code, error_name(code))
    return PrepareFailedError(f"{what}: {error_name(code)} ({code}){advice(code)}")


def error_of_call(what: str, code: int, *, two_phase: bool = False, is_content: bool = False) -> DualWriteError:
    """The exception for a coordinator's final answer ``code``.

    :param two_phase: True if two-phase commit was requested, which may be what is refused.
    :param is_content: True if the request was about the transaction's content, not about its beginning or end.
    """
    if two_phase and code in NO_TWO_PHASE_CODES:
        return TwoPhaseCommitUnavailableError(
            f"{what}: {error_name(code)}: two-phase commit is off (transaction.two.phase.commit.enable), not granted"
            " (operation TWO_PHASE_COMMIT), or not known to the broker"
        )
    if code in FENCING_CODES:
        return FencedError(f"{what}: {error_name(code)} ({code}): {FENCED}")
    if COSTS[ApiKey.END_TXN].get(code) in (Cost.RETRY, Cost.MOVE):
        return KafkaUnavailableError(f"{what}: {error_name(code)}")
    if is_content and code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
        return PrepareFailedError(f"{what}: {error_name(code)} ({code}){advice(code)}")
    return KafkaRefusedError(f"{what}{advice(code)}", code, error_name(code))


def advice(code: int) -> str:
    """Advice for ``code`` beyond its name."""
    return _ADVICE.get(code, "")
