"""Replay: the records of a unit of work stay in the database until Kafka has committed them, and can be produced again.

They are written in the unit's own database transaction, beside its state, and replaced by the next unit of the same
transactional id. Deleting them sooner would cost one more transaction for each unit. So their presence does not show
that Kafka lacks them; only Kafka's log shows that: recovery reads it, and records a heuristic abort. An outcome on
record that has its records here and was not acknowledged must be replayed.

A replay is a unit of work of its own, by the same machine and without the user's rows: a new Kafka transaction, whose
state is stored before it is committed, together with the acknowledgement of the outcome. So the records are in Kafka
once, even if a process dies or a transaction times out meanwhile: before that COMMIT the replay is undecided, is
aborted, and is still due; after it, recovery treats it like any other unit. If Kafka refuses records for good, they
stay here, and the replay is tried again at the slot's next recovery; the units that follow keep theirs behind them.
"""

import functools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Select, and_, delete, func, insert, or_, select, update

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.replay.recording import RecordKeeper, kept_record
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.slot import Counters, Slot
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import columns_naming
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome as outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_record as records
from dualwrite.coordinator.sql.tables import kafka_transaction_state as states
from dualwrite.coordinator.unit.unit_database import unit_driver
from dualwrite.errors import KafkaRefusedError, PrepareFailedError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord

ACKNOWLEDGED_BY = "replay"
"""The acknowledging name for an outcome whose records were replayed."""

_IS_OF = and_(
    outcomes.c.transactional_id == records.c.transactional_id,
    outcomes.c.prepared_txn_state == records.c.prepared_txn_state,
    outcomes.c.first_record == records.c.first_record,
)
"""That the records are those of the outcome's unit of work."""

_NEWEST = func.max(outcomes.c.id)  # of a cluster that has begun anew there may be an older one of that name

_LOG = logging.getLogger("dualwrite")


def lost_units() -> Select[Any]:
    """Selects the units of work that are to be replayed: the slot, the number of the outcome, and of the first and the
    last kept record."""
    return (
        select(records.c.transactional_id, _NEWEST, func.min(records.c.number), func.max(records.c.number))
        .join(outcomes, _IS_OF)
        .join(states, states.c.transactional_id == records.c.transactional_id)
        .where(outcomes.c.outcome == Outcome.HEURISTIC_ABORT.value, outcomes.c.acknowledged_at.is_(None))
        .where(states.c.prepared_txn_state != records.c.prepared_txn_state)  # what that names was not aborted
        .group_by(records.c.transactional_id, records.c.prepared_txn_state, records.c.first_record)
    )


class LostUnit(NamedTuple):
    """A unit of work that is to be replayed: the number of its outcome, and of its first and last kept record."""

    outcome: int
    first: int
    last: int


class _AcknowledgedMeanwhileError(PrepareFailedError):
    """An operator has acknowledged the outcome during its replay, and may have produced the records."""


class ReplayStore(SqlDecisionStore):
    """A DecisionStore that keeps the records with the state.

    :param keeper: where the records are until then.
    :param database_timeout: see SqlDecisionStore, as for lease_timeout.
    """

    def __init__(
        self,
        engine: Engine,
        keeper: RecordKeeper,
        database_timeout: float = math.inf,
        lease_timeout: float | None = None,
    ) -> None:
        super().__init__(engine, checks_lease=True, database_timeout=database_timeout, lease_timeout=lease_timeout)
        self._keeper = keeper
        self.replayed: dict[str, LostUnit] = {}
        """By transactional id, what a replay that is under way sees to."""

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """See DecisionStore.store. A replay is acknowledged in the same transaction."""
        super().store(connection, lease, state)
        name = lease.transactional_id
        first, replayed = self._keeper.reserved.get(name, 0), self.replayed.get(name)
        obsolete = records.c.number >= first
        with clear_errors(connection.engine):
            if replayed is not None:
                self._acknowledge(connection, replayed.outcome)
                obsolete = or_(obsolete, records.c.number.between(replayed.first, replayed.last))
            if name not in self._keeper.empty:
                connection.execute(
                    delete(records).where(records.c.transactional_id == name, obsolete),
                    execution_options=ours(connection),
                )
            self._keeper.empty.discard(name)
            own = {"transactional_id": name, **columns_naming(state)}
            rows = [
                {**own, "number": number, **record.columns()}
                for number, record in enumerate(self._keeper.of(name), first)
            ]
            connection.execute(insert(records), rows, execution_options=ours(connection))

    def _acknowledge(self, connection: Connection, outcome: int) -> None:
        seen_to = (
            update(outcomes)
            .where(outcomes.c.id == outcome, outcomes.c.acknowledged_at.is_(None))
            .values(acknowledged_at=self._database.now(), acknowledged_by=ACKNOWLEDGED_BY)
        )
        if connection.execute(seen_to, execution_options=ours(connection)).rowcount != 1:
            raise _AcknowledgedMeanwhileError(
                f"heuristic outcome {outcome} was acknowledged while it was being replayed"
            )

    def lost(self, leases: Collection[Lease]) -> dict[Lease, list[LostUnit]]:
        """The units of work of the recovered ``leases`` whose records Kafka has aborted and whose outcome is not
        acknowledged: for each lease that has any, the oldest first."""
        by_name = {lease.transactional_id: lease for lease in leases}
        wanted = lost_units().where(records.c.transactional_id.in_(list(by_name))).order_by(_NEWEST)
        found: dict[Lease, list[LostUnit]] = {}
        with self.connection() as connection, clear_errors(self._engine):
            for name, *unit in connection.execute(wanted, execution_options=ours(connection)):
                found.setdefault(by_name[name], []).append(LostUnit(*unit))
        return found

    def has_records(self, lease: Lease) -> bool:
        """True if anything is kept for ``lease``."""
        with self.connection() as connection, clear_errors(self._engine):
            of_lease = select(records.c.number).where(records.c.transactional_id == lease.transactional_id)
            return connection.execute(of_lease.limit(1), execution_options=ours(connection)).first() is not None

    def records(self, lease: Lease, unit: LostUnit) -> list[OutgoingRecord]:
        """The records of ``unit``, in order."""
        of_unit = records.c.number.between(unit.first, unit.last)
        wanted = select(records).where(records.c.transactional_id == lease.transactional_id, of_unit)
        with self.connection() as connection, clear_errors(self._engine):
            return [
                kept_record(row)
                for row in connection.execute(wanted.order_by(records.c.number), execution_options=ours(connection))
            ]


class Replayer:
    """Produces records again that Kafka has aborted although the database had decided to commit them.

    :param config: of the Kafka side.
    :param observe: called with each step's name.
    :param database_timeout: see SqlDecisionStore, as for lease_timeout.
    """

    def __init__(
        self,
        engine: Engine,
        config: Mapping[str, Any],
        observe: Callable[[str], None],
        database_timeout: float = math.inf,
        lease_timeout: float | None = None,
    ) -> None:
        self._keeper = RecordKeeper(config)
        self._database_timeout = database_timeout
        self._lease_timeout = lease_timeout
        self.store = self._store_on(engine)
        """Keeps records with the states of their transactions."""
        self._engine = engine
        self._observe = observe

    def store_in(self, engine: Engine) -> ReplayStore:
        """A store that does the same in transactions of ``engine``: the user's may be another."""
        return self.store if engine is self._engine else self._store_on(engine)

    def _store_on(self, engine: Engine) -> ReplayStore:
        return ReplayStore(engine, self._keeper, self._database_timeout, self._lease_timeout)

    def watching(self, make: Callable[[str], KafkaParticipant]) -> Callable[[str], KafkaParticipant]:
        """``make``, so that what its participants produce is noted."""
        return self._keeper.watching(make)

    def replay(self, slot: Slot) -> Outcome | None:
        """Replay a lost unit of the recovered ``slot``; None if none is lost.

        One unit of work: if more are lost, or this one may be again, the slot needs recovery afterwards, which calls
        this again. A unit that Kafka refuses for good stays on record, with its records, and is tried again at the next
        recovery; that is logged, and the slot goes on.

        Raises the error of a failed replay; the slot then repeats its recovery, as the next unit of work would take the
        place of what is lost.
        """
        name, lost = slot.transactional_id, self.store.lost([slot.lease]).get(slot.lease, [])
        self.store.replayed.pop(name, None)  # of a parent that was forked in the middle of one
        # Before a replay stores anything: another process may have had the slot since the last recovery here.
        if lost or self.store.has_records(slot.lease):
            self._keeper.empty.discard(name)
        else:
            self._keeper.empty.add(name)
        done: Outcome | None = None
        refused: list[LostUnit] = []
        for unit in lost:
            # Behind what else is lost: those records stay where they are.
            self._keeper.reserve(name, [other.last for other in lost if other is not unit])
            kept = self.store.records(slot.lease, unit)
            error = self._produce(slot, unit, kept)
            if error is None:
                _LOG.warning("%s: %d records that Kafka had aborted are produced again", name, len(kept))
                done = Outcome.REPLAYED
                if unit is not lost[-1] and slot.is_ready:
                    slot.lend().close()
                break
            if not slot.is_ready or not isinstance(error, (KafkaRefusedError, _AcknowledgedMeanwhileError)):
                raise error
            if isinstance(error, KafkaRefusedError):
                _LOG.error("%s: %d records cannot be produced again: %s", name, len(kept), error)
                done = Outcome.HEURISTIC_ABORT
                refused.append(unit)
        self._keeper.reserve(name, [unit.last for unit in refused])
        return done

    def _produce(self, slot: Slot, unit: LostUnit, kept: Sequence[OutgoingRecord]) -> BaseException | None:
        """A unit of work of nothing but ``kept``; its error, if it was not committed."""
        error: BaseException | None = None
        driver = unit_driver(self._engine, self.store, slot, self._observe)
        self.store.replayed[slot.transactional_id] = unit
        try:
            driver.begin()
            if driver.machine.result is None:
                for record in kept:
                    driver.produce(record)
        except BaseException as raised:  # noqa: BLE001 - both sides are rolled back, and the caller gets it
            error = raised
        try:
            driver.finish(error)
        finally:
            del self.store.replayed[slot.transactional_id]
            driver.release()
        if driver.interrupt is not None or driver.machine.result is not Result.SUCCEEDED:
            return driver.machine.error if driver.interrupt is None else driver.interrupt
        return None


class SweepReplays:
    """Replay in slots that no unit of work is going to use, for the sweep (see Repairs).

    :param make: makes the participant of a transactional id.
    """

    def __init__(
        self,
        replayer: Replayer,
        make: Callable[[str], KafkaParticipant],
        counters: Counters,
        observe: Callable[[str], None],
    ) -> None:
        self._replayer = replayer
        self._make = make
        self._counters = counters
        self._observe = observe

    def due(self, leases: Collection[Lease]) -> Collection[Lease]:
        """The leases that need a replay; see Repairs."""
        return self._replayer.store.lost(leases).keys()

    def repair(self, lease: Lease) -> Outcome:
        """See Repairs. Every replay begins with recovery, like every unit of work in a new slot."""
        make = functools.partial(self._make, lease.transactional_id)
        store, replay = self._replayer.store, self._replayer.replay
        slot = Slot(THIS_PROCESS, lease, store, make, self._counters, lambda: None, self._observe, replay)
        try:
            return slot.recover()
        finally:
            slot.close(0)
