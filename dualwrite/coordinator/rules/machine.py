"""The recipe of ONE dual write as a pure state machine: events in, next step out. It performs nothing itself.

A driver performs the steps and reports how each ended. TRANSITIONS alone determines which step follows; docs/ draws its
diagram from it. The database's COMMIT is the decision. After a failure before it, both sides are rolled back; after a
later failure, Kafka's side is completed later; after an error of the COMMIT itself, the state row is read and the
outcome never guessed (KIP-939, "Normal processing recipe" and "Recovery recipe").
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from dualwrite.errors import InvalidTransactionStateError


class Step(Enum):
    """The driver's next step."""

    BEGIN_DATABASE = "begin the database transaction"
    RUN = "run the user's code until it produces for the first time, leaves the block or raises"
    BEGIN_KAFKA = "begin the Kafka transaction"
    PREPARE_KAFKA = "flush, and see every record acknowledged"
    STORE_STATE = "write the prepared state under the fencing token, inside the user's database transaction"
    COMMIT_DATABASE = "commit the database transaction: the decision"
    COMMIT_KAFKA = "commit the Kafka transaction"
    READ_DECISION = "lock the state row and see whether it holds this unit's state"
    ROLLBACK_DATABASE = "roll the database transaction back"
    ABORT_KAFKA = "abort the Kafka transaction"
    FINISH_LATER = "drop the participant and leave the Kafka side to recovery"

    __hash__ = object.__hash__  # Enum's own, in Python, hashes a name: a unit of work asks for forty


class Result(Enum):
    """How a unit of work ended, as its caller sees it."""

    SUCCEEDED = "in both, now or as soon as recovery reaches Kafka"
    ROLLED_BACK = "in neither; the caller gets the first error"
    IN_DOUBT = "in both or in neither, and recovery will find out which"
    DATABASE_FAILED = "nothing was produced and the COMMIT raised: the database's error is the caller's"


class Event(Enum):
    """An event that the driver reports."""

    BEGIN = "the unit of work begins"
    DONE = "the step succeeded"
    FAILED = "the step raised; whether it had its effect is not known"
    PRODUCE = "the user's code produces its first record"
    LEFT = "the user's code left the block"
    RAISED = "the user's code raised, or ended the database transaction itself"
    COMMITTED = "the state row holds this unit's state"
    NOT_COMMITTED = "the state row holds another state, and this unit's database transaction has ended"

    __hash__ = object.__hash__


class UnitState(Enum):
    """The state of a unit of work: the step in progress and the state of both sides, or how it ended."""

    NEW = "new"
    BEGINNING_DATABASE = "beginning database"
    RUNNING = "running"
    BEGINNING_KAFKA = "beginning kafka"
    PRODUCING = "running, kafka begun"
    DOOMED = "running, kafka could not begin"
    PREPARING_KAFKA = "preparing kafka"
    STORING_STATE = "storing state"
    COMMITTING_DATABASE = "committing database"
    READING_DECISION = "reading decision"
    COMMITTING_KAFKA = "committing kafka"
    ROLLING_BACK_DATABASE = "rolling back database"
    ABORTING_KAFKA = "aborting kafka"
    COMMITTING_DATABASE_ALONE = "committing database alone"
    ROLLING_BACK_DATABASE_ALONE = "rolling back database alone"
    LEAVING_COMMIT = "leaving the kafka commit to recovery"
    LEAVING_ABORT = "leaving the kafka abort to recovery"
    LEAVING_DOUBT = "leaving the decision to recovery"
    SUCCEEDED = "succeeded"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    DATABASE_FAILED = "database failed"

    __hash__ = object.__hash__


TRANSITIONS: Mapping[UnitState, Mapping[Event, UnitState]] = MappingProxyType(
    {
        UnitState.NEW: {Event.BEGIN: UnitState.BEGINNING_DATABASE},
        UnitState.BEGINNING_DATABASE: {
            Event.DONE: UnitState.RUNNING,
            Event.FAILED: UnitState.ROLLING_BACK_DATABASE_ALONE,
        },
        UnitState.RUNNING: {
            Event.PRODUCE: UnitState.BEGINNING_KAFKA,
            Event.LEFT: UnitState.COMMITTING_DATABASE_ALONE,
            Event.RAISED: UnitState.ROLLING_BACK_DATABASE_ALONE,
        },
        # The user's code may swallow the error of its first produce: it runs on, but the unit is rolled back.
        UnitState.BEGINNING_KAFKA: {Event.DONE: UnitState.PRODUCING, Event.FAILED: UnitState.DOOMED},
        UnitState.DOOMED: {Event.LEFT: UnitState.ROLLING_BACK_DATABASE, Event.RAISED: UnitState.ROLLING_BACK_DATABASE},
        UnitState.PRODUCING: {Event.LEFT: UnitState.PREPARING_KAFKA, Event.RAISED: UnitState.ROLLING_BACK_DATABASE},
        UnitState.PREPARING_KAFKA: {Event.DONE: UnitState.STORING_STATE, Event.FAILED: UnitState.ROLLING_BACK_DATABASE},
        UnitState.STORING_STATE: {
            Event.DONE: UnitState.COMMITTING_DATABASE,
            Event.FAILED: UnitState.ROLLING_BACK_DATABASE,
        },
        UnitState.COMMITTING_DATABASE: {
            Event.DONE: UnitState.COMMITTING_KAFKA,
            Event.FAILED: UnitState.READING_DECISION,
        },
        UnitState.READING_DECISION: {
            Event.COMMITTED: UnitState.COMMITTING_KAFKA,
            Event.NOT_COMMITTED: UnitState.ABORTING_KAFKA,
            Event.FAILED: UnitState.LEAVING_DOUBT,
        },
        UnitState.COMMITTING_KAFKA: {Event.DONE: UnitState.SUCCEEDED, Event.FAILED: UnitState.LEAVING_COMMIT},
        # The database first: it holds locks that others wait for, and an abort may take long. Either order is safe, as
        # the row says nothing of this unit. Neither failure keeps the other from being tried, and none is tried twice.
        UnitState.ROLLING_BACK_DATABASE: {Event.DONE: UnitState.ABORTING_KAFKA, Event.FAILED: UnitState.ABORTING_KAFKA},
        UnitState.ABORTING_KAFKA: {Event.DONE: UnitState.ROLLED_BACK, Event.FAILED: UnitState.LEAVING_ABORT},
        UnitState.COMMITTING_DATABASE_ALONE: {Event.DONE: UnitState.SUCCEEDED, Event.FAILED: UnitState.DATABASE_FAILED},
        UnitState.ROLLING_BACK_DATABASE_ALONE: {Event.DONE: UnitState.ROLLED_BACK, Event.FAILED: UnitState.ROLLED_BACK},
        # Recovery does not depend on being announced: the next use begins with it anyhow.
        UnitState.LEAVING_COMMIT: {Event.DONE: UnitState.SUCCEEDED, Event.FAILED: UnitState.SUCCEEDED},
        UnitState.LEAVING_ABORT: {Event.DONE: UnitState.ROLLED_BACK, Event.FAILED: UnitState.ROLLED_BACK},
        UnitState.LEAVING_DOUBT: {Event.DONE: UnitState.IN_DOUBT, Event.FAILED: UnitState.IN_DOUBT},
        UnitState.SUCCEEDED: {},
        UnitState.ROLLED_BACK: {},
        UnitState.IN_DOUBT: {},
        UnitState.DATABASE_FAILED: {},
    }
)

STEPS: Mapping[UnitState, Step] = MappingProxyType(
    {
        UnitState.BEGINNING_DATABASE: Step.BEGIN_DATABASE,
        UnitState.RUNNING: Step.RUN,
        UnitState.BEGINNING_KAFKA: Step.BEGIN_KAFKA,
        UnitState.PRODUCING: Step.RUN,
        UnitState.DOOMED: Step.RUN,
        UnitState.PREPARING_KAFKA: Step.PREPARE_KAFKA,
        UnitState.STORING_STATE: Step.STORE_STATE,
        UnitState.COMMITTING_DATABASE: Step.COMMIT_DATABASE,
        UnitState.READING_DECISION: Step.READ_DECISION,
        UnitState.COMMITTING_KAFKA: Step.COMMIT_KAFKA,
        UnitState.ROLLING_BACK_DATABASE: Step.ROLLBACK_DATABASE,
        UnitState.ABORTING_KAFKA: Step.ABORT_KAFKA,
        UnitState.COMMITTING_DATABASE_ALONE: Step.COMMIT_DATABASE,
        UnitState.ROLLING_BACK_DATABASE_ALONE: Step.ROLLBACK_DATABASE,
        UnitState.LEAVING_COMMIT: Step.FINISH_LATER,
        UnitState.LEAVING_ABORT: Step.FINISH_LATER,
        UnitState.LEAVING_DOUBT: Step.FINISH_LATER,
    }
)

RESULTS: Mapping[UnitState, Result] = MappingProxyType(
    {
        UnitState.SUCCEEDED: Result.SUCCEEDED,
        UnitState.ROLLED_BACK: Result.ROLLED_BACK,
        UnitState.IN_DOUBT: Result.IN_DOUBT,
        UnitState.DATABASE_FAILED: Result.DATABASE_FAILED,
    }
)


def decide(state: UnitState, event: Event) -> UnitState:
    """The state after ``event``; STEPS has the driver's step in it, RESULTS how the unit of work ended.

    :raises InvalidTransactionStateError: if ``event`` cannot happen in ``state``: a method was called out of order.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InvalidTransactionStateError(
            f"this unit of work is {state.value!r}; in that state it is not possible that {event.value}"
        ) from None


class DualWriteMachine:
    """The state of one unit of work, and the first error that prevented its success."""

    def __init__(self) -> None:
        self.state = UnitState.NEW
        self.error: BaseException | None = None

    @property
    def step(self) -> Step | None:
        """The step in progress; None before the beginning and after the end."""
        return STEPS.get(self.state)

    @property
    def result(self) -> Result | None:
        """How the unit of work ended; None while it runs."""
        return RESULTS.get(self.state)

    @property
    def in_user_code(self) -> bool:
        """True while the user's code may still act on the unit of work."""
        return self.step is Step.RUN

    def advance(self, event: Event, error: BaseException | None = None) -> None:
        """Process ``event``, with its error.

        :raises InvalidTransactionStateError: if ``event`` cannot happen now; the state stays as it was.
        """
        state = decide(self.state, event)
        if self.error is None:
            self.error = error
        self.state = state  # last: after an interrupt before it, the event is processed again
