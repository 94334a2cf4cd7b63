"""What the pool does for units of work of an event loop: slots without a wait, waits that are given up, and units that
a close does not wait for."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dualwrite.coordinator.slots.pool import Pool
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.memory_pools import LockedRuntime, PoolWorld, until_waiting


@pytest.fixture
def world() -> Iterator[PoolWorld]:
    made = PoolWorld()
    yield made
    for pool in made.pools:
        for slot in pool.slots():
            pool.release(slot.user)
        pool.close(0)


def users(pool: Pool) -> list[object]:
    return [slot.user for slot in pool.slots() if slot.user is not None]


def test_only_a_warm_slot_is_had_without_a_wait(world: PoolWorld) -> None:
    pool = world.pool(size=2)
    assert pool.acquire_now(object()) is None, "a lease takes a look at the database"
    slot = pool.acquire("first")
    pool.release("first")
    assert pool.acquire_now(object()) is None, "a cold slot is recovered first"
    world.warm(slot)
    assert pool.acquire_now("second") is slot
    assert pool.acquire_now(object()) is None, "it is in use"
    pool.release("second")
    pool.close(0)
    assert pool.acquire_now(object()) is None


def test_a_released_slot_goes_to_the_waiting_thread_before_any_newcomer(world: PoolWorld) -> None:
    runtime = LockedRuntime()
    pool = world.pool(size=1, runtime=runtime)
    world.warm(pool.acquire("first"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, "second")
        until_waiting(pool, 1)
        with runtime.locked():  # freed, and the thread that waits has not noticed yet
            pool.release("first")
            assert pool.acquire_now("third") is None
        assert waiting.result(20).user == "second"


def test_a_wait_that_another_thread_gives_up_ends_at_once_and_takes_nothing(world: PoolWorld) -> None:
    pool = world.pool(size=1, timeout=3000)
    slot = world.warm(pool.acquire("first"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, "second")
        until_waiting(pool, 1)
        pool.release("second")
        with pytest.raises(InvalidTransactionStateError, match="given up"):
            waiting.result(20)
    pool.release("first")
    assert pool.acquire("third") is slot


def test_a_wait_is_given_up_and_a_slot_that_was_got_is_kept(world: PoolWorld) -> None:
    pool = world.pool(size=1, timeout=3000)
    slot = world.warm(pool.acquire("first"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, "second")
        until_waiting(pool, 1)
        for user in ("first", "second"):
            pool.give_up(user)
        with pytest.raises(InvalidTransactionStateError, match="given up"):
            waiting.result(20)
    assert slot.user == "first"


def test_a_wait_cancelled_while_its_slot_is_leased_leaves_the_slot_free(world: PoolWorld) -> None:
    pool = world.pool(size=1)
    look = world.leases.take

    def take(*arguments: object, **options: object) -> object:
        pool.release("cancelled")
        return look(*arguments, **options)  # type: ignore[arg-type]

    world.leases.take = take  # type: ignore[method-assign, assignment]
    with pytest.raises(InvalidTransactionStateError, match="given up"):
        pool.acquire("cancelled")
    assert (users(pool), pool.registry.held) == ([], [])
    world.leases.take = look  # type: ignore[method-assign]
    assert pool.acquire("next").transactional_id == "a-0"


def test_a_slot_that_is_leased_while_the_pool_closes_goes_to_no_unit_and_is_given_back(world: PoolWorld) -> None:
    pool = world.pool(size=1)
    look = world.leases.take

    def take(*arguments: object, **options: object) -> object:
        pool.close(0)
        return look(*arguments, **options)  # type: ignore[arg-type]

    world.leases.take = take  # type: ignore[method-assign, assignment]
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        pool.acquire("late")
    assert (users(pool), pool.registry.held) == ([], [])
    assert world.leases.row("a-0").remaining == 0


def test_a_second_close_waits_for_the_unit_that_the_first_has_left(world: PoolWorld) -> None:
    pool = world.pool()
    slot = world.warm(pool.acquire("unit"))
    pool.close(0)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(pool.close, 3000)
        assert users(pool) == ["unit"]
        assert not closing.done()
        pool.release("unit")
        closing.result(20)
    assert slot.user is None
    assert pool.slots() == []
