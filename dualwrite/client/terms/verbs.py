"""Which of KIP-939's producer verbs may be called when: one table, from which everything else follows.

The states are those of Kafka's TransactionManager as a caller sees them, but with two separate prepared states
(KIP-939): the transaction of this producer (PREPARED), and one that a dead predecessor left (KEPT). The native and the
librdkafka producer both use this table.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from dualwrite.errors import InvalidTransactionStateError


class ProducerState(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "prepared"
    KEPT = "keeping a predecessor's transaction"
    ABORTABLE = "in a transaction that can only be aborted"
    FAILED = "failed"
    CLOSED = "closed"

    __hash__ = object.__hash__  # Enum's own is slower Python code, and every call looks up the tables below


UNFINISHED = frozenset({ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE, ProducerState.FAILED})
"""The states in which a transaction may be open that is neither prepared nor kept."""


class Verb(Enum):
    """The verbs, by their Python names."""

    INIT = "init_transactions()"
    INIT_KEEPING = "init_transactions(keep_prepared_txn=True)"
    BEGIN = "begin_transaction()"
    PRODUCE = "produce()"
    SEND_OFFSETS = "send_offsets_to_transaction()"
    PREPARE = "prepare_transaction()"
    COMPLETE = "complete_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    CLOSE = "close()"

    __hash__ = object.__hash__


AFTER: dict[tuple[ProducerState, Verb], ProducerState] = {
    (ProducerState.UNINITIALIZED, Verb.INIT): ProducerState.READY,
    (ProducerState.UNINITIALIZED, Verb.INIT_KEEPING): ProducerState.KEPT,
    (ProducerState.READY, Verb.BEGIN): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, Verb.PRODUCE): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, Verb.SEND_OFFSETS): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, Verb.PREPARE): ProducerState.PREPARED,
    (ProducerState.IN_TRANSACTION, Verb.COMMIT): ProducerState.READY,
    (ProducerState.IN_TRANSACTION, Verb.ABORT): ProducerState.READY,
    (ProducerState.ABORTABLE, Verb.ABORT): ProducerState.READY,
    (ProducerState.PREPARED, Verb.COMPLETE): ProducerState.READY,
    (ProducerState.PREPARED, Verb.COMMIT): ProducerState.READY,
    (ProducerState.PREPARED, Verb.ABORT): ProducerState.READY,
    # The identity that ended a kept transaction never produces: init_transactions() follows.
    (ProducerState.KEPT, Verb.COMPLETE): ProducerState.UNINITIALIZED,
    (ProducerState.KEPT, Verb.COMMIT): ProducerState.UNINITIALIZED,
    (ProducerState.KEPT, Verb.ABORT): ProducerState.UNINITIALIZED,
    **{(state, Verb.CLOSE): ProducerState.CLOSED for state in ProducerState},
}
"""The state after a call that succeeded. A pair that is not listed is forbidden."""

AFTER_FAILURE: dict[Verb, ProducerState] = {
    Verb.PRODUCE: ProducerState.ABORTABLE,
    Verb.SEND_OFFSETS: ProducerState.ABORTABLE,
    Verb.PREPARE: ProducerState.ABORTABLE,
    **dict.fromkeys(
        (Verb.INIT, Verb.INIT_KEEPING, Verb.BEGIN, Verb.COMPLETE, Verb.COMMIT, Verb.ABORT), ProducerState.FAILED
    ),
    Verb.CLOSE: ProducerState.CLOSED,
}
"""The state after a call that raised. FAILED: the transaction's outcome is unknown, so the producer is dropped."""


def init_verb(keep_prepared_txn: object) -> Verb:
    """The verb of init_transactions(``keep_prepared_txn``).

    :raises TypeError: if it is not a bool: confluent-kafka's first argument is a timeout, and a number taken for True
        would keep a predecessor's transaction.
    """
    if not isinstance(keep_prepared_txn, bool):
        shown = f"{keep_prepared_txn!r} of type {type(keep_prepared_txn).__name__}"
        raise TypeError(f"init_transactions(): keep_prepared_txn {shown}: give True or False; there is no timeout")
    return Verb.INIT_KEEPING if keep_prepared_txn else Verb.INIT


class VerbOrder:
    """The state of one producer. Its calls change it."""

    def __init__(self) -> None:
        self.state = ProducerState.UNINITIALIZED

    def require(self, verb: Verb, called: str = "") -> ProducerState:
        """The state to which ``verb`` would lead.

        :param called: the name of the call, if it is not ``verb`` itself but needs the same state.
        :raises InvalidTransactionStateError: if it is forbidden now; the message names what is allowed.
        """
        after = AFTER.get((self.state, verb))
        if after is None:
            allowed = ", ".join(other.value for state, other in AFTER if state is self.state)
            raise InvalidTransactionStateError(
                f"{called or verb.value}: the producer is {self.state.value}; allowed now: {allowed}"
            )
        return after

    @contextmanager
    def calling(self, verb: Verb) -> Iterator[ProducerState]:
        """Change the state as the tables say, during a ``with`` block; yields the state before it.

        :raises InvalidTransactionStateError: as :meth:`require`; the state stays as it is.
        """
        before, after = self.state, self.require(verb)
        self.state = AFTER_FAILURE[verb]
        yield before
        self.state = after
