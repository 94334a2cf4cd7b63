"""Writes docs/reference/failures.md from the machine of the dual write: what happens when which step fails.

``python docs/draw_failures.py`` does it. A test compares the page with what this would write.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dualwrite.coordinator.rules.machine import RESULTS, STEPS, TRANSITIONS, Event, Result, Step, UnitState

PAGE = Path(__file__).parent / "reference" / "failures.md"


class Decision(Enum):
    """The database's COMMIT, as it is known in a state."""

    NOT_TRIED = "in neither: the database rolls back what was not committed"
    TRIED = "in both or in neither, as the state row says"
    MADE = "in both"
    REFUSED = "in neither"


@dataclass(frozen=True)
class Known:
    """The state of both sides when a state is entered."""

    decision: Decision
    kafka_was_begun: bool


OUTCOMES = {
    Result.SUCCEEDED: "**in both**, and no error",
    Result.ROLLED_BACK: "**in neither**, and the caller gets the error",
    Result.IN_DOUBT: "**in both or in neither**: InDoubtError; recovery finds out which",
    Result.DATABASE_FAILED: "the caller gets the database's error; there were no records",
}


def known_of_all() -> dict[UnitState, set[Known]]:
    """For each state, the ways in which it can be reached: a walk through every transition."""
    found: dict[UnitState, set[Known]] = {}
    todo = [(UnitState.NEW, Known(Decision.NOT_TRIED, kafka_was_begun=False))]
    while todo:
        state, known = todo.pop()
        if known in found.setdefault(state, set()):
            continue
        found[state].add(known)
        for event, following in TRANSITIONS[state].items():
            todo.append((following, _after(state, event, following, known)))
    return found


def _after(state: UnitState, event: Event, following: UnitState, known: Known) -> Known:
    decision = known.decision
    if STEPS.get(state) is Step.COMMIT_DATABASE and event is Event.DONE:
        decision = Decision.MADE
    elif event in (Event.COMMITTED, Event.NOT_COMMITTED):
        decision = Decision.MADE if event is Event.COMMITTED else Decision.REFUSED
    elif STEPS.get(following) is Step.COMMIT_DATABASE:
        decision = Decision.TRIED
    return Known(decision, known.kafka_was_begun or STEPS.get(following) is Step.BEGIN_KAFKA)


def then(state: UnitState) -> str:
    """The steps and the outcome after ``state``, if no other step fails."""
    if state in RESULTS:
        return OUTCOMES[RESULTS[state]]
    step = STEPS[state].value
    if STEPS[state] is Step.RUN:
        return f"the block goes on, and each further produce() raises; at its end: {then(_next(state, Event.LEFT))}"
    ways = TRANSITIONS[state]
    if Event.COMMITTED in ways:
        yes, no = then(ways[Event.COMMITTED]), then(ways[Event.NOT_COMMITTED])
        return f"{step}. If it does: {yes}. If not: {no}"
    return f"{step}; {then(_next(state, Event.DONE))}"


def _next(state: UnitState, event: Event) -> UnitState:
    return TRANSITIONS[state][event]


def dies(known: Known) -> str:
    """The state of both sides if the application dies, and the action of recovery."""
    if not known.kafka_was_begun:
        if known.decision is Decision.TRIED:
            return "the database has committed, or has not; there are no records"
        if known.decision is Decision.MADE:
            return "in the database; there are no records"
        return f"{known.decision.value}, and Kafka has no transaction"
    if known.decision is Decision.TRIED:
        return (
            f"{known.decision.value}: recovery waits for the row's lock, and then commits Kafka if the row has this "
            "unit's state, and aborts Kafka if not"
        )
    return f"{known.decision.value}; recovery {'commits' if known.decision is Decision.MADE else 'aborts'} Kafka"


def rows() -> Iterator[str]:
    """A row for each state that has a step, in the machine's order."""
    found = known_of_all()
    for state, step in STEPS.items():
        failed = Event.RAISED if step is Step.RUN else Event.FAILED
        left = " *or* ".join(sorted({dies(known) for known in found[state]}))
        yield f"| {state.value} | {step.value} | {then(_next(state, failed))} | {left} |"


def failures_page() -> str:
    """The page."""
    return "\n".join([_HEAD, *rows(), "", _REST])


_HEAD = """# What happens when something fails

Drawn by `python docs/draw_failures.py` from `coordinator/rules/machine.py`; a test compares.

A unit of work is in one of these states. In each state two things can happen:

- Its step fails: the database or Kafka cannot be reached, refuses, or does not answer in time. The death of a broker or
  of a database counts as a failed step; after its restart it still has everything that it had acknowledged.
- The application dies: SIGKILL, a power cut, the loss of its machine.

The third column assumes that no second step fails. If one does, the row of that step applies.

| state | step | if the step fails | if the application dies in this state |
|---|---|---|---|"""

_REST = """## While recovery runs

Recovery can also fail, or its process can die, at each step. The next process then runs recovery again, and finds the
same decision.

| step | what it does | after the step |
|---|---|---|
| `RECOVER_TAKE_OVER` | raises the row's fencing token | a write with the former owner's token matches no row |
| `RECOVER_LOCK` | locks the row; waits for a COMMIT in progress | no process can take over, and no unit can commit |
| `RECOVER_FENCE_KAFKA` | InitProducerId with keepPreparedTxn | the former producer is fenced; its transaction is kept |
| (check, without a name) | reads the fencing token again, over the connection that holds the lock. If the lock or the \
token was lost, recovery stops | the open transaction is not a successor's |
| `RECOVER_COMPLETE` | compares the open transaction with the row; commits or aborts it | both sides have ended alike |
| `RECOVER_INIT` | reads the token again, and makes a producer for the next unit of work | the slot is ready |
| `RECOVER_RECORD` | only if the log proves that the sides ended differently: puts that on record, in place of \
`RECOVER_INIT` | recovery begins again |

Recovery cannot repair a side that was ended by hand or restored: a transaction that an operator aborted, a cluster or a
database that was set back to an older copy. Recovery finds the difference, and [puts it on record](../outcomes.md).
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(failures_page())


if __name__ == "__main__":
    main()
