"""The slots of one DualWrite: leased when a unit of work needs one, kept warm, renewed, and given back at the end."""

import threading
import time
from collections import deque
from collections.abc import Callable

from dualwrite.coordinator.book import LeaseBook
from dualwrite.coordinator.heartbeat import Heartbeat
from dualwrite.coordinator.holders import PoolSettings, no_free_slot
from dualwrite.coordinator.participants import DecisionStore, KafkaParticipant, Lease, LeaseLostError
from dualwrite.coordinator.slots import Counters, Slot
from dualwrite.coordinator.sweep import Sweeper
from dualwrite.errors import InvalidTransactionStateError, NoFreeSlotError

LOOK_INTERVAL = 0.2
"""Seconds between two looks at the rows of other processes, while a unit of work waits for a slot."""

BEATS = 3
"""Renewals in the time in which a lease would run out."""


class Pool:
    """The slots that this process has leased. Thread-safe; of use only in the process that made it.

    :param book: its leases.
    :param sweeper: told to look for what dead owners left, at the first use and at every beat.
    :param make: makes the participant of a transactional id.
    :param observe: called with each step's name.
    """

    def __init__(
        self,
        settings: PoolSettings,
        store: DecisionStore,
        book: LeaseBook,
        sweeper: Sweeper,
        make: Callable[[str], KafkaParticipant],
        counters: Counters,
        observe: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._book = book
        self._sweeper = sweeper
        self._make = make
        self._counters = counters
        self._observe = observe
        # A database with one writer makes units of work wait for each other anyhow, impatiently and in no order.
        self._most_in_use = 1 if store.one_writer else settings.size
        self._changed = threading.Condition()
        self._slots: dict[str, Slot] = {}
        """By transactional id; the one used last is the last one. Guarded by _changed, as are the next two."""
        self._queue: deque[object] = deque()
        """The units of work that wait, each with its turn."""
        self._closed = False
        self._heartbeat = Heartbeat(self.beat, settings.lease_timeout / BEATS, settings.application)

    @property
    def pending(self) -> int:
        """Slots in which the Kafka side of an earlier unit of work is being finished in the background."""
        return sum(slot.pending for slot in self._snapshot())

    def acquire(self) -> Slot:
        """A slot for this thread: a warm one, else a cold one, else a free row's; else wait for one, in turn.

        Whoever calls this does so inside the ``try`` that ends in :meth:`release_used_here`: an interrupt may come
        after the slot was taken, and before this returns.

        :raises NoFreeSlotError: if there was none in time.
        :raises InvalidTransactionStateError: if the pool is closed.
        """
        turn = object()
        deadline = time.monotonic() + self._settings.acquire_timeout
        next_look = 0.0
        with self._changed:
            self._queue.append(turn)
            for slot in self._slots.values():
                slot.hurry()
        try:
            while True:
                self._drop_fenced()  # the background may have found since that a lease is lost
                idle = self._await_turn(turn, next_look, deadline)
                if idle is not None:
                    return idle
                if next_look and time.monotonic() >= deadline:
                    raise self._no_free_slot()
                if self._is_first(turn):
                    leased = self._lease()
                    if leased is not None:
                        return leased
                next_look = time.monotonic() + LOOK_INTERVAL
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()

    def release(self, slot: Slot) -> None:
        """The end of a slot's use."""
        with self._changed:
            slot.user = None
            if slot.transactional_id in self._slots:
                self._slots[slot.transactional_id] = self._slots.pop(slot.transactional_id)
        self._drop_fenced()

    def release_used_here(self) -> None:
        """The end of this thread's use of whatever slot it uses."""
        for slot in self._snapshot():
            if slot.user == threading.get_ident():
                self.release(slot)

    def beat(self) -> None:
        """Renew all leases, and look for what dead owners left. A slot whose lease is found lost is fenced, and dropped
        after its use."""
        lost = self._book.renew()
        for slot in self._snapshot():
            if slot.lease in lost:
                slot.fence(LeaseLostError(slot.lease))
        self._drop_fenced()
        self._sweeper.look(again=True)

    def close(self, timeout: float) -> None:
        """Wait for units of work of other threads; then give the background up to ``timeout`` seconds, and the leases
        back. What is left to be recovered is left to whoever looks next: its lease has run out then."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(slot.user is None for slot in self._slots.values()))
            slots = list(self._slots.values())
            self._slots.clear()
        deadline = time.monotonic() + timeout
        ended: dict[bool, list[Lease]] = {True: [], False: []}
        for slot in slots:
            finished = slot.close(max(0.0, deadline - time.monotonic()))
            if not slot.is_fenced:
                ended[finished].append(slot.lease)
        self._sweeper.stop(max(0.0, deadline - time.monotonic()))
        self._heartbeat.stop(timeout)
        for finished, leases in ended.items():
            self._book.give_back(leases, finished=finished)

    def abandon(self) -> None:
        """After a fork, in the child: release what the parent's slots have open here. The parent keeps them."""
        for slot in self._slots.values():
            if slot.is_warm:
                slot.lend().close()

    def _snapshot(self) -> list[Slot]:
        with self._changed:
            return list(self._slots.values())

    def _is_first(self, turn: object) -> bool:
        with self._changed:
            return self._may_take(turn)

    def _may_take(self, turn: object) -> bool:
        """True if whoever has ``turn`` is the next to get a slot, and one may be in use more than are now."""
        if self._queue[0] is not turn:
            return False
        return sum(slot.user is not None for slot in self._slots.values()) < self._most_in_use

    def _await_turn(self, turn: object, next_look: float, deadline: float) -> Slot | None:
        """Wait until there is a slot, and use it; None if it is time to look for a free row, or too late."""
        with self._changed:
            while True:
                if self._closed:
                    raise InvalidTransactionStateError("this DualWrite is closed: make a new one")
                now = time.monotonic()
                until = deadline
                if self._may_take(turn):
                    slot = self._idle_slot()
                    if slot is not None:
                        slot.user = threading.get_ident()
                        return slot
                    until = min(next_look, deadline)
                if now >= until:
                    return None
                self._changed.wait(until - now)

    def _idle_slot(self) -> Slot | None:
        """A slot that nobody uses: a warm one, if there is one. Those used last come first, so that few are."""
        idle = [slot for slot in self._slots.values() if slot.user is None and not slot.pending and not slot.is_fenced]
        return next((slot for slot in reversed(idle) if slot.is_warm), idle[-1] if idle else None)

    def _lease(self) -> Slot | None:
        """Lease a slot for this thread, if one is to be had; it is to be recovered first."""
        lease = self._book.lease_one(self._settings.size, self._observe)
        if lease is None:
            return None
        slot = self._add(lease)
        if self._heartbeat.start():
            self._sweeper.look(again=False)
        return slot

    def _add(self, lease: Lease) -> Slot:
        """Make the slot of a new lease, in this thread's use."""
        name = lease.transactional_id
        slot = Slot(lease, self._store, lambda: self._make(name), self._counters, self._notify, self._observe)
        slot.user = threading.get_ident()
        with self._changed:
            self._slots[name] = slot
        return slot

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _drop_fenced(self) -> None:
        with self._changed:
            lost = [slot for slot in self._slots.values() if slot.is_fenced and slot.user is None]
            for slot in lost:
                del self._slots[slot.transactional_id]
            self._changed.notify_all()
        for slot in lost:
            slot.close(0)
        self._book.forget([slot.lease for slot in lost])

    def _no_free_slot(self) -> NoFreeSlotError:
        with self._changed:
            own = dict(self._slots)
        error = NoFreeSlotError(no_free_slot(self._settings, own, self._book.seen, one_writer=self._store.one_writer))
        error.__cause__ = next((slot.last_error for slot in own.values() if slot.pending and slot.last_error), None)
        return error
