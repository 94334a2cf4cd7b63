"""The slots of one DualWrite: leased when a unit of work needs one, kept warm, renewed, and given back at the end."""

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace

from dualwrite.coordinator.book import LeaseBook
from dualwrite.coordinator.heartbeat import Heartbeat
from dualwrite.coordinator.holders import PoolSettings, Usage, no_free_slot
from dualwrite.coordinator.participants import DecisionStore, KafkaParticipant, Lease, LeaseLostError, Outcome
from dualwrite.coordinator.slots import Counters, Slot
from dualwrite.coordinator.sweep import Sweeper
from dualwrite.errors import InvalidTransactionStateError, NoFreeSlotError

_LOG = logging.getLogger("dualwrite")

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
    :param repair: of a slot; see there.
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
        repair: Callable[[Slot], Outcome | None] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._book = book
        self._sweeper = sweeper
        self._make = make
        self._counters = counters
        self._observe = observe
        self._repair = repair
        # A database with one writer makes units of work wait for each other anyhow, impatiently and in no order.
        self._most_in_use = 1 if store.one_writer else settings.size
        self._changed = threading.Condition()
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        """By transactional id; the one used last is the last one. Guarded by _changed, as are the next two."""
        self._queue: deque[object] = deque()
        """The units of work that wait, each with its turn."""
        self._closed = False
        self.left_behind: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """What ends units of work whose block nobody could end. Finalizers put it here: SimpleQueue allows that."""
        self._heartbeat = Heartbeat(
            lambda: store.in_thread(self.beat), settings.lease_timeout / BEATS, settings.application
        )

    @property
    def pending(self) -> int:
        """Slots in which the Kafka side of an earlier unit of work is being finished in the background."""
        return sum(slot.pending for slot in self._snapshot())

    @property
    def owner(self) -> str:
        """How this process signs its leases (owners.py)."""
        return self._book.owner

    def usage(self) -> Usage:
        """What the slots of this process are doing."""
        slots = self._snapshot()
        used = sum(slot.user is not None for slot in slots)
        pending = sum(slot.user is None and slot.pending for slot in slots)
        return replace(self._settings.unused(), used=used, pending=pending, idle=len(slots) - used - pending)

    def acquire_now(self, user: object) -> Slot | None:
        """A warm slot for ``user``, if there is one to be had at once and nobody waits; None otherwise."""
        with self._changed:
            if self._closed or self._queue or not self.left_behind.empty() or not self._has_room():
                return None
            slot = self._idle_slot()
            if slot is None or not slot.is_warm:
                return None
            slot.user = user
            return slot

    def acquire(self, user: object, deadline: float | None = None) -> Slot:
        """A slot for ``user``: a warm one, else a cold one, else a free row's; else wait for one, in turn.

        Whoever calls this does so inside the ``try`` that ends in :meth:`release`: an interrupt may come after the slot
        was taken, and before this returns. :meth:`release` from another thread ends the wait.

        :param deadline: in monotonic seconds, of somebody who has waited elsewhere before.
        :raises NoFreeSlotError: if there was none in time.
        :raises InvalidTransactionStateError: if the pool is closed, or ``user`` was released meanwhile.
        """
        if deadline is None:
            deadline = time.monotonic() + self._settings.acquire_timeout
        next_look = 0.0
        with self._changed:
            self._queue.append(user)
            for slot in self._slots.values():
                slot.hurry()
        try:
            while True:
                self.end_left_behind()
                self._drop_fenced()  # what the background has found lost since
                idle = self._await_turn(user, next_look, deadline)
                if idle is not None:
                    return idle
                if next_look and time.monotonic() >= deadline:
                    raise self._no_free_slot()
                if self._is_first(user):
                    leased = self._lease(user)
                    if leased is not None:
                        return leased
                next_look = time.monotonic() + LOOK_INTERVAL
        finally:
            self._leave_queue(user)

    def release(self, user: object) -> None:
        """The end of ``user``'s use of whatever slot it uses, or waits for. Nothing, if that has ended before."""
        with self._changed:
            for slot in list(self._slots.values()):
                if slot.user is user:
                    slot.user = None
                    self._slots.move_to_end(slot.transactional_id)
            self._leave_queue(user)  # under the same lock: whoever waits in another thread takes no slot after it
        self._drop_fenced()

    def part_with(self, user: object, *, finished: bool) -> None:
        """Forget the slot that ``user`` uses, and has closed the participant of: it is somebody else's now, with what
        is open there in Kafka. Nothing, if it uses none.

        :param finished: False if it may not be: then its lease runs out at once, whoever has signed it.
        """
        with self._changed:
            slot = next((slot for slot in self._slots.values() if slot.user is user), None)
            if slot is None:
                return
            del self._slots[slot.transactional_id]
            slot.user = None
            self._changed.notify_all()
        slot.close(0)
        if not finished:
            self._book.give_back([slot.lease], finished=False)
        self._book.forget([slot.lease])

    def users(self) -> list[object]:
        """What uses a slot, or waits for one."""
        with self._changed:
            return [*(slot.user for slot in self._slots.values() if slot.user is not None), *self._queue]

    def look_after(self) -> None:
        """Let the heartbeat look for what dead owners left, though nothing may be leased here."""
        self._heartbeat.start()

    def end_left_behind(self) -> None:
        """End units of work whose block nobody could end."""
        while True:
            try:
                end = self.left_behind.get_nowait()
            except queue.Empty:
                return
            try:
                end()
            except Exception:  # noqa: BLE001 - logged: it is not the error of whoever comes by
                whose = self._settings.application
                _LOG.exception(
                    "%s: ending a unit of work that was interrupted failed", whose, extra={"application": whose}
                )
            except BaseException:
                self.left_behind.put(end)
                raise

    def _leave_queue(self, user: object) -> None:
        with self._changed:
            if user in self._queue:
                self._queue.remove(user)
            self._changed.notify_all()

    def beat(self) -> None:
        """Renew all leases, and look for what dead owners left. A slot whose lease is found lost is fenced, and dropped
        after its use."""
        self.end_left_behind()
        lost = self._book.renew()
        for slot in self._snapshot():
            if slot.lease in lost:
                slot.fence(LeaseLostError(slot.lease))
        self._drop_fenced()
        self._sweeper.look(again=True)

    def close(self, timeout: float) -> None:
        """Wait for units of work of other threads; then give the background up to ``timeout`` seconds, and the leases
        back. What is left to be recovered is left to whoever looks next: its lease has run out then."""
        self.end_left_behind()
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

    def _is_first(self, user: object) -> bool:
        with self._changed:
            return self._may_take(user)

    def _may_take(self, user: object) -> bool:
        """True if ``user`` is the next to get a slot, and one may be in use more than are now."""
        return bool(self._queue) and self._queue[0] is user and self._has_room()

    def _has_room(self) -> bool:
        return sum(slot.user is not None for slot in self._slots.values()) < self._most_in_use

    def _await_turn(self, user: object, next_look: float, deadline: float) -> Slot | None:
        """Wait until there is a slot, and use it; None if it is time to look around, or too late."""
        with self._changed:
            while True:
                if self._closed:
                    raise InvalidTransactionStateError("this DualWrite is closed: make a new one")
                if user not in self._queue:
                    raise InvalidTransactionStateError("the wait for a slot was given up")
                now = time.monotonic()
                until = min(next_look, deadline)
                if self._may_take(user):
                    slot = self._idle_slot()
                    if slot is not None:
                        slot.user = user
                        return slot
                if now >= until:
                    return None
                self._changed.wait(until - now)

    def _idle_slot(self) -> Slot | None:
        """A slot that nobody uses: a warm one, if there is one. Those used last come first, so that few are."""
        idle = [slot for slot in self._slots.values() if slot.user is None and not slot.pending and not slot.is_fenced]
        return next((slot for slot in reversed(idle) if slot.is_warm), idle[-1] if idle else None)

    def _lease(self, user: object) -> Slot | None:
        """Lease a slot for ``user``, if one is to be had; it is to be recovered first."""
        lease = self._book.lease_one(self._settings.size, self._observe)
        if lease is None:
            return None
        slot = self._add(lease, user)
        if self._heartbeat.start():
            self._sweeper.look(again=False)
        return slot

    def _add(self, lease: Lease, user: object) -> Slot:
        """Make the slot of a new lease, in use by ``user``."""
        name = lease.transactional_id
        with self._changed:
            self._slots[name] = slot = Slot(
                lease, self._store, lambda: self._make(name), self._counters, self._notify, self._observe, self._repair
            )
            slot.user = user if user in self._queue else None
        return slot

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _drop_fenced(self) -> None:
        with self._changed:
            lost = [slot for slot in self._slots.values() if slot.is_fenced and slot.user is None]
            for slot in lost:
                del self._slots[slot.transactional_id]
        for slot in lost:
            slot.close(0)
        self._book.forget([slot.lease for slot in lost])

    def _no_free_slot(self) -> NoFreeSlotError:
        with self._changed:
            own = dict(self._slots)
        error = NoFreeSlotError(no_free_slot(self._settings, own, self._book.seen, one_writer=self._store.one_writer))
        error.__cause__ = next((slot.last_error for slot in own.values() if slot.pending and slot.last_error), None)
        return error
