"""Pools of slots over leases in memory, for several processes of one application."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dualwrite.coordinator.concurrency.waiting import Ticket
from dualwrite.coordinator.ports.runtime import Lock, Runtime
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Counters, Slot
from dualwrite.coordinator.slots.usage import PoolSettings
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.memory_leases import MemoryLeases

LONG = 20.0


class Store:
    """Of a DecisionStore, what the pool asks."""

    def __init__(self, one_writer: bool = False) -> None:
        self.one_writer = one_writer

    def in_thread(self, act: Callable[[], Any]) -> Any:
        return act()


class NoSweeper:
    """Of a Sweeper, what the pool asks; it recovers nothing."""

    def look(self, *, again: bool) -> None:
        """There is nothing to see."""

    def stop(self, timeout: float) -> None:
        """There is nothing to stop."""


class LockedRuntime:
    """This process as a Runtime, whose reentrant locks a test can hold too: meanwhile no other thread can use them."""

    def __init__(self) -> None:
        self._locks: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(THIS_PROCESS, name)

    def reentrant_lock(self) -> Lock:
        self._locks.append(THIS_PROCESS.reentrant_lock())
        lock: Lock = self._locks[-1]
        return lock

    @contextmanager
    def locked(self) -> Iterator[None]:
        with ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield


class WatchedLock:
    """A reentrant lock. As soon as its thread has let go of it, ``runtime.after_lock`` runs, once."""

    def __init__(self, runtime: "OvertakenRuntime") -> None:
        self._runtime = runtime
        self._lock = THIS_PROCESS.reentrant_lock()
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._depth += 1

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        is_free = not self._depth
        self._lock.__exit__(*error)
        if is_free:
            act, self._runtime.after_lock = self._runtime.after_lock, lambda: None
            act()


class OvertakenRuntime:
    """This process as a Runtime, where an act of a test comes as the next reentrant lock is free again."""

    def __init__(self) -> None:
        self.after_lock: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(THIS_PROCESS, name)

    def reentrant_lock(self) -> Any:
        return WatchedLock(self)


class ClockedRuntime:
    """This process as a Runtime, with a clock that a test sets forward."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(THIS_PROCESS, name)

    def monotonic(self) -> float:
        return THIS_PROCESS.monotonic() + self.passed


class FullRuntime:
    """This process as a Runtime, which can be at the limit of its threads."""

    def __init__(self) -> None:
        self.is_full = False
        self.started: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(THIS_PROCESS, name)

    def start_thread(self, act: Callable[[], object], name: str) -> object:
        if self.is_full:
            raise RuntimeError("can't start new thread")
        self.started.append(name)
        return THIS_PROCESS.start_thread(act, name)


class PoolWorld:
    """Processes that share the leases of one application."""

    def __init__(self) -> None:
        self.leases = MemoryLeases()
        self.kafka = FakeKafka()
        self.pools: list[Pool] = []

    def pool(
        self,
        owner: str = "me",
        size: int = 2,
        timeout: float = LONG,
        one_writer: bool = False,
        runtime: Runtime = THIS_PROCESS,
    ) -> Pool:
        settings = PoolSettings("a", size, timeout, 30.0)
        store: Any = Store(one_writer)
        registry = LeaseRegistry(runtime, self.leases, "a", owner, 30.0)
        sweeper: Any = NoSweeper()
        made = Pool(
            runtime,
            settings,
            store,
            registry,
            sweeper,
            self.kafka.participant,
            Counters(THIS_PROCESS.lock()),
            lambda step: None,
        )
        self.pools.append(made)
        return made

    def warm(self, slot: Slot) -> Slot:
        """What recovery and a unit of work leave."""
        slot.give_back(self.kafka.participant())
        return slot


@pytest.fixture
def world() -> Iterator[PoolWorld]:
    made = PoolWorld()
    yield made
    for pool in made.pools:
        for slot in pool.slots():
            pool.release(slot.user)
        pool.close(0)


def used(pool: Pool, world: PoolWorld) -> str:
    """A unit of work; which slot it used."""
    slot = pool.acquire(object())
    if not slot.is_warm:
        world.warm(slot)
    pool.release(slot.user)
    return slot.transactional_id


def until_waiting(pool: Pool, count: int) -> None:
    """Return once ``count`` threads wait for a slot."""
    while pool.waiting < count:
        Ticket(THIS_PROCESS).wait(0.001)
