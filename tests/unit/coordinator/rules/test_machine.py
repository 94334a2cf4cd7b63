"""The machine's table: what is legal, what is reachable, and what no path ever does."""

from collections.abc import Iterator

import pytest

from dualwrite.coordinator.rules.machine import (
    RESULTS,
    STEPS,
    TRANSITIONS,
    DualWriteMachine,
    Event,
    Result,
    Step,
    UnitState,
    decide,
)
from dualwrite.errors import InvalidTransactionStateError

Path = tuple[tuple[UnitState, Event], ...]


def every_path(state: UnitState = UnitState.NEW, path: Path = ()) -> Iterator[tuple[Path, UnitState]]:
    """Every way from ``state`` to an end. The table has no cycle, or this would not return."""
    if state in RESULTS:
        yield path, state
    for event, following in TRANSITIONS[state].items():
        yield from every_path(following, (*path, (state, event)))


def steps(path: Path) -> list[Step]:
    return [STEPS[state] for state, _ in path if state in STEPS]


def run(*events: Event) -> DualWriteMachine:
    machine = DualWriteMachine()
    for event in events:
        machine.advance(event)
    return machine


PATHS = list(every_path())


@pytest.mark.parametrize("state", UnitState)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_state_is_in_the_table_or_refused(state: UnitState, event: Event) -> None:
    if event in TRANSITIONS[state]:
        assert decide(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(InvalidTransactionStateError, match=state.value):
            decide(state, event)


def test_each_state_is_a_step_or_an_end_or_the_beginning() -> None:
    for state in UnitState:
        assert [state in STEPS, state in RESULTS, state is UnitState.NEW].count(True) == 1, state
        assert bool(TRANSITIONS[state]) is (state not in RESULTS), state


def test_every_state_is_reachable_and_every_result_is_reached() -> None:
    seen = {state for path, _ in PATHS for state, _ in path} | {end for _, end in PATHS}
    assert seen == set(UnitState)
    assert {RESULTS[end] for _, end in PATHS} == set(Result)
    assert {step for path, _ in PATHS for step in steps(path)} == set(Step)


def test_a_step_that_can_succeed_can_fail() -> None:
    for state, row in TRANSITIONS.items():
        if Event.DONE in row:
            assert Event.FAILED in row, state
        if STEPS.get(state) is Step.RUN:
            assert {Event.LEFT, Event.RAISED} <= set(row), state


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.RUN])
def test_no_step_is_ever_tried_twice(step: Step) -> None:
    assert max(steps(path).count(step) for path, _ in PATHS) == 1


def test_the_decision_is_taken_only_with_kafka_prepared_and_the_state_stored() -> None:
    for path, _ in PATHS:
        taken = steps(path)
        if Step.COMMIT_DATABASE in taken and Step.BEGIN_KAFKA in taken:
            before = taken[: taken.index(Step.COMMIT_DATABASE)]
            assert before[-2:] == [Step.PREPARE_KAFKA, Step.STORE_STATE]
            assert (UnitState.STORING_STATE, Event.DONE) in path
            assert (UnitState.PREPARING_KAFKA, Event.DONE) in path


def test_kafka_is_committed_only_after_a_decision_that_is_known() -> None:
    known = {(UnitState.COMMITTING_DATABASE, Event.DONE), (UnitState.READING_DECISION, Event.COMMITTED)}
    for path, _ in PATHS:
        if Step.COMMIT_KAFKA in steps(path):
            assert path[[state for state, _ in path].index(UnitState.COMMITTING_KAFKA) - 1] in known


def test_after_the_decision_kafka_is_aborted_only_if_the_row_shows_no_commit() -> None:
    for path, _ in PATHS:
        taken = steps(path)
        if Step.COMMIT_DATABASE in taken and Step.ABORT_KAFKA in taken:
            assert path[taken.index(Step.ABORT_KAFKA)] == (UnitState.READING_DECISION, Event.NOT_COMMITTED)


def test_a_unit_that_produced_nothing_touches_neither_kafka_nor_the_state_row() -> None:
    of_kafka = {Step.PREPARE_KAFKA, Step.STORE_STATE, Step.COMMIT_KAFKA, Step.ABORT_KAFKA, Step.FINISH_LATER}
    quiet = [path for path, _ in PATHS if Step.BEGIN_KAFKA not in steps(path)]
    assert quiet
    assert all(of_kafka.isdisjoint(steps(path)) for path in quiet)


def test_a_failure_before_the_decision_undoes_both_sides_whatever_the_other_does() -> None:
    for failing in (UnitState.BEGINNING_KAFKA, UnitState.PREPARING_KAFKA, UnitState.STORING_STATE):
        hit = [path for path, _ in PATHS if (failing, Event.FAILED) in path]
        assert hit
        assert all({Step.ROLLBACK_DATABASE, Step.ABORT_KAFKA} <= set(steps(path)) for path in hit)


def test_an_unfinished_kafka_side_is_always_left_to_recovery() -> None:
    for path, _ in PATHS:
        unfinished = {
            (UnitState.COMMITTING_KAFKA, Event.FAILED),
            (UnitState.ABORTING_KAFKA, Event.FAILED),
            (UnitState.READING_DECISION, Event.FAILED),
        }
        assert (Step.FINISH_LATER in steps(path)) is not unfinished.isdisjoint(path)


def test_the_decision_stands_whatever_happens_to_the_kafka_commit() -> None:
    for path, end in PATHS:
        if (UnitState.COMMITTING_DATABASE, Event.DONE) in path:
            assert RESULTS[end] is Result.SUCCEEDED


def test_the_first_error_is_kept() -> None:
    machine = run(Event.BEGIN, Event.DONE, Event.PRODUCE, Event.DONE)
    first, second = ValueError("first"), ValueError("second")
    machine.advance(Event.RAISED, first)
    machine.advance(Event.FAILED, second)
    machine.advance(Event.FAILED, second)
    assert machine.error is first
    assert machine.step is Step.FINISH_LATER
    assert machine.result is None


def test_a_refused_event_leaves_the_machine_as_it_was() -> None:
    machine = run(Event.BEGIN, Event.DONE)
    with pytest.raises(InvalidTransactionStateError):
        machine.advance(Event.COMMITTED, ValueError("no"))
    assert machine.state is UnitState.RUNNING
    assert machine.error is None


def test_user_code_runs_only_between_the_beginning_and_the_end() -> None:
    assert not run().in_user_code
    assert run(Event.BEGIN, Event.DONE).in_user_code
    assert run(Event.BEGIN, Event.DONE, Event.PRODUCE, Event.FAILED).in_user_code
    assert not run(Event.BEGIN, Event.DONE, Event.PRODUCE, Event.DONE, Event.LEFT).in_user_code


def test_the_plain_way_in_full() -> None:
    machine = DualWriteMachine()
    taken = []
    happens = [Event.BEGIN, Event.DONE, Event.PRODUCE, Event.DONE, Event.LEFT, *[Event.DONE] * 4]
    for event in happens:
        machine.advance(event)
        taken.append(machine.step)
    assert taken == [
        Step.BEGIN_DATABASE,
        Step.RUN,
        Step.BEGIN_KAFKA,
        Step.RUN,
        Step.PREPARE_KAFKA,
        Step.STORE_STATE,
        Step.COMMIT_DATABASE,
        Step.COMMIT_KAFKA,
        None,
    ]
    assert machine.result is Result.SUCCEEDED
