"""The transaction that a dead predecessor left, kept by InitProducerId with keepPreparedTxn: judged and ended.

It is the same for every participant, because the predecessor may have been another: its state has an anchor if it was
written by librdkafka, which keeps one epoch for a session, and none if it was written by the native producer (ids.py).
All of it is the control plane's, under an identity that InitProducerId made for this one purpose.
"""

import logging

from dualwrite.client.anchors import ongoing_transaction
from dualwrite.client.control import ControlPlane
from dualwrite.coordinator.participants import Outcome
from dualwrite.coordinator.verdict import Verdict, verdict
from dualwrite.ids import PreparedTxnState, ProducerIdentity

_LOG = logging.getLogger("dualwrite")


class KeptTransaction:
    """What was open under a transactional id when its next owner took it. Nothing, perhaps.

    :param control: asked about the transaction, and told how it ends.
    """

    def __init__(self, control: ControlPlane, transactional_id: str) -> None:
        self._control = control
        self._transactional_id = transactional_id
        self._kept = control.init_producer_id(transactional_id, two_phase_commit=True, keep_prepared_txn=True)

    def complete(self, state: PreparedTxnState) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise. Nothing open is success: a commit got through
        before and its answer was lost (apache/kafka PR 20039)."""
        self._look_for_another_cluster(state.producer)
        ongoing = self._kept.ongoing
        if ongoing is None:
            return Outcome.NOTHING
        return self.end(verdict(state, ongoing_transaction(self._control, self._transactional_id, ongoing, state)))

    def end(self, decided: Verdict) -> Outcome:
        """Commit or abort it, whatever it is."""
        if self._kept.ongoing is None:
            return Outcome.NOTHING
        committed = decided is Verdict.COMMIT
        # Nothing is ever produced under this identity, so a late or second EndTxn can hit no other transaction.
        self._control.end_txn(self._transactional_id, self._kept.producer, committed, repeatable=True)
        return Outcome.COMMITTED if committed else Outcome.ABORTED

    def _look_for_another_cluster(self, stored: ProducerIdentity) -> None:
        """Warn if ``stored`` cannot be this cluster's: identities only grow, and this one has just been raised."""
        now = self._kept.producer
        if stored and stored.producer_id == now.producer_id and stored.epoch >= now.epoch:
            _LOG.warning(
                "%s: the prepared state %s in the database is not of this cluster, which has come to %s only: has it "
                "lost its data, or is it another? If it is to be used, delete the transactional id's row in the state "
                "table",
                self._transactional_id,
                stored,
                now,
            )
