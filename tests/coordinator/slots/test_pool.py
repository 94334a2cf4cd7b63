"""The pool: which slot a unit of work gets, how long it waits, and how lost leases are handled."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.slots import pool as pools
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.coordinator.slots.usage import PoolSettings
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.errors import (
    ConfigurationError,
    FencedError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    NoFreeSlotError,
)
from tests.support.coordinator.memory_leases import MemoryLeases
from tests.support.coordinator.memory_pools import (
    LONG,
    FullRuntime,
    PoolWorld,
    until_waiting,
    used,
    world,
)

__all__ = ["world"]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


# What a unit of work gets.


class CountedSlot(Slot):
    """Counts how often the pool looks whether a slot could be used, or was lost."""

    looks = 0

    @property
    def is_busy(self) -> bool:
        CountedSlot.looks += 1
        return super().is_busy

    @property
    def is_fenced(self) -> bool:
        CountedSlot.looks += 1
        return super().is_fenced


def test_a_unit_looks_at_as_many_slots_in_a_large_pool_as_in_a_small_one(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "Slot", CountedSlot)
    looks: list[int] = []
    for owner, size in (("small", 2), ("large", 50)):
        world.leases = MemoryLeases()
        pool = world.pool(owner, size)
        for slot in [world.warm(pool.acquire(object())) for _ in range(size)]:
            pool.release(slot.user)
        CountedSlot.looks = 0
        unit = object()
        assert pool.acquire_now(unit) is not None
        pool.release(unit)
        looks.append(CountedSlot.looks)
    assert looks[0] == looks[1]


def test_one_unit_after_the_other_uses_one_slot_and_looks_at_the_rows_once(world: PoolWorld) -> None:
    pool = world.pool()
    assert {used(pool, world) for _ in range(5)} == {"a-0"}
    assert world.leases.looks == 1


def test_units_at_once_get_a_slot_each_and_those_used_last_are_used_again(world: PoolWorld) -> None:
    pool = world.pool(size=9)
    slots = [world.warm(pool.acquire(object())) for _ in range(3)]
    assert [slot.transactional_id for slot in slots] == ["a-0", "a-1", "a-2"]
    for slot in (slots[2], slots[0], slots[1]):
        pool.release(slot.user)
    assert pool.acquire(object()) is slots[1]
    assert pool.acquire(object()) is slots[0]
    assert pool.acquire(object()) is slots[2]


def test_a_warm_slot_goes_before_a_cold_one_and_a_cold_one_before_a_new_lease(world: PoolWorld) -> None:
    pool = world.pool(size=9)
    warm, cold = world.warm(pool.acquire(object())), pool.acquire(object())
    pool.release(warm.user)
    pool.release(cold.user)
    assert pool.acquire(object()) is warm
    assert pool.acquire(object()) is cold
    assert world.leases.owners() == {"a-0": "me", "a-1": "me"}


def test_a_slot_that_was_lost_goes_to_no_unit_before_the_pool_drops_it(world: PoolWorld) -> None:
    pool = world.pool()
    assert used(pool, world) == "a-0"
    (slot,) = pool.slots()
    slot.fence(FencedError("another process has taken it"))
    assert slot.is_warm
    assert pool.acquire_now(object()) is None
    assert used(pool, world) == "a-1"


def test_processes_share_the_slots_of_an_application(world: PoolWorld) -> None:
    assert used(world.pool("one"), world) == "a-0"
    assert used(world.pool("two"), world) == "a-1"
    with pytest.raises(NoFreeSlotError):
        world.pool("three", timeout=0).acquire(object())


def test_the_error_names_the_owners_their_lease_times_and_the_remedy(world: PoolWorld) -> None:
    other, pool = world.pool("web-1:17 boot 3 x", size=3), world.pool("me", size=3, timeout=0)
    for _ in range(2):
        other.acquire(object())
    pool.acquire(object())
    with pytest.raises(NoFreeSlotError) as raised:
        pool.acquire(object())
    assert str(raised.value) == (
        "no slot of application 'a' was free for 0 s; pool_size is 3, in use are a-2 by this process; a-0 by web-1:17, "
        "whose lease has 30 s left; a-1 by web-1:17, whose lease has 30 s left. Raise pool_size to the number of units "
        "of work that may run at once in all processes together"
    )
    assert raised.value.retriable


def test_the_error_names_no_more_than_five(world: PoolWorld) -> None:
    pool = world.pool(size=7, timeout=0)
    for _ in range(7):
        pool.acquire(object())
    with pytest.raises(NoFreeSlotError, match=r"a-4 by this process and 2 more\. Raise"):
        pool.acquire(object())


# Who waits.


def test_a_released_slot_goes_to_a_waiting_thread_at_once(world: PoolWorld, threads: ThreadPoolExecutor) -> None:
    pool = world.pool(size=1)
    slot = world.warm(pool.acquire(object()))
    waiting = threads.submit(used, pool, world)
    until_waiting(pool, 1)
    pool.release(slot.user)
    assert waiting.result(LONG) == "a-0"


def test_units_get_their_slots_in_the_order_in_which_they_came(world: PoolWorld, threads: ThreadPoolExecutor) -> None:
    pool, served = world.pool(size=1), []
    slot = world.warm(pool.acquire(object()))

    def unit(number: int) -> None:
        mine = pool.acquire(object())
        served.append(number)
        pool.release(mine.user)

    waiting: list[Future[None]] = []
    for number in range(6):
        waiting.append(threads.submit(unit, number))
        until_waiting(pool, number + 1)
    pool.release(slot.user)
    for future in waiting:
        future.result(LONG)
    assert served == list(range(6))


def test_a_slot_that_another_process_gives_back_is_noticed(
    world: PoolWorld, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_INTERVAL", 0.01)
    other, pool = world.pool("other", size=1), world.pool(size=1)
    used(other, world)
    waiting = threads.submit(used, pool, world)
    until_waiting(pool, 1)
    other.close(0)
    assert waiting.result(LONG) == "a-0"


def test_a_lease_that_runs_out_while_a_unit_waits_is_taken(
    world: PoolWorld, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_INTERVAL", 0.01)
    used(world.pool("other", size=1), world)
    pool = world.pool(size=1)
    waiting = threads.submit(used, pool, world)
    until_waiting(pool, 1)
    world.leases.now = 31
    assert waiting.result(LONG) == "a-0"
    assert world.leases.row("a-0").fencing_token == 2


def test_a_row_that_is_locked_is_waited_for_and_others_are_taken_meanwhile(world: PoolWorld) -> None:
    other, pool = world.pool("other"), world.pool(timeout=0.01)
    used(other, world)
    world.leases.now = 31
    world.leases.locked.add("a-0")
    assert used(pool, world) == "a-1"
    pool.acquire(object())
    with pytest.raises(NoFreeSlotError):
        pool.acquire(object())
    world.leases.locked.clear()
    assert pool.acquire(object()).transactional_id == "a-0"


def test_with_one_writer_units_of_a_process_take_turns_and_processes_have_a_slot_each(
    world: PoolWorld, threads: ThreadPoolExecutor
) -> None:
    pool, impatient = world.pool(size=9, one_writer=True), world.pool("other", size=9, timeout=0, one_writer=True)
    slot = world.warm(pool.acquire(object()))
    waiting = threads.submit(used, pool, world)
    until_waiting(pool, 1)
    looks = world.leases.looks
    impatient.acquire(object())
    with pytest.raises(NoFreeSlotError, match="the database writes for one unit of work at a time"):
        impatient.acquire(object())
    pool.release(slot.user)
    assert waiting.result(LONG) == "a-0"
    assert world.leases.looks == looks + 1, "a thread looked for rows that it may not use"
    assert world.leases.owners() == {"a-0": "me", "a-1": "other"}


def test_a_hundred_units_of_eight_threads_share_three_slots(world: PoolWorld, threads: ThreadPoolExecutor) -> None:
    pool = world.pool(size=3)
    in_use: set[str] = set()
    guard = threading.Lock()

    def unit(_: int) -> str:
        slot = pool.acquire(object())
        with guard:
            assert slot.transactional_id not in in_use, "two units use one slot"
            in_use.add(slot.transactional_id)
        if not slot.is_warm:
            world.warm(slot)
        with guard:
            in_use.remove(slot.transactional_id)
        pool.release(slot.user)
        return slot.transactional_id

    assert set(threads.map(unit, range(100))) <= {"a-0", "a-1", "a-2"}
    assert not any(slot.user for slot in pool.slots())


def test_a_user_releases_its_own_slot_only(world: PoolWorld, threads: ThreadPoolExecutor) -> None:
    pool = world.pool()
    others, user = threads.submit(pool.acquire, object()).result(), object()
    mine = pool.acquire(user)
    pool.release(user)
    pool.release(user)
    assert mine.user is None
    assert others.user is not None


# Leases that are lost.


def test_the_heartbeat_keeps_the_leases(world: PoolWorld) -> None:
    pool, other = world.pool(size=1), world.pool("other", size=1, timeout=0)
    used(pool, world)
    for now in range(20, 200, 20):
        world.leases.now = now
        pool.beat()
        with pytest.raises(NoFreeSlotError):
            other.acquire(object())


def test_a_lost_slot_is_dropped_after_its_use_and_another_is_leased(world: PoolWorld) -> None:
    pool, heir = world.pool(), world.pool("heir")
    slot = world.warm(pool.acquire(object()))
    world.leases.now = 31
    used(heir, world)
    pool.beat()
    assert slot.is_fenced
    with pytest.raises(FencedError, match="did not renew its lease in time"):
        slot.recover()
    participant = world.kafka.participants[0]
    assert not participant.closed, "the unit of work still uses it"
    pool.release(slot.user)
    assert participant.closed
    assert used(pool, world) == "a-1"
    assert world.leases.owners() == {"a-0": "heir", "a-1": "me"}


def test_an_idle_slot_that_is_found_lost_is_dropped_at_once(world: PoolWorld) -> None:
    pool, heir = world.pool(), world.pool("heir")
    used(pool, world)
    world.leases.now = 31
    used(heir, world)
    pool.beat()
    assert world.kafka.participants[0].closed
    assert pool.slots() == []


def test_a_slot_that_was_found_lost_after_its_use_is_dropped_before_the_next(world: PoolWorld) -> None:
    pool, heir = world.pool(size=1, timeout=0), world.pool("heir", size=1)
    slot = pool.acquire(object())
    pool.release(slot.user)
    world.leases.now = 31
    used(heir, world)
    slot.fence(FencedError("the background found out"))
    with pytest.raises(NoFreeSlotError, match="in use are a-0 by heir"):
        pool.acquire(object())


def test_a_beat_passes_over_a_row_that_is_locked(world: PoolWorld) -> None:
    pool = world.pool()
    slot = pool.acquire(object())
    world.leases.now = 31
    world.leases.locked.add("a-0")
    pool.beat()
    assert not slot.is_fenced
    world.leases.locked.clear()
    pool.beat()
    assert world.leases.row("a-0").remaining == 30


def test_a_slot_that_kafka_fenced_is_the_last_that_is_taken_again(world: PoolWorld) -> None:
    pool = world.pool()
    slot = pool.acquire(object())
    slot.fence(FencedError("by an operator"))
    pool.release(slot.user)
    assert [pool.acquire(object()).transactional_id for _ in range(2)] == ["a-1", "a-0"]
    assert world.leases.row("a-0").fencing_token == 2


def test_a_heartbeat_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    beats: list[int] = []
    third = threading.Event()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            third.set()
        raise KafkaUnavailableError("the database, say")

    heartbeat = pools.LeaseRenewal(THIS_PROCESS, beat, 0.001, "a")
    heartbeat.start()
    heartbeat.start()
    assert third.wait(LONG)
    heartbeat.stop(LONG)
    assert "the leases were not renewed: the database, say" in caplog.text
    count = len(beats)
    heartbeat.start()
    assert len(beats) == count


# The end.


def test_close_gives_ready_slots_back_and_lets_the_lease_of_others_run_out(world: PoolWorld) -> None:
    pool = world.pool(size=3)
    warm, cold, fenced = world.warm(pool.acquire(object())), pool.acquire(object()), pool.acquire(object())
    fenced.fence(FencedError("lost"))
    for slot in (warm, cold):
        pool.release(slot.user)
    fenced.user = None
    pool.close(0)
    assert world.leases.row("a-0").owner == ""
    assert (world.leases.row("a-1").owner, world.leases.row("a-1").remaining) == ("me", 0)
    assert (world.leases.row("a-2").owner, world.leases.row("a-2").remaining) == ("me", 30)
    assert world.kafka.open_participants() == 0


def test_close_waits_for_units_and_refuses_those_that_wait_for_a_slot(
    world: PoolWorld, threads: ThreadPoolExecutor
) -> None:
    pool = world.pool(size=1)
    slot = world.warm(pool.acquire(object()))
    waiting = threads.submit(pool.acquire, object())
    until_waiting(pool, 1)
    closing = threads.submit(pool.close, LONG)
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        waiting.result(LONG)
    assert not closing.done()
    pool.release(slot.user)
    closing.result(LONG)
    assert world.leases.row("a-0").owner == ""
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        pool.acquire(object())


def test_a_failed_give_back_is_logged_and_the_lease_expires(
    world: PoolWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("the database is away")

    pool = world.pool()
    used(pool, world)
    monkeypatch.setattr(world.leases, "give_back", fail)
    pool.close(0)
    assert "the leases were not given back: the database is away" in caplog.text
    assert world.leases.row("a-0").owner == "me"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"application": ""}, "application is empty"),
        ({"application": 5}, "application 5: name this application by a text"),
        ({"size": 0}, "pool_size 0"),
        *(({"size": value}, f"pool_size {value!r}: use an int, 1 or more") for value in ("4", 1.5, True, None)),
        *(({"acquire_timeout": value}, f"acquire_timeout {value!r}: use 0") for value in ("1", None, float("nan"))),
        *(({"lease_timeout": value}, f"lease_timeout {value!r}: use more") for value in ("1", None, float("nan"))),
        ({"application": "a" * 252, "size": 1001}, "255 characters"),
        ({"acquire_timeout": -1}, "acquire_timeout -1"),
        ({"lease_timeout": 0}, "lease_timeout 0"),
    ],
)
def test_senseless_settings_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    settings = PoolSettings(**{"application": "a", "size": 1, "acquire_timeout": 1, "lease_timeout": 1, **change})
    with pytest.raises(ConfigurationError, match=message):
        settings.check()


def test_the_limit_of_a_heartbeats_requests_is_described_with_its_least_value(
    make_dual_write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, limited = [], SqlLeases.limited

    def note(leases: SqlLeases, seconds: float, name: str, setting: str) -> Any:
        described.append((seconds, setting))
        return limited(leases, seconds, name, setting)

    monkeypatch.setattr(SqlLeases, "limited", note)
    make_dual_write(lease_timeout=4).recover()
    assert set(described) == {(5.0, "a third of lease_timeout, at least 5 s")}


def test_the_heartbeat_begins_the_work_that_found_no_thread(world: PoolWorld) -> None:
    runtime, user = FullRuntime(), object()
    pool = world.pool(runtime=runtime)
    slot = pool.acquire(user)
    runtime.is_full = True
    slot.finish_later()
    assert slot.is_busy
    pool.release(user)
    runtime.is_full = False
    runtime.started.clear()
    pool.beat()
    assert runtime.started == ["dualwrite-a-0"]
