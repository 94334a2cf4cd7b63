"""Exhaustive search of the machine in a small world: every step may fail before or after its effect, or kill.

After recovery both sides must be equal, whatever happened, and what the caller was told must be true. Broken machines
show that the search would notice.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from dualwrite.coordinator.rules import machine as machine_module
from dualwrite.coordinator.rules.machine import TRANSITIONS, DualWriteMachine, Event, Result, Step, UnitState
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision, verdict
from dualwrite.ids import Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity, TopicPartition
from tests.support.state_search import Chooser, every_run

PARTITION = TopicPartition("t", 0)
PRODUCER = ProducerIdentity(1, 0)
PREVIOUS = PreparedTxnState(PRODUCER, Anchor.of(PARTITION, 0))
OURS = PreparedTxnState(PRODUCER, Anchor.of(PARTITION, 5))
EVERY_COMBINATION = len(Step) + 2  # no path is longer
QUIET, BEFORE, AFTER, KILLED_BEFORE, KILLED_AFTER = range(5)


class MachineKilledError(Exception):
    """The process is gone."""


class MachineWorld:
    """One unit of work on either side: what is durable, and what is open."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.row, self.row_in_transaction = PREVIOUS, PREVIOUS
        self.database_open = self.in_database = False
        self.kafka_open = self.in_kafka = self.kafka_aborted = False

    def perform(self, step: Step) -> Event:
        fault = self.chooser.choose(5)
        if fault is BEFORE:
            return Event.FAILED
        if fault is KILLED_BEFORE:
            raise MachineKilledError
        event = self.effect(step)
        if fault is KILLED_AFTER:
            raise MachineKilledError
        return Event.FAILED if fault is AFTER else event

    def effect(self, step: Step) -> Event:
        if step is Step.BEGIN_DATABASE:
            self.database_open = True
        elif step is Step.BEGIN_KAFKA:
            self.kafka_open = True
        elif step is Step.STORE_STATE:
            self.row_in_transaction = OURS
        elif step is Step.COMMIT_DATABASE:
            self.row, self.in_database, self.database_open = self.row_in_transaction, True, False
        elif step is Step.ROLLBACK_DATABASE:
            self.database_open = False
        elif step is Step.COMMIT_KAFKA:
            self.in_kafka, self.kafka_open = self.kafka_open, False
        elif step is Step.ABORT_KAFKA:
            self.kafka_aborted, self.kafka_open = self.kafka_open, False
        elif step is Step.READ_DECISION:
            self.database_open = False
            return Event.COMMITTED if self.row == OURS else Event.NOT_COMMITTED
        return Event.DONE

    def recover(self) -> None:
        self.database_open = False
        decided = verdict(self.row, OngoingTransaction(PRODUCER, {PARTITION: 5}) if self.kafka_open else None)
        if decided is not RecoveryDecision.NOTHING:
            self.in_kafka, self.kafka_open = decided is RecoveryDecision.COMMIT, False


def live(machine: DualWriteMachine, world: MachineWorld, *, produces: bool) -> None:
    """The unit of work until its end, or until it is killed."""
    machine.advance(Event.BEGIN)
    produced = False
    while machine.result is None:
        if machine.step is not Step.RUN:
            assert machine.step is not None
            machine.advance(world.perform(machine.step))
        elif produces and not produced:
            produced = True
            machine.advance(Event.PRODUCE)
        else:
            machine.advance((Event.LEFT, Event.RAISED)[world.chooser.choose(2)])


def search(*, produces: bool = True) -> Counter[Result | None]:
    """How often each end was reached; an AssertionError if an invariant broke."""
    ends: Counter[Result | None] = Counter()

    def scenario(chooser: Chooser) -> None:
        machine, world = DualWriteMachine(), MachineWorld(chooser)
        try:
            live(machine, world, produces=produces)
        except MachineKilledError:
            pass
        else:
            check_promise(machine, world)
        world.recover()
        ends[machine.result] += 1
        if produces:
            assert world.in_database == world.in_kafka, "torn transaction"
            assert not (world.in_kafka and world.kafka_aborted), "aborted read"

    every_run(scenario, faults=EVERY_COMBINATION)
    return ends


def check_promise(machine: DualWriteMachine, world: MachineWorld) -> None:
    """What the caller is told, while nobody has recovered yet."""
    assert not world.database_open or machine.error is None
    if machine.result is Result.SUCCEEDED:
        assert world.in_database
    if machine.result is Result.ROLLED_BACK:
        assert not world.in_database
        assert not world.in_kafka


def test_after_recovery_both_sides_are_equal_whatever_failed() -> None:
    ends = search()
    # None is a killed process. Each of the ends must have been met, or the search proved nothing about it.
    assert set(ends) == {None, Result.SUCCEEDED, Result.ROLLED_BACK, Result.IN_DOUBT}
    assert sum(ends.values()) > 300


def test_a_unit_that_produces_nothing_ends_as_its_database_does() -> None:
    ends = search(produces=False)
    assert set(ends) == {None, Result.SUCCEEDED, Result.ROLLED_BACK, Result.DATABASE_FAILED}


def change(state: UnitState, event: Event, to: UnitState) -> Mapping[UnitState, Mapping[Event, UnitState]]:
    return MappingProxyType({**TRANSITIONS, state: {**TRANSITIONS[state], event: to}})


@pytest.mark.parametrize(
    ("state", "event", "to"),
    [
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.ROLLING_BACK_DATABASE),  # guess: it was not committed
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.COMMITTING_KAFKA),  # guess: it was
        (UnitState.READING_DECISION, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.READING_DECISION, Event.COMMITTED, UnitState.ABORTING_KAFKA),
        (UnitState.READING_DECISION, Event.NOT_COMMITTED, UnitState.COMMITTING_KAFKA),
        (UnitState.PREPARING_KAFKA, Event.DONE, UnitState.COMMITTING_DATABASE),  # the state is never stored
        (UnitState.COMMITTING_KAFKA, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.STORING_STATE, Event.DONE, UnitState.COMMITTING_KAFKA),  # Kafka before the decision
        (UnitState.READING_DECISION, Event.FAILED, UnitState.LEAVING_ABORT),  # an unknown outcome reported as known
        (UnitState.STORING_STATE, Event.FAILED, UnitState.COMMITTING_DATABASE),
    ],
)
def test_the_search_notices_a_broken_recipe(
    monkeypatch: pytest.MonkeyPatch, state: UnitState, event: Event, to: UnitState
) -> None:
    monkeypatch.setattr(machine_module, "TRANSITIONS", change(state, event, to))
    with pytest.raises(AssertionError, match="with the faults"):
        search()
