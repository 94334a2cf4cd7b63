"""The machine of a unit of work in a small world: every step may fail before or after its effect, or kill.

After recovery both sides must be equal, whatever happened, and what the caller was told must be true.
"""

from contextlib import nullcontext

from dualwrite.coordinator.rules import recovery_decision
from dualwrite.coordinator.rules.machine import DualWriteMachine, Event, Result, Step
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.ids import Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity, TopicPartition
from tests.support.exhaustive.histories import Chooser, HistoryModel

PARTITION = TopicPartition("t", 0)
PRODUCER = ProducerIdentity(1, 0)
PREVIOUS = PreparedTxnState(PRODUCER, Anchor.of(PARTITION, 0))
OURS = PreparedTxnState(PRODUCER, Anchor.of(PARTITION, 5))
KILLED = "killed"
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
        decided = recovery_decision.verdict(
            self.row, OngoingTransaction(PRODUCER, {PARTITION: 5}) if self.kafka_open else None
        )
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


def machine_scenario(chooser: Chooser, *, produces: bool) -> str:
    """One unit of work, and recovery after it; how it ended for its caller."""
    machine, world = DualWriteMachine(), MachineWorld(chooser)
    try:
        live(machine, world, produces=produces)
    except MachineKilledError:
        pass
    else:
        check_promise(machine, world)
    world.recover()
    if produces:
        assert world.in_database == world.in_kafka, "torn transaction"
        assert not (world.in_kafka and world.kafka_aborted), "aborted read"
    return KILLED if machine.result is None else machine.result.name


def check_promise(machine: DualWriteMachine, world: MachineWorld) -> None:
    """What the caller is told, while nobody has recovered yet."""
    assert not world.database_open or machine.error is None
    if machine.result is Result.SUCCEEDED:
        assert world.in_database
    if machine.result is Result.ROLLED_BACK:
        assert not world.in_database
        assert not world.in_kafka


def machine_model() -> HistoryModel:
    """The model, of a unit of work that produces."""

    def scenario(chooser: Chooser) -> tuple[str]:
        return (machine_scenario(chooser, produces=True),)

    return HistoryModel(
        name="machine",
        about="one unit of work, each step of which may fail or kill, and recovery",
        opened=lambda: nullcontext(scenario),
        asserted=("both sides are equal after recovery", "no aborted read", "what the caller was told is true"),
        events=(KILLED, Result.SUCCEEDED.name, Result.ROLLED_BACK.name, Result.IN_DOUBT.name),
        least=3,
    )
