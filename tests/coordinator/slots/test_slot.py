"""One slot by itself: its recovery, its participant, and what comes after its close or its loss."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS, ThisProcess
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.slot import Counters, Slot
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import FencedError, InvalidTransactionStateError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.waiting import PATIENCE_SECONDS, eventually

Repair = Callable[[Slot], Outcome | None]


@pytest.fixture
def make_slot(dual_write: DualWrite, kafka: FakeKafka) -> Callable[..., Slot]:
    manager = manager_of(dual_write)

    def make(repair: Repair, runtime: Runtime = THIS_PROCESS) -> Slot:
        user = object()
        lease = manager.process.pool.acquire(user).lease
        manager.process.pool.release(user)
        counters = Counters(THIS_PROCESS.lock())
        return Slot(runtime, lease, manager.store, kafka.participant, counters, lambda: None, lambda step: None, repair)

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


def nothing_to_repair(_: Slot) -> None:
    """The usual repair."""


class SeenLocks(ThisProcess):
    """Its locks report a thread that has to wait for one.

    :param report: is called by that thread.
    """

    def __init__(self, report: Callable[[], object]) -> None:
        self._report = report

    def lock(self) -> Any:  # type: ignore[override]
        lock, report = threading.Lock(), self._report

        class Seen:
            def __enter__(self) -> None:
                if not lock.acquire(blocking=False):
                    report()
                    lock.acquire()

            def __exit__(self, *_: object) -> None:
                lock.release()

        return Seen()


def test_a_second_recovery_waits_for_the_first_and_finds_the_slot_ready(
    make_slot: Callable[..., Slot], kafka: FakeKafka
) -> None:
    met = threading.Event()
    threads: list[threading.Thread] = []

    def repair(slot: Slot) -> None:
        if threads:
            met.set()
            return
        threads.append(threading.Thread(target=slot.recover, daemon=True))
        threads[0].start()
        assert met.wait(PATIENCE_SECONDS)

    make_slot(repair, SeenLocks(met.set)).recover()
    threads[0].join(PATIENCE_SECONDS)
    assert kafka.requests.count("init-keep") == 1
    assert kafka.open_participants() == 1


def test_a_recovery_that_ends_after_the_close_leaves_no_participant_open(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(nothing_to_repair)

    def close_before(request: str) -> None:
        if request == "init":
            slot.close(0)

    kafka.before_effect = close_before
    slot.recover()
    assert kafka.open_participants() == 0


def test_a_closed_slot_is_not_recovered(make_slot: Callable[..., Slot], kafka: FakeKafka) -> None:
    slot = make_slot(nothing_to_repair)
    slot.close(0)
    requests = list(kafka.requests)
    with pytest.raises(InvalidTransactionStateError, match="is closed"):
        slot.recover()
    assert kafka.requests == requests


def test_a_participant_that_comes_back_after_the_close_is_closed(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(nothing_to_repair)
    slot.recover()
    participant = slot.lend()
    slot.close(0)
    assert kafka.open_participants() == 1
    slot.give_back(participant)
    assert kafka.open_participants() == 0


def test_a_participant_that_did_not_come_back_is_closed_before_another_is_made(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(nothing_to_repair)
    slot.recover()
    slot.lend()
    slot.recover()
    assert kafka.open_participants() == 1


def test_a_recovery_that_finds_the_lease_lost_gives_the_slot_up(
    make_slot: Callable[[Repair], Slot], sqlite_engine: Engine
) -> None:
    slot = make_slot(nothing_to_repair)
    with sqlite_engine.begin() as connection:
        connection.execute(update(table).values(fencing_token=table.c.fencing_token + 1))
    with pytest.raises(LeaseLostError):
        slot.recover()
    assert slot.is_fenced


def test_a_lost_slot_is_not_recovered_in_the_background(make_slot: Callable[[Repair], Slot]) -> None:
    slot = make_slot(nothing_to_repair)
    slot.fence(FencedError("another process has it"))
    slot.finish_later()
    assert not slot.is_busy


def test_an_answer_to_a_commit_that_comes_after_the_close_leaves_no_participant_open(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(nothing_to_repair)
    slot.recover()
    kafka.is_slow = lambda: True
    participant = slot.lend()
    participant.begin_transaction()
    participant.produce(OutgoingRecord("events", b"one"))
    kafka.participants[-1].send_commit()
    slot.give_back(participant)

    def close_before(request: str) -> None:
        if request == "collect":
            slot.close(0)

    kafka.before_effect = close_before
    slot.complete_later()
    assert not eventually(lambda: slot.is_busy, lambda is_busy: not is_busy)
    assert (kafka.open_participants(), kafka.committed, slot.is_unfinished) == (0, ["one"], True)


def test_a_slot_that_was_lost_before_its_commit_was_answered_counts_as_unfinished(
    make_slot: Callable[[Repair], Slot], kafka: FakeKafka
) -> None:
    slot = make_slot(lambda slot: None)
    slot.recover()
    kafka.is_slow = lambda: True
    participant = slot.lend()
    participant.begin_transaction()
    participant.produce(OutgoingRecord("events", b"one"))
    kafka.participants[-1].send_commit()
    slot.give_back(participant)
    slot.fence(FencedError("another process has taken over"))
    slot.complete_later()
    assert not slot.is_busy, "its new owner completes it"
    assert not slot.close(0), "it needs recovery"
    assert (slot.is_unfinished, kafka.committed, kafka.open_participants()) == (True, [], 0)
