"""The pool, where another thread does something between two of its steps."""

from typing import Any

import pytest

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.errors import FencedError, InvalidTransactionStateError
from tests.support.coordinator.memory_pools import OvertakenRuntime, PoolWorld, world

__all__ = ["world"]


def test_a_lost_slot_that_two_threads_find_at_once_is_dropped_once(world: PoolWorld) -> None:
    runtime = OvertakenRuntime()
    pool = world.pool(size=1, runtime=runtime)
    slot = pool.acquire(object())
    slot.fence(FencedError("by an operator"))
    runtime.after_lock = pool.beat
    pool.release(slot.user)
    assert pool.slots() == []
    assert pool.acquire(object()).transactional_id == "a-0"


def test_a_unit_that_is_given_up_while_it_leases_leaves_the_slot_to_the_next(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, user, take = world.pool(size=1), object(), world.leases.take

    def take_late(*arguments: Any, **options: Any) -> list[Lease]:
        pool.release(user)
        return take(*arguments, **options)

    monkeypatch.setattr(world.leases, "take", take_late)
    with pytest.raises(InvalidTransactionStateError, match="was given up"):
        pool.acquire(user)
    assert pool.slots() == []
    assert pool.acquire(object()).transactional_id == "a-0"


def test_a_closing_pool_gives_back_no_slot_that_is_lost(world: PoolWorld) -> None:
    """Another copy of the process may use it, under the same lease."""
    pool = world.pool(size=1)
    slot = pool.acquire(object())
    slot.fence(FencedError("another copy of this process has written the row"))
    before = world.leases.row("a-0")
    pool.close(0)
    assert world.leases.row("a-0") == before
    assert world.leases.owners() == {"a-0": "me"}
