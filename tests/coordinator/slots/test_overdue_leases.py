"""A lease that two heartbeats have missed is renewed when a unit of work gets its slot."""

import pytest
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.slots.pool import Pool
from tests.support.coordinator.memory_pools import ClockedRuntime, PoolWorld, used, world

__all__ = ["world"]

LEASE_TIMEOUT = 30.0


class OneProcess:
    """A process with one warm slot, and the time that passes for it and for the database."""

    def __init__(self, world: PoolWorld, *, one_writer: bool = False) -> None:
        self.world = world
        self.runtime = ClockedRuntime()
        self.pool: Pool = world.pool(runtime=self.runtime, one_writer=one_writer)
        assert used(self.pool, world) == "a-0"

    def pass_time(self, seconds: float) -> None:
        self.runtime.passed += seconds
        self.world.leases.now += seconds

    @property
    def remaining(self) -> float:
        return self.world.leases.row("a-0").remaining or 0.0


def takes_at_once(pool: Pool) -> bool:
    """Whether a unit of work gets a slot without asking the database."""
    unit = object()
    slot = pool.acquire_now(unit)
    pool.release(unit)
    return slot is not None


@pytest.fixture
def process(world: PoolWorld) -> OneProcess:
    return OneProcess(world)


@pytest.mark.parametrize(("passed", "remaining"), [(0, 30), (10, 20), (19, 11), (21, 30), (29, 30)])
def test_only_an_overdue_lease_is_renewed(process: OneProcess, passed: float, remaining: float) -> None:
    process.pass_time(passed)
    assert used(process.pool, process.world) == "a-0"
    assert process.remaining == remaining


def test_a_lease_that_the_heartbeat_renews_is_not_overdue(process: OneProcess) -> None:
    for _ in range(5):
        process.pass_time(19)
        process.pool.beat()
        assert takes_at_once(process.pool)


def test_a_lease_that_the_heartbeat_has_passed_over_is_overdue(process: OneProcess) -> None:
    process.world.leases.locked.add("a-0")
    process.pass_time(19)
    process.pool.beat()
    process.pass_time(2)
    process.pool.beat()
    assert not takes_at_once(process.pool), "the event loop must not wait for the database"
    process.world.leases.locked.clear()
    assert used(process.pool, process.world) == "a-0"
    assert process.remaining == LEASE_TIMEOUT
    assert takes_at_once(process.pool)


@pytest.mark.parametrize("one_writer", [False, True])
def test_a_unit_that_finds_its_slot_taken_gets_another_one(world: PoolWorld, one_writer: bool) -> None:
    """Also where only one slot may be in use at a time: the one that is lost is not."""
    process = OneProcess(world, one_writer=one_writer)
    process.pass_time(2 * LEASE_TIMEOUT)
    taker = process.world.pool("taker", size=1)
    assert used(taker, process.world) == "a-0"
    assert used(process.pool, process.world) == "a-1"
    assert process.world.leases.owners() == {"a-0": "taker", "a-1": "me"}
    assert [slot.transactional_id for slot in process.pool.slots()] == ["a-1"]


def test_a_unit_gets_its_slot_if_the_database_does_not_answer(
    process: OneProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the lease is still valid, the state row tells the unit itself."""

    def renew(*arguments: object) -> None:
        raise OperationalError("UPDATE", {}, Exception("gone"))

    process.pass_time(21)
    monkeypatch.setattr(process.world.leases, "renew", renew)
    assert used(process.pool, process.world) == "a-0"
    assert "a-0: the lease was not renewed" in caplog.text
    monkeypatch.undo()
    assert used(process.pool, process.world) == "a-0"
    assert process.remaining == LEASE_TIMEOUT


def test_an_interrupt_during_the_renewal_leaves_the_slot_usable(
    process: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    unit = object()
    process.pass_time(21)
    monkeypatch.setattr(process.world.leases, "renew", interrupt)
    with pytest.raises(KeyboardInterrupt):
        process.pool.acquire(unit)
    process.pool.release(unit)
    monkeypatch.undo()
    assert used(process.pool, process.world) == "a-0"
    assert process.pool.users() == []
