"""Forced termination (KIP-939, ``kafka-transactions forceTerminateTransaction``): abort, regardless of the decision.

It is for a transaction that recovery will never reach: its database is lost, or belongs to another application. In
Kafka it is a plain InitProducerId, which aborts the open transaction of the transactional id and fences its producer.
If the database has decided to commit, the two sides then differ: a heuristic outcome. The outcome is recorded before
the request to Kafka, and replaces the decision, so that recovery cannot commit a transaction on record as aborted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from dualwrite.client.admin.inspector import Inspector
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.coordinator.rules.slot_rules import Candidate
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.outcome_rows import log_outcome
from dualwrite.coordinator.sql.outcome_store import require_name
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.operations.copies import require_no_copy
from dualwrite.operations.heuristics import HeuristicRecords
from dualwrite.operations.listing import IS_LOCKED, inspector, views_of
from dualwrite.operations.resolving import held_by, require_known
from dualwrite.operations.views import RowView, Situation, TransactionView, foreign_cluster_message

TERMINATION_TIMEOUT_MS = 60_000
"""The transaction.timeout.ms of the InitProducerId. It is below a broker's maximum, and asks for no two-phase
commit."""

UNANSWERED = "whether Kafka has aborted it is not known, and if it has not, recovery aborts it"

LEASE_SECONDS = 180.0
"""The duration of the slot's lease: longer than the database and Kafka may take to answer."""

_PATIENCE, _PAUSE = 2.0, 0.02
"""Seconds within which the slot must be taken, and between two attempts."""


def foresee(engine: Engine | None, kafka: Mapping[str, Any], transactional_id: str) -> TransactionView:
    """The transaction that :func:`terminate` would abort. Changes nothing.

    :param engine: the database with the decision; None if it is lost.
    :raises InputError: if neither the database nor Kafka knows the transactional id.
    :raises InvalidTransactionStateError: if no transaction is open, or its owner may be alive; if a transaction of the
        database has locked the row, and may commit it yet; or if the row belongs to another Kafka cluster.
    :raises CopiedDatabaseError: if the database is a copy: only the original may decide its transactions.
    """
    with inspector(kafka) as cluster:
        return _foreseen(engine, kafka, cluster, transactional_id)


def contradicts(view: TransactionView) -> bool:
    """True if the abort would leave rows in the database whose records no read_committed consumer sees."""
    return view.verdict is RecoveryDecision.COMMIT


def terminate(
    engine: Engine | None, kafka: Mapping[str, Any], transactional_id: str, *, by: str | None = None
) -> TransactionView:
    """Abort the open transaction of ``transactional_id`` in Kafka, regardless of the database's decision. Return its
    former view.

    If the database had decided to commit, the outcome is recorded in the table ``kafka_transaction_outcome``.

    :param by: the operator's name for that record: 1 to 255 printable characters; None if it is not known.
    :raises InputError: as :func:`foresee`; also if ``by`` is not a name.
    :raises InvalidTransactionStateError: as :func:`foresee`; also if another process takes the slot at the same time.
    :raises LeaseLostError: if another process has taken the slot meanwhile, and so has aborted the transaction.
    :raises KafkaUnavailableError: if Kafka does not answer. The transaction may still be open; recovery, or another
        call, aborts it.
    """
    if by is not None:
        require_name(by, "terminated by")
    with inspector(kafka) as cluster:
        view = _foreseen(engine, kafka, cluster, transactional_id)
        if engine is None or view.row is None:
            _abort(cluster, transactional_id)
            return view
        return _terminate_slot(engine, cluster, view, view.row, by)


def _foreseen(
    engine: Engine | None, kafka: Mapping[str, Any], cluster: Inspector, transactional_id: str
) -> TransactionView:
    if engine is not None:
        require_no_copy(engine, kafka)
    view = views_of(engine, cluster, [transactional_id])[transactional_id]
    require_known([view])
    if view.is_foreign:
        remedy = ". To abort it in this cluster, use --no-db" if view.kafka is not None and view.kafka.waits else ""
        raise InvalidTransactionStateError(
            f"{transactional_id}: this database decides on nothing in this cluster: "
            f"{foreign_cluster_message([view])}{remedy}"
        )
    if view.kafka is None or not view.kafka.waits:
        state = "Kafka does not know it" if view.kafka is None else f"Kafka's state of it is {view.kafka.state}"
        raise InvalidTransactionStateError(f"{transactional_id}: there is nothing to terminate: {state}")
    if view.situation is Situation.AT_WORK:
        raise InvalidTransactionStateError(f"{transactional_id}: {held_by(view)}")
    if view.row is not None and view.row.is_locked:
        raise InvalidTransactionStateError(f"{transactional_id}: {IS_LOCKED.detail}")
    return view


def _terminate_slot(
    engine: Engine, cluster: Inspector, view: TransactionView, row: RowView, by: str | None
) -> TransactionView:
    """Terminate under the slot's lease, so that its former owner can no longer commit, and no process recovers it
    meanwhile."""
    name = view.transactional_id
    store = SqlDecisionStore(engine)
    registry = LeaseRegistry(
        THIS_PROCESS, SqlLeases(engine, store), view.application or name, THIS_PROCESS.new_owner(), LEASE_SECONDS
    )
    lease, finished = _taken(registry, Candidate(row.slot, row.status)), False
    try:
        with store.locked(lease) as locked_row:  # waits for the owner's database transaction in progress
            decided = replace(view, row=replace(row, state=locked_row.state))
        records = HeuristicRecords(engine, by)
        recorded = records.add_abort(lease, decided.row_state) if contradicts(decided) else None
        try:
            with store.locked(lease):  # under the lock no unit begins, which this would abort too
                _abort(cluster, name)
        except KafkaRefusedError:
            if recorded is not None:
                records.withdraw(recorded, lease, decided.row_state)
            raise
        except KafkaUnavailableError as error:
            if recorded is None:
                raise
            raise type(error)(
                f"{error}. The heuristic abort {recorded} is on record all the same: {UNANSWERED}"
            ) from error
        except BaseException:
            if recorded is not None:
                log_outcome(name, decided.row_state, Outcome.HEURISTIC_ABORT, UNANSWERED)
            raise
        finished = True
    finally:
        registry.give_back([lease], finished=finished)
    return decided


def _taken(registry: LeaseRegistry, candidate: Candidate) -> Lease:
    """The lease of ``candidate``. A look at its row, as a list or a console takes it, locks it for a moment."""
    deadline = THIS_PROCESS.monotonic() + _PATIENCE
    while not (leases := registry.take([candidate])):
        if THIS_PROCESS.monotonic() > deadline:
            name = candidate.row.transactional_id
            raise InvalidTransactionStateError(f"{name}: another process has just taken it: try again")
        THIS_PROCESS.sleep(_PAUSE)
    return leases[0]


def _abort(cluster: Inspector, transactional_id: str) -> None:
    cluster.init_producer_id(
        transactional_id,
        transaction_timeout_ms=TERMINATION_TIMEOUT_MS,
        two_phase_commit=False,
        keep_prepared_txn=False,
    )
