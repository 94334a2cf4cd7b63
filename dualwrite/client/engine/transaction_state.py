"""The transaction of one producer: its state, and its identity.

The producer speaks only TV2 (KIP-890 part 2). The answer to the EndTxn of every transaction that reached a broker
carries the next transaction's identity, so ``producerId:epoch`` names one transaction for ever. ``verbs.py`` says which
verb may be called when, and ``error_classes.py`` what a client must do about an error.
"""

from enum import Enum

from dualwrite.client.terms.error_classes import ErrorClass
from dualwrite.client.terms.verbs import AFTER, AFTER_FAILURE, ProducerState, Verb, VerbOrder
from dualwrite.errors import DualWriteError, InvalidTransactionStateError
from dualwrite.ids import NO_PRODUCER, Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity, TopicPartition


class TransactionResult(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING = "nothing"
    """No transaction was open."""


class TransactionManager:
    """The state of one transactional producer. Its verbs and the brokers' answers change it."""

    def __init__(self) -> None:
        self.identity = NO_PRODUCER
        """The identity under which the producer writes the transaction's records and ends it."""
        self.ongoing = NO_PRODUCER
        """The identity of the predecessor's transaction, which init_transactions(keep_prepared_txn=True) kept."""
        self.failure: DualWriteError | None = None
        """The error that ended this transaction, or the producer, outside of any verb."""
        self.has_content = False
        """True once a record or an offset belongs to the transaction."""
        self.may_be_open = False
        """True once a request was sent that may have begun the transaction on a broker."""
        self.first_record: Anchor | None = None
        """The first record of the transaction's first acknowledged batch."""
        self.stray_offsets: set[str] = set()
        """Groups whose offset commit may still be delayed on a broken connection."""
        self._order = VerbOrder()
        self._aim = ProducerState.UNINITIALIZED

    @property
    def state(self) -> ProducerState:
        """The producer's current state; while a verb is in progress, the state to which its failure would lead."""
        return self._order.state

    @property
    def prepared(self) -> PreparedTxnState:
        """The state that names the transaction; empty if the transaction is empty."""
        if not self.has_content:
            return PreparedTxnState()
        return PreparedTxnState(self.identity, first_record=self.first_record)

    def acknowledged(self, topic: str, partition: int, offset: int) -> None:
        """A batch of the transaction is in the log, from ``offset`` on; negative if the broker did not tell."""
        if self.first_record is None and offset >= 0:
            self.first_record = Anchor.of(TopicPartition(topic, partition), offset)

    def start(self, verb: Verb) -> ProducerState:
        """Start ``verb``; return the state in which it was called.

        :raises InvalidTransactionStateError: if it is forbidden now.
        :raises DualWriteError: the error that made it forbidden, if no call's misuse did.
        """
        before = self._order.state
        self._aim = self.require(verb)
        self._order.state = AFTER_FAILURE[verb]
        return before

    def require(self, verb: Verb, called: str = "") -> ProducerState:
        """The state that ``verb`` would lead to; raises as :meth:`start` does.

        :param called: the name of the call, if it is not ``verb`` itself but needs the same state.
        """
        after = AFTER.get((self._order.state, verb))
        if after is not None:
            return after
        if (
            self.failure is not None
            and self._order.state is ProducerState.FAILED
            and verb in (Verb.INIT, Verb.INIT_KEEPING)
        ):
            raise InvalidTransactionStateError(
                f"{verb.value}: the producer has failed: close it and make a new one ({self.failure})"
            ) from self.failure
        if self.failure is not None and (
            self._order.state is ProducerState.FAILED or verb not in (Verb.BEGIN, Verb.INIT)
        ):
            raise self.failure.with_traceback(None)
        return self._order.require(verb, called)

    def finish(self) -> None:
        """The verb in progress has succeeded."""
        self._order.state = self._aim

    def deciding(self) -> None:
        """EndTxn is about to be sent: without an answer, the transaction's outcome is unknown."""
        self._order.state = ProducerState.FAILED

    def undecided(self) -> None:
        """A commit is in progress and not decided: its records are still being sent, or the coordinator has refused it.
        After any failure now, the transaction can be aborted."""
        self._order.state = ProducerState.ABORTABLE

    def initialized(self, identity: ProducerIdentity, ongoing: ProducerIdentity) -> None:
        """Take the answer to InitProducerId."""
        self.identity, self.ongoing = identity, ongoing

    def ended(self, following: ProducerIdentity) -> None:
        """The transaction has ended; ``following`` is the identity of the next one."""
        self.identity = following or self.identity
        self.ongoing = NO_PRODUCER
        self._forget()

    def begun(self) -> None:
        """A transaction has begun."""
        self._forget()

    def fail(self, error: DualWriteError, error_class: ErrorClass) -> None:
        """Mark the transaction, or the producer, as lost."""
        if self._order.state is ProducerState.CLOSED:
            return
        self.failure = error
        is_over = error_class in (ErrorClass.FATAL, ErrorClass.FENCED)
        self._order.state = (
            ProducerState.FAILED if is_over or self._order.state is ProducerState.FAILED else ProducerState.ABORTABLE
        )

    def close(self) -> None:
        """Forbid every further verb."""
        self.failure = None
        self._order.state = ProducerState.CLOSED

    def commits(self, before: ProducerState, state: PreparedTxnState) -> bool:
        """True if complete_transaction(``state``), called in ``before``, commits the open transaction.

        For a state with an anchor, the identity is not enough: a client that keeps one epoch for a whole session wrote
        it. Only the partition leaders can tell, so the caller must have asked them.
        """
        if before is ProducerState.KEPT:
            return PreparedTxnState(state.producer).identifies(OngoingTransaction(self.ongoing))
        return state == self.prepared

    def _forget(self) -> None:
        self.has_content = self.may_be_open = False
        self.first_record = None
        self.stray_offsets.clear()
        self.failure = None


def require_unanchored(state: PreparedTxnState) -> None:
    """Refuse a state with an anchor, which the engine alone cannot judge.

    :raises InvalidTransactionStateError: if ``state`` has an anchor.
    """
    if state.anchor is not None:
        raise InvalidTransactionStateError(f"complete_transaction({str(state)!r}): its anchor must be looked up first")
