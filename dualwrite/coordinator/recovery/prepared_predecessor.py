"""The transaction that a dead predecessor left, kept by InitProducerId with keepPreparedTxn: judged and ended.

It is the same for every participant, because the predecessor may have been another: its state has an anchor if it was
written by librdkafka, which keeps one epoch for a session, and none if it was written by the native producer (ids.py).
All of it is the control plane's, under an identity that InitProducerId made for this one purpose.
"""

from typing import NamedTuple

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.transaction_fate import ended_transaction, ongoing_transaction, open_transaction
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, looked_back, verdict
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import OngoingTransaction, PreparedTxnState, ProducerIdentity

_BRIEFLY = 2.0
"""Seconds for a question that can be put later."""


class NotLookedAtError(KafkaUnavailableError):
    """Nothing is open under the transactional id any more, but what became of the decided transaction was not seen:
    look again. The others' can be seen, perhaps."""


class PreparedPredecessor:
    """What was open under a transactional id when its next owner took it. Nothing, perhaps.

    :param control: asked about the transaction, and told how it ends.
    """

    def __init__(self, control: ControlPlane, transactional_id: str) -> None:
        self._control = control
        self._transactional_id = transactional_id
        self._kept = control.init_producer_id(transactional_id, two_phase_commit=True, keep_prepared_txn=True)

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise; then see whether that is what became of the
        transaction that ``state`` names. Nothing open is success: a commit got through before and its answer was lost
        (apache/kafka PR 20039).

        :param is_last: True if nobody looks again before ``state`` is overwritten. Otherwise a commit is taken for
            done, and nobody waits for long.
        :raises KafkaUnavailableError: if Kafka gives no answer.
        :raises NotLookedAtError: if it gives none in the look, and not ``is_last``: all else is done.
        """
        found = self._found(state)
        done = Outcome.NOTHING if found is None else self.end(verdict(state, found))
        looked = LookBack(self._control, self._transactional_id, self._kept.producer, is_last)
        return looked.at(state, done, found)

    def name(self) -> PreparedTxnState:
        """What names it, for the record; the empty state if there is none."""
        if self._kept.ongoing is None:
            return PreparedTxnState()
        return open_transaction(self._control, self._transactional_id, self._kept.ongoing)

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, whatever it is."""
        if self._kept.ongoing is None:
            return Outcome.NOTHING
        committed = decided is RecoveryDecision.COMMIT
        # Nothing is ever produced under this identity, so a late or second EndTxn can hit no other transaction.
        self._control.end_txn(self._transactional_id, self._kept.producer, committed, repeatable=True)
        return Outcome.COMMITTED if committed else Outcome.ABORTED

    def _found(self, state: PreparedTxnState) -> OngoingTransaction | None:
        ongoing = self._kept.ongoing
        return None if ongoing is None else ongoing_transaction(self._control, self._transactional_id, ongoing, state)


class LookBack(NamedTuple):
    """How to see what became of a transaction that the database has decided to commit.

    :param now: the identity that the transactional id has now, which is later than that of the transaction.
    :param is_last: see PreparedPredecessor.complete.
    """

    control: ControlPlane
    transactional_id: str
    now: ProducerIdentity
    is_last: bool

    def at(self, state: PreparedTxnState, done: Outcome, found: OngoingTransaction | None) -> Outcome:
        """``done``, unless something else became of the transaction that ``state`` names.

        :param found: what was open, and ended in ``done``.
        """
        if not state or (done is Outcome.COMMITTED and not self.is_last):
            return done
        try:
            ended = ended_transaction(self.control, state, None if self.is_last else _BRIEFLY)
        except KafkaUnavailableError as error:
            if self.is_last:
                raise
            raise NotLookedAtError(
                f"{self.transactional_id}: what became of {state} cannot be seen yet: {error}"
            ) from error
        return looked_back(state, done, self.now, ended, found)
