"""Ends the open transaction of a dead predecessor. InitProducerId with keepPreparedTxn keeps the transaction; this
module compares it with the stored state, and commits or aborts it.

This is the same for every participant, because the predecessor may have used another one: its state has an anchor if
librdkafka wrote it, which keeps one epoch for a session, and none if the native producer wrote it (ids.py). The control
plane does all of it, under an identity that InitProducerId made for this purpose only.
"""

from typing import TYPE_CHECKING, NamedTuple

from dualwrite.client.fate.transaction_fate import ended_transaction, ongoing_transaction, open_transaction
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, end_of, outcome_in_log, verdict
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import EndedTransaction, Ending, OngoingTransaction, PreparedTxnState, ProducerIdentity

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane

_BRIEFLY = 2.0
"""Timeout in seconds of a request that can be repeated later."""


class EndingNotCheckedError(KafkaUnavailableError):
    """No transaction is open under the transactional id any more, but the end of the decided transaction could not be
    checked: look again. Checks of other transactional ids may succeed."""


class PreparedPredecessor:
    """The transaction, if any, that was open under a transactional id when its next owner took it.

    :param control: describes the transaction and ends it.
    """

    def __init__(self, control: "ControlPlane", transactional_id: str) -> None:
        self._control = control
        self._transactional_id = transactional_id
        self._initialized = control.init_producer_id(transactional_id, two_phase_commit=True, keep_prepared_txn=True)

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise; then check how the transaction of ``state`` ended.
        No open transaction is success: an earlier commit reached Kafka and its answer was lost (apache/kafka PR 20039).

        :param is_last: True if this is the last check before ``state`` is overwritten. Otherwise a commit is assumed to
            be done, and the wait is short.
        :raises KafkaUnavailableError: if Kafka does not answer.
        :raises EndingNotCheckedError: if it does not answer the check, and not ``is_last``: all else is done.
        """
        ongoing = self._ongoing(state)
        done = Outcome.NOTHING if ongoing is None else self.end(verdict(state, ongoing))
        check = EndingCheck(self._control, self._transactional_id, self._initialized.producer, is_last)
        return check.outcome(state, done, ongoing)

    def name(self) -> PreparedTxnState:
        """The state that names it, for the record; the empty state if there is none."""
        if self._initialized.ongoing is None:
            return PreparedTxnState()
        return open_transaction(self._control, self._transactional_id, self._initialized.ongoing)

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if the transaction of ``state`` was committed before, as far as the log tells; see
        PredecessorTransaction."""
        if self._initialized.ongoing == state.producer:  # then it is the open one
            return False
        return ended_transaction(self._control, state).ending is Ending.COMMITTED

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, without comparing."""
        if self._initialized.ongoing is None:
            return Outcome.NOTHING
        committed = decided is RecoveryDecision.COMMIT
        # No record is ever produced under this identity, so a late or second EndTxn cannot hit another transaction.
        self._control.end_txn(self._transactional_id, self._initialized.producer, committed, repeatable=True)
        return end_of(decided)

    def _ongoing(self, state: PreparedTxnState) -> OngoingTransaction | None:
        ongoing = self._initialized.ongoing
        return None if ongoing is None else ongoing_transaction(self._control, self._transactional_id, ongoing, state)


class EndingCheck(NamedTuple):
    """Checks how a transaction that the database has decided to commit has ended.

    :param now: the current identity of the transactional id, which is later than that of the transaction.
    :param is_last: see PreparedPredecessor.complete.
    """

    control: "ControlPlane"
    transactional_id: str
    now: ProducerIdentity
    is_last: bool

    def outcome(self, state: PreparedTxnState, done: Outcome, ongoing: OngoingTransaction | None) -> Outcome:
        """``done``, unless the transaction of ``state`` has ended otherwise.

        :param ongoing: the open transaction, which ended in ``done``.
        """
        if not self.is_needed(state, done):
            return done
        return outcome_in_log(state, done, self.now, self.ended(state), ongoing)

    def is_needed(self, state: PreparedTxnState, done: Outcome) -> bool:
        """True if the log may show another outcome than ``done``."""
        return bool(state) and (done is not Outcome.COMMITTED or self.is_last)

    def ended(self, state: PreparedTxnState) -> EndedTransaction:
        """How the transaction of ``state`` has ended, according to the log."""
        try:
            return ended_transaction(self.control, state, None if self.is_last else _BRIEFLY)
        except KafkaUnavailableError as error:
            if self.is_last:
                raise
            raise EndingNotCheckedError(
                f"{self.transactional_id}: the outcome of {state} cannot be read yet: {error}"
            ) from error
