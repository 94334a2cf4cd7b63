"""The transaction of one producer: its state, and its identity.

Only TV2 is spoken (KIP-890 part 2): every transaction that reached a broker ends with an EndTxn that is answered with
the next transaction's identity, so ``producerId:epoch`` names one transaction for ever. Which verb may be called when
is ``verbs.py``'s, what an error costs ``error_classes.py``'s.
"""

from enum import Enum

from dualwrite.client.terms.error_classes import Cost
from dualwrite.client.terms.verbs import AFTER, AFTER_FAILURE, ProducerState, Verb, VerbOrder
from dualwrite.errors import DualWriteError, InvalidTransactionStateError
from dualwrite.ids import NO_PRODUCER, Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity, TopicPartition


class TransactionResult(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING = "nothing"
    """Nothing was open."""


class TransactionManager:
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
        self.first_record: Anchor | None = None
        """Where the transaction's first acknowledged batch begins."""
        self.stray_offsets: set[str] = set()
        """Groups of which a copy of the transaction's offsets may be under way still, on a connection that broke."""
        self._order = VerbOrder()
        self._aim = ProducerState.UNINITIALIZED

    @property
    def state(self) -> ProducerState:
        """Where the producer is; while a verb is under way, where its failure would lead."""
        return self._order.state

    @property
    def prepared(self) -> PreparedTxnState:
        """What names the transaction; empty if it is empty."""
        if not self.has_content:
            return PreparedTxnState()
        return PreparedTxnState(self.identity, first_record=self.first_record)

    def acknowledged(self, topic: str, partition: int, offset: int) -> None:
        """A batch of the transaction is in the log, from ``offset`` on; negative if the broker did not tell."""
        if self.first_record is None and offset >= 0:
            self.first_record = Anchor.of(TopicPartition(topic, partition), offset)

    def start(self, verb: Verb) -> ProducerState:
        """A verb is called; the state that it was called in.

        :raises InvalidTransactionStateError: if it is forbidden now.
        :raises DualWriteError: what made it forbidden, if that was no call's doing.
        """
        before = self._order.state
        self._aim = self.require(verb)
        self._order.state = AFTER_FAILURE[verb]
        return before

    def require(self, verb: Verb, called: str = "") -> ProducerState:
        """The state that ``verb`` would lead to; raises as :meth:`start` does.

        :param called: what was called, if it is not ``verb`` itself but needs the same state.
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
        """The verb under way has succeeded."""
        self._order.state = self._aim

    def deciding(self) -> None:
        """The transaction's end is asked for: if no answer comes, nobody knows what became of it."""
        self._order.state = ProducerState.FAILED

    def undecided(self) -> None:
        """A commit is under way and not decided, as what precedes it is still sent, or the coordinator has refused it:
        whatever fails now, the transaction can be aborted."""
        self._order.state = ProducerState.ABORTABLE

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
        if self._order.state is ProducerState.CLOSED:
            return
        self.failure = error
        is_over = cost in (Cost.PRODUCER, Cost.TAKEN_OVER)
        self._order.state = (
            ProducerState.FAILED if is_over or self._order.state is ProducerState.FAILED else ProducerState.ABORTABLE
        )

    def close(self) -> None:
        """Nothing is allowed any more."""
        self.failure = None
        self._order.state = ProducerState.CLOSED

    def commits(self, before: ProducerState, state: PreparedTxnState) -> bool:
        """True if complete_transaction(``state``), called in ``before``, commits what is open.

        A state with an anchor needs more than the identity: it was written by a client that keeps one epoch for a whole
        session. Nobody but the leaders can tell, so whoever calls must have asked them.
        """
        if before is ProducerState.KEPT:
            return bool(self.kept) and PreparedTxnState(state.producer).identifies(OngoingTransaction(self.kept))
        return state == self.prepared

    def _forget(self) -> None:
        self.has_content = self.may_be_open = False
        self.first_record = None
        self.stray_offsets.clear()
        self.failure = None


def require_unanchored(state: PreparedTxnState) -> None:
    """Refuse a state that the engine alone cannot judge.

    :raises InvalidTransactionStateError: if ``state`` has an anchor.
    """
    if state.anchor is not None:
        raise InvalidTransactionStateError(f"complete_transaction({str(state)!r}): its anchor must be looked up first")
