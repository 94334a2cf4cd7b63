"""The transaction of one producer: its state, its identity, and what each error code of Kafka's means for it.

Only TV2 is spoken (KIP-890 part 2): every transaction that reached a broker ends with an EndTxn that is answered with
the next transaction's identity, so ``producerId:epoch`` names one transaction for ever. Which verb may be called when
is ``verbs.py``'s; what an error costs is KIP-691's and KIP-890's, and where those are silent that of Kafka's
TransactionManager and Sender.
"""

from enum import Enum

from dualwrite.client.verbs import AFTER, AFTER_FAILURE, State, Verb, VerbOrder
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import NO_PRODUCER, OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode, error_name


class Ended(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING = "nothing"
    """Nothing was open."""


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
_TAKEN_OVER: dict[int, Cost] = dict.fromkeys(
    (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH), Cost.TAKEN_OVER
)
_ABORTABLE: dict[int, Cost] = {ErrorCode.TRANSACTION_ABORTABLE: Cost.TRANSACTION}
_OF_COORDINATOR: dict[int, Cost] = {ErrorCode.NONE: Cost.NOTHING, **_BUSY, **_MOVED, **_TAKEN_OVER}

COSTS: dict[ApiKey, dict[int, Cost]] = {
    ApiKey.INIT_PRODUCER_ID: _OF_COORDINATOR,
    ApiKey.END_TXN: {
        **_OF_COORDINATOR,
        **_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Cost.TAKEN_OVER,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        **_OF_COORDINATOR,
        **_ABORTABLE,
        ErrorCode.REQUEST_TIMED_OUT: Cost.MOVE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Cost.RETRY,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Cost.TAKEN_OVER,
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
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Cost.TAKEN_OVER,
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
"""What each answer means. A code that is not here costs the transaction in Produce, and the producer elsewhere."""

_OTHERWISE = {ApiKey.PRODUCE: Cost.TRANSACTION}

_NO_TWO_PHASE = frozenset({ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
_REFUSES_THE_RECORD = frozenset(
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


def cost_of(api_key: ApiKey, code: int) -> Cost:
    """What ``code`` in an answer to ``api_key`` costs."""
    if not code:
        return Cost.NOTHING
    return COSTS[api_key].get(code) or _OTHERWISE.get(api_key, Cost.PRODUCER)


def error_of_record(what: str, code: int) -> DualWriteError:
    """The exception for a record that was given up with ``code``: whether another attempt can succeed is in its class.

    :param what: how many records of what, as the beginning of a sentence.
    """
    if COSTS[ApiKey.PRODUCE].get(code) is Cost.TAKEN_OVER:
        return FencedError(f"{what}: {error_name(code)}: another producer has taken over")
    if code in _REFUSES_THE_RECORD:
        return KafkaRefusedError(what, code, error_name(code))
    return PrepareFailedError(f"{what}: {error_name(code)} ({code})")


def error_of_call(what: str, code: int, *, two_phase: bool = False) -> DualWriteError:
    """The exception for a coordinator's answer ``code`` that is not going to change.

    :param two_phase: True if two-phase commit was asked for, which may be what is refused.
    """
    if two_phase and code in _NO_TWO_PHASE:
        return TwoPhaseCommitUnavailableError(
            f"{what}: {error_name(code)}: two-phase commit is off (transaction.two.phase.commit.enable), not granted"
            " (operation TWO_PHASE_COMMIT), or not known to the broker"
        )
    cost = COSTS[ApiKey.END_TXN].get(code)
    if cost is Cost.TAKEN_OVER:
        return FencedError(f"{what}: {error_name(code)} ({code}): another producer has taken over")
    if cost in (Cost.RETRY, Cost.MOVE):
        return KafkaUnavailableError(f"{what}: {error_name(code)}")
    return KafkaRefusedError(what, code, error_name(code))


class Machine:
    """The state of one transactional producer, moved by its verbs and by what the brokers say."""

    def __init__(self) -> None:
        self.identity = NO_PRODUCER
        """Under which the transaction's records are written, and it is ended."""
        self.kept = NO_PRODUCER
        """That of the predecessor's transaction which init_transactions(keep_prepared_txn=True) kept."""
        self.failure: DualWriteError | None = None
        """What happened to this transaction, or to the producer, outside of any verb."""
        self.has_content = False
        """True once a record or an offset belongs to the transaction."""
        self.may_be_open = False
        """True once something was sent that may have begun the transaction on a broker."""
        self.stray_offsets: set[str] = set()
        """Groups of which a copy of the transaction's offsets may be under way still, on a connection that broke."""
        self._order = VerbOrder()
        self._aim = State.UNINITIALIZED

    @property
    def state(self) -> State:
        """Where the producer is; while a verb is under way, where its failure would lead."""
        return self._order.state

    @property
    def prepared(self) -> PreparedTxnState:
        """What names the transaction; empty if it is empty."""
        return PreparedTxnState(self.identity) if self.has_content else PreparedTxnState()

    def start(self, verb: Verb) -> State:
        """A verb is called; the state that it was called in.

        :raises InvalidTransactionStateError: if it is forbidden now.
        :raises DualWriteError: what made it forbidden, if that was no call's doing.
        """
        before = self._order.state
        self._aim = self.require(verb)
        self._order.state = AFTER_FAILURE[verb]
        return before

    def require(self, verb: Verb) -> State:
        """The state that ``verb`` would lead to; raises as :meth:`start` does."""
        after = AFTER.get((self._order.state, verb))
        if after is not None:
            return after
        if self.failure is not None and (self._order.state is State.FAILED or verb not in (Verb.BEGIN, Verb.INIT)):
            raise self.failure.with_traceback(None)
        return self._order.require(verb)

    def finish(self) -> None:
        """The verb under way has succeeded."""
        self._order.state = self._aim

    def deciding(self) -> None:
        """The transaction's end is asked for: if no answer comes, nobody knows what became of it."""
        self._order.state = State.FAILED

    def undecided(self) -> None:
        """A commit is under way and not decided, as what precedes it is still sent, or the coordinator has refused it:
        whatever fails now, the transaction can be aborted."""
        self._order.state = State.ABORTABLE

    def initialized(self, identity: ProducerIdentity, kept: ProducerIdentity) -> None:
        """InitProducerId was answered."""
        self.identity, self.kept = identity, kept
        self._forget()

    def ended(self, following: ProducerIdentity) -> None:
        """The transaction has ended; ``following`` is the identity of the next one."""
        self.identity = following or self.identity
        self.kept = NO_PRODUCER
        self._forget()

    def begun(self) -> None:
        """A transaction begins."""
        self._forget()

    def doom(self, error: DualWriteError, cost: Cost) -> None:
        """The transaction, or the producer, is lost."""
        if self._order.state is State.CLOSED:
            return
        self.failure = error
        is_over = cost in (Cost.PRODUCER, Cost.TAKEN_OVER)
        self._order.state = State.FAILED if is_over or self._order.state is State.FAILED else State.ABORTABLE

    def close(self) -> None:
        """Nothing is allowed any more."""
        self._order.state = State.CLOSED

    def commits(self, before: State, state: PreparedTxnState) -> bool:
        """True if complete_transaction(``state``), called in ``before``, commits what is open.

        A state with an anchor needs more than the identity: it was written by a client that keeps one epoch for a whole
        session. Nobody but the leaders can tell, so whoever calls must have asked them.
        """
        if before is State.KEPT:
            return bool(self.kept) and PreparedTxnState(state.producer).identifies(OngoingTransaction(self.kept))
        return state == self.prepared

    def _forget(self) -> None:
        self.has_content = self.may_be_open = False
        self.stray_offsets.clear()
        self.failure = None


def require_unanchored(state: PreparedTxnState) -> None:
    """Refuse a state that the engine alone cannot judge.

    :raises InvalidTransactionStateError: if ``state`` has an anchor.
    """
    if state.anchor is not None:
        raise InvalidTransactionStateError(f"complete_transaction({str(state)!r}): its anchor must be looked up first")
