"""A slot whose recovery goes on in a thread after its user was cancelled, while another user takes the slot."""

from collections.abc import Callable

import pytest

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.slot import Counters, Slot
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import FakeKafka

Repair = Callable[[Slot], Outcome | None]


@pytest.fixture
def make_slot(dual_write: DualWrite, kafka: FakeKafka) -> Callable[[Repair], Slot]:
    manager = manager_of(dual_write)

    def make(repair: Repair) -> Slot:
        user = object()
        lease = manager.process.pool.acquire(user).lease
        manager.process.pool.release(user)
        counters = Counters(THIS_PROCESS.lock())
        return Slot(
            THIS_PROCESS, lease, manager.store, kafka.participant, counters, lambda: None, lambda step: None, repair
        )

    return make


def test_a_slot_is_not_warm_until_its_recovery_has_returned(make_slot: Callable[[Repair], Slot]) -> None:
    during: list[bool] = []

    def repair(slot: Slot) -> None:
        during.append(slot.is_warm)

    slot = make_slot(repair)
    slot.recover()
    assert during == [False]
    assert slot.is_warm


def test_a_recovery_for_a_cancelled_user_leaves_the_next_users_participant_open(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(lambda slot: None)
    cancelled, slot.user = object(), object()
    slot.recover(slot.user)
    participant = slot.lend()
    participant.begin_transaction()
    requests = list(kafka.requests)
    assert slot.recover(cancelled) is Outcome.NOTHING
    assert kafka.requests == requests
    participant.produce(OutgoingRecord("events", "one"))
    participant.prepare_transaction()
    participant.commit_transaction()
    assert kafka.committed == ["one"]


def test_a_repair_that_raised_is_repeated_before_the_slot_is_warm(make_slot: Callable[[Repair], Slot]) -> None:
    attempts: list[bool] = []

    def repair(slot: Slot) -> None:
        attempts.append(slot.is_warm)
        if len(attempts) == 1:
            raise ConnectionError("the database is down")

    slot = make_slot(repair)
    with pytest.raises(ConnectionError, match="the database is down"):
        slot.recover()
    assert not slot.is_warm
    slot.recover()
    assert attempts == [False, False]
    assert slot.is_warm
