"""An exception out of a signal handler at every place of the pool and of the background: no lock is left held, no turn
and no slot is lost, and what is to be finished is finished."""

import functools
import threading
from contextlib import suppress

import pytest

from dualwrite.coordinator.concurrency.background import Background
from dualwrite.coordinator.concurrency.waiting import Flag, Ticket
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.memory_pools import PoolWorld, used, world
from tests.support.striking import Caller, Striker
from tests.support.user_errors import HandlerInterrupt, LimitError

__all__ = ["world"]

LONG = 20.0

# Thread.start's own, cut short.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


KINDS = [LimitError, HandlerInterrupt]


def in_thread(act: object, where: str) -> None:
    """Run ``act`` in another thread, and fail if it does not end."""
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(bool(act() or True)), daemon=True)  # type: ignore[operator]
    thread.start()
    thread.join(LONG)
    assert ended, f"another thread hangs, or fails, after a strike at {where}"


def acquire_and_release(pool: Pool, world: PoolWorld) -> None:
    """As a unit of work does: what was interrupted is released again."""
    user = object()
    try:
        slot = pool.acquire(user)
        if not slot.is_warm:
            world.warm(slot)
        pool.release(user)
    except BaseException:
        pool.release(user)
        raise


def check(pool: Pool, world: PoolWorld, where: str) -> None:
    in_thread(lambda: used(pool, world), where)
    assert not pool.waiting, where
    assert pool.users() == [], where
    assert world.leases.owners() == {"a-0": "me"}, where
    assert pool.heartbeat.is_beating, where


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_at_any_place_of_a_use_leaves_the_pool_usable_by_other_threads(
    world: PoolWorld, kind: type[BaseException]
) -> None:
    places = 0
    while True:
        pool = world.pool(size=1)
        striker = Striker(places + 1, kind())
        with suppress(kind), striker:
            acquire_and_release(pool, world)
        if not striker.where:
            break
        check(pool, world, striker.where)
        pool.close(0)
        places += 1
    assert places > 100


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_at_any_place_of_a_wait_for_a_slot_blocks_no_other_waiter(
    world: PoolWorld, kind: type[BaseException]
) -> None:
    places = 0
    pool = world.pool(size=1)
    while True:
        other, is_over = object(), threading.Event()
        world.warm(pool.acquire(other))

        def give_way(other: object = other, is_over: threading.Event = is_over) -> None:
            while not (pool.waiting or is_over.is_set()):
                Ticket(THIS_PROCESS).wait(0.001)
            pool.release(other)

        thread = threading.Thread(target=give_way, daemon=True)
        striker = Striker(places + 1, kind())
        with suppress(kind), striker:
            thread.start()
            acquire_and_release(pool, world)
        pool.release(other)
        is_over.set()  # the wait may have been struck before it began
        thread.join(LONG)
        assert not thread.is_alive(), striker.where
        pool.release(other)
        check(pool, world, striker.where)
        if not striker.where:
            break
        places += 1
    assert places > 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_struck_start_of_the_background_can_be_repeated_and_does_its_work(
    kind: type[BaseException],
) -> None:
    places = 0
    while True:
        done = Flag(THIS_PROCESS)
        inside = threading.Lock()
        twice: list[bool] = []

        def act(done: Flag = done, inside: threading.Lock = inside, twice: list[bool] = twice) -> None:
            if inside.acquire(blocking=False):
                done.set()
                inside.release()
            else:
                twice.append(True)

        background = Background(THIS_PROCESS, act, "struck")
        striker = Striker(places + 1, kind())
        try:
            with striker:
                background.start()
        except kind:
            background.start()  # as the end of a unit of work does
        assert background.wait(LONG), striker.where
        assert done.is_set(), striker.where
        assert not twice, striker.where
        assert background.close(LONG), striker.where
        if not striker.where:
            break
        places += 1
    assert places > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_close_struck_by_a_limit_can_be_repeated_and_returns_everything(
    world: PoolWorld, kind: type[BaseException]
) -> None:
    places = 0
    while True:
        pool = world.pool(size=1)
        used(pool, world)
        striker = Striker(places + 1, kind())
        try:
            with striker:
                pool.close(LONG)
        except kind:
            in_thread(lambda pool=pool: pool.close(LONG), striker.where)
        assert world.kafka.open_participants() == 0, striker.where
        assert world.leases.row("a-0").owner == "", striker.where
        assert not pool.heartbeat.is_beating, striker.where
        if not striker.where:
            break
        places += 1
    assert places > 50


def test_a_signal_handler_may_close_the_pool_at_any_place_of_a_use(world: PoolWorld) -> None:
    """As one of SIGTERM does. The use goes on, or is refused."""
    places = 0
    while True:
        pool = world.pool(size=1)
        striker = Caller(places + 1, functools.partial(pool.close, 0))
        with suppress(InvalidTransactionStateError), striker:
            acquire_and_release(pool, world)
        pool.close(0)
        assert pool.users() == [], striker.where
        assert not pool.waiting, striker.where
        if not striker.where:
            break
        places += 1
    assert places > 100
