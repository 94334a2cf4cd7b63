"""The moments at which the process of a unit of work can die, what both sides hold then, and what recovery does.

The moments are the states on the machine's way of a unit in which nothing fails; what recovery does at each is the
answer of ``verdict``. Only the effect of each step on both sides is written here, and a test kills the library itself
at every moment and compares.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from dualwrite.coordinator.rules.machine import STEPS, TRANSITIONS, Event, Step, UnitState
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, end_of, identity_after, verdict
from dualwrite.ids import OngoingTransaction, PreparedTxnState, ProducerIdentity

_FORMER = ProducerIdentity(4711, 6)
FORMER = PreparedTxnState(_FORMER)
"""The state of the unit before."""
OWN = PreparedTxnState(identity_after(_FORMER))
"""The state of the unit whose process dies."""
_WITHOUT_FAILURE = (Event.BEGIN, Event.DONE, Event.PRODUCE, Event.LEFT)


class DatabaseSide(Enum):
    """What the database holds of the unit."""

    NOTHING = "nothing of this unit"
    OPEN = "an open transaction"
    WITH_ROWS = "an open transaction with the rows"
    WITH_STATE = f"an open transaction with the rows and the state {OWN}"
    COMMITTED = f"the rows and the state {OWN}, committed"


class KafkaSide(Enum):
    """What Kafka holds of the unit."""

    NOTHING = "nothing of this unit"
    OPEN = "an open transaction, perhaps without its last records"
    PREPARED = f"the prepared transaction {OWN} with every record"
    COMMITTED = "the records, committed"


@dataclass(frozen=True)
class BothSides:
    """Both sides between two steps."""

    database: DatabaseSide = DatabaseSide.NOTHING
    kafka: KafkaSide = KafkaSide.NOTHING

    @property
    def stored(self) -> PreparedTxnState:
        """The committed state in the slot's row, as the next process reads it."""
        return OWN if self.database is DatabaseSide.COMMITTED else FORMER

    @property
    def ongoing(self) -> OngoingTransaction | None:
        """The transaction that recovery finds open in Kafka."""
        is_open = self.kafka in (KafkaSide.OPEN, KafkaSide.PREPARED)
        return OngoingTransaction(OWN.producer) if is_open else None

    def after(self, state: UnitState) -> "BothSides":
        """Both sides once the step of ``state`` had its effect."""
        step = STEPS.get(state)
        if step is Step.RUN:  # first SQL alone; then the records, too
            return replace(self, kafka=KafkaSide.OPEN) if state is UnitState.PRODUCING else self._in_database(_ROWS)
        if step in _DATABASE:
            return self._in_database(_DATABASE[step])
        return replace(self, kafka=_KAFKA[step]) if step in _KAFKA else self

    def _in_database(self, database: DatabaseSide) -> "BothSides":
        return replace(self, database=database)


_ROWS = DatabaseSide.WITH_ROWS
_DATABASE: dict[Step | None, DatabaseSide] = {
    Step.BEGIN_DATABASE: DatabaseSide.OPEN,
    Step.STORE_STATE: DatabaseSide.WITH_STATE,
    Step.COMMIT_DATABASE: DatabaseSide.COMMITTED,
}
_KAFKA: dict[Step | None, KafkaSide] = {
    Step.PREPARE_KAFKA: KafkaSide.PREPARED,
    Step.COMMIT_KAFKA: KafkaSide.COMMITTED,
}


@dataclass(frozen=True)
class Moment:
    """The process dies in ``state``, before the step of that state has its effect."""

    state: UnitState
    sides: BothSides

    @property
    def step(self) -> Step | None:
        """The step that has no effect any more; None if the unit has ended."""
        return STEPS.get(self.state)

    @property
    def decision(self) -> RecoveryDecision:
        """What recovery does with Kafka's side."""
        return verdict(self.sides.stored, self.sides.ongoing)

    @property
    def has_rows(self) -> bool:
        """True if the rows are there in the end: what is not committed goes with the connection."""
        return self.sides.database is DatabaseSide.COMMITTED

    @property
    def has_records(self) -> bool:
        """True if read_committed consumers see the records in the end."""
        return self.sides.kafka is KafkaSide.COMMITTED or end_of(self.decision) is Outcome.COMMITTED


def moments() -> list[Moment]:
    """Every moment, from the beginning of a unit to its end."""
    return list(_walk())


def _walk() -> Iterator[Moment]:
    state, sides = UnitState.NEW, BothSides()
    while TRANSITIONS[state]:
        event = next(each for each in _WITHOUT_FAILURE if each in TRANSITIONS[state])
        sides = sides.after(state)
        state = TRANSITIONS[state][event]
        yield Moment(state, sides)


def decisive(among: list[Moment]) -> Moment:
    """The last moment after which nothing of the unit stays: its step is the decision.

    :raises ValueError: if the unit stays at no later moment, or not at all of them.
    """
    kept = [each.has_rows for each in among]
    if kept != sorted(kept) or not kept[-1] or kept[0]:
        raise ValueError(f"no moment is the decision: {kept}")
    return among[kept.index(True) - 1]
