"""Recovery's decision about an open transaction, and the heuristic outcome of one that ended against the decision:
compares the stored decision with the state of the cluster.

Heuristic outcomes have XA's names (XA_HEURCOM, XA_HEURRB, XA_HEURMIX, XA_HEURHAZ), with Kafka's word for a rollback.
They arise when an operator ends a prepared transaction by force, or when one side is restored from an older copy.
"""

from enum import Enum

from dualwrite.ids import EndedTransaction, Ending, Match, OngoingTransaction, PreparedTxnState, ProducerIdentity


class RecoveryDecision(Enum):
    """How recovery ends the open transaction of a transactional id."""

    COMMIT = "commit"
    ABORT = "abort"
    NOTHING = "nothing"


class Outcome(Enum):
    """How a Kafka transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING = "nothing"
    """No transaction was open: it had ended before, or never begun."""
    HEURISTIC_COMMIT = "heuristic commit"
    """Kafka committed a transaction that the database does not know."""
    HEURISTIC_ABORT = "heuristic abort"
    """The database decided to commit, and Kafka aborted."""
    HEURISTIC_MIXED = "heuristic mixed"
    """The database decided to commit; Kafka aborted in one partition at least, and committed in the others."""
    HEURISTIC_HAZARD = "heuristic hazard"
    """One side is unknown: the database decided to commit and the cluster has lost the transaction; or Kafka's
    transaction was aborted and the database may have committed the rows."""
    REPLAYED = "replayed"
    """The database decided to commit, and Kafka aborted; then a replay produced the records again (replay.py)."""

    @property
    def is_heuristic(self) -> bool:
        """True if the two sides ended differently. It stays on record until an operator acknowledges it."""
        return self in DETAILS


DETAILS = {
    Outcome.HEURISTIC_COMMIT: (
        "after the transaction that the database knows as the last one, Kafka has committed another under the same "
        "transactional id: the database was restored from an older copy, or has lost a commit, or another application "
        "uses the transactional id. Its records have no rows"
    ),
    Outcome.HEURISTIC_ABORT: (
        "the database committed, and the transaction was aborted in Kafka: by force, by its timeout, or by a process "
        "with another database under the same application name. Its rows have no records"
    ),
    Outcome.HEURISTIC_MIXED: (
        "the database committed, and so did Kafka, but in the partition of the first record the transaction had been "
        "aborted by hand before. Some of its rows have no records"
    ),
    Outcome.HEURISTIC_HAZARD: (
        "the database committed, and the cluster does not have the transaction's records where they were acknowledged: "
        "it has lost data, as one that was restored from an older copy, or the topic was deleted or made anew, or it "
        "is another cluster, or has left them without an end. More than this transaction may be missing"
    ),
}
"""The meaning of each heuristic outcome, in a line for the operator."""

UNCLAIMED = (
    "the state row of this transactional id was made anew, or was used in another Kafka cluster before, and this "
    "transaction was open in Kafka under it: it is aborted. A process with another database or schema under the same "
    "application name has begun it, or one that ran before the state table was emptied. If it was committed there, its "
    "rows have no records: look for this state in kafka_transaction_state of every database and schema (PostgreSQL: "
    "search_path, ALTER ROLE) that the application has used, and let the application name use one of them only "
    "(schema=, --schema)"
)
"""The meaning of a heuristic hazard found by the first recovery of a row in its cluster, in a line for the operator."""

LEFT_ELSEWHERE = (
    "the database committed, and the transaction was in another Kafka cluster, where the slot was used before: the log "
    "of this one says nothing about it. The other cluster was left on purpose, or is lost. If it is lost, more than "
    "this transaction may be missing"
)
"""The meaning of a heuristic hazard of a slot that was given back in another cluster, in a line for the operator."""


def verdict(stored: PreparedTxnState, ongoing: OngoingTransaction | None) -> RecoveryDecision:
    """Commit the ongoing transaction if and only if the database decided for it (KIP-939, completeTransaction).

    :param stored: the state in the database; the empty state if no unit of work was ever committed there.
    :param ongoing: the open transaction, with its start offsets if ``stored`` has an anchor; None if none is open,
        which is success: an earlier commit or abort reached Kafka.
    """
    if ongoing is None:
        return RecoveryDecision.NOTHING
    return RecoveryDecision.COMMIT if stored.identifies(ongoing) else RecoveryDecision.ABORT


def end_of(decided: RecoveryDecision) -> Outcome:
    """How the open transaction has ended once recovery has carried out ``decided``."""
    if decided is RecoveryDecision.NOTHING:
        return Outcome.NOTHING
    return Outcome.COMMITTED if decided is RecoveryDecision.COMMIT else Outcome.ABORTED


def identity_after(producer: ProducerIdentity) -> ProducerIdentity:
    """The next identity of the transactional id of ``producer``, unless its epochs are used up."""
    return ProducerIdentity(producer.producer_id, producer.epoch + 1)


def outcome_in_log(
    stored: PreparedTxnState,
    done: Outcome,
    now: ProducerIdentity,
    ended: EndedTransaction,
    ongoing: OngoingTransaction | None = None,
) -> Outcome:
    """The outcome of recovery, corrected by how the transaction that the database decided to commit has ended.

    Only a proof that the sides differ makes a heuristic outcome. Missing evidence (an old log, a topic that is gone)
    does not: it is normal for an application that was stopped for long.

    :param stored: as for :func:`verdict`, and not empty.
    :param done: how recovery ended the open transaction.
    :param now: the identity that InitProducerId has just returned.
    :param ended: the end of the stored transaction according to the log.
    :param ongoing: the transaction that recovery found open, and has ended.
    """
    if done is Outcome.COMMITTED:
        return Outcome.HEURISTIC_MIXED if ended.ending is Ending.ABORTED else done
    if ended.ending is Ending.ABORTED:
        return Outcome.HEURISTIC_ABORT
    if ended.ending in (Ending.LOST, Ending.OPEN) or _is_ahead(stored.producer, now):
        return Outcome.HEURISTIC_HAZARD
    if ended.ending is Ending.UNKNOWN and ongoing is not None and stored.match(ongoing) is Match.UNKNOWN:
        return Outcome.HEURISTIC_HAZARD  # the aborted transaction may have been the stored one
    return Outcome.HEURISTIC_COMMIT if ended.was_overtaken else done


def _is_ahead(stored: ProducerIdentity, now: ProducerIdentity) -> bool:
    """True if ``stored`` cannot come from this cluster: the epochs of a producer id only grow, and this one has just
    been raised. Different producer ids prove nothing: each broker assigns them from its own block."""
    return stored.producer_id == now.producer_id and stored.epoch >= now.epoch
