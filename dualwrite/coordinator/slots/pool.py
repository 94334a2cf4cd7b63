"""The slots of one DualWrite: leased when a unit of work needs one, kept warm, renewed, and given back at the end."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from dualwrite.coordinator.concurrency.heartbeat import LeaseRenewal
from dualwrite.coordinator.concurrency.waiting import Bell, Ticket
from dualwrite.coordinator.ports.database import DecisionStore
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError
from dualwrite.coordinator.rules.lease_memory import RowFinding
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.abandoned_units import AbandonedUnits
from dualwrite.coordinator.slots.closing_log import log_left, log_unfinished
from dualwrite.coordinator.slots.lease_registry import BEATS, LeaseRegistry
from dualwrite.coordinator.slots.slot import Counters, Slot
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.coordinator.slots.unmatched import UnmatchedUnits
from dualwrite.coordinator.slots.usage import PoolSettings, Usage, no_free_slot
from dualwrite.errors import InvalidTransactionStateError, NoFreeSlotError

_LOG = logging.getLogger("dualwrite")

LOOK_INTERVAL = 0.2
"""Seconds between two looks at the rows of other processes, while a unit of work waits for a slot."""

_LAST_WORD = 2.0
"""Minimum in seconds of the database's time limit for giving the leases back, at the end."""


class Pool:
    """The slots that this process has leased. Thread-safe; only for the process that made it.

    :param registry: its leases.
    :param sweeper: looks for slots of dead owners, at the first use and at every beat.
    :param make: makes the participant of a transactional id.
    :param observe: called with each step's name.
    :param repair: see Slot.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: PoolSettings,
        store: DecisionStore,
        registry: LeaseRegistry,
        sweeper: Sweeper,
        make: Callable[[str], KafkaParticipant],
        counters: Counters,
        observe: Callable[[str], None],
        repair: Callable[[Slot], Outcome | None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._now = runtime.monotonic
        self._settings = settings
        self._store = store
        self.registry = registry
        """The leases of this process."""
        self._sweeper = sweeper
        self._make = make
        self._counters = counters
        self._observe = observe
        self._repair = repair
        # A database with one writer makes units of work wait for each other anyway, with a timeout and in no order.
        self._most_in_use = 1 if store.one_writer else settings.size
        self.unmatched = UnmatchedUnits(runtime, store, counters)
        """Units of work that wait to be put on record."""
        self._guard = runtime.reentrant_lock()
        """Guards the slots, the line and _closed; held briefly, and taken by ``with`` only (waiting.py). A signal
        handler may use the pool while its thread holds the lock."""
        self._changed = Bell(runtime)
        """Rung after each change of them."""
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        """The slots by transactional id, the most recently used last."""
        self._queue: deque[object] = deque()
        """The units of work that wait, in order of arrival."""
        self._without_slot: set[object] = set()
        """The units of work that began without Kafka."""
        self._closed = False
        self.abandoned = AbandonedUnits(settings.application)
        """Units of work whose block could not end them."""
        self.heartbeat = LeaseRenewal(
            runtime, lambda: store.in_thread(self.beat), settings.lease_timeout / BEATS, settings.application
        )
        """Renews the leases."""

    @property
    def pending(self) -> int:
        """The number of slots whose earlier unit of work is not known to be complete in Kafka."""
        return sum(slot.pending for slot in self.slots())

    @property
    def waiting(self) -> int:
        """The number of units of work that wait for a slot."""
        return len(self._queue)

    @property
    def owner(self) -> str:
        """The signature of this process on its leases."""
        return self.registry.owner

    def usage(self) -> Usage:
        """How this process uses its slots."""
        slots = self.slots()
        used = sum(slot.user is not None for slot in slots)
        pending = sum(slot.user is None and slot.pending for slot in slots)
        return replace(self._settings.unused(), used=used, pending=pending, idle=len(slots) - used - pending)

    @property
    def is_cold(self) -> bool:
        """True if the next unit of work has to ask Kafka first: no slot is warm or in use."""
        with self._guard:
            return not self._closed and not any(slot.user is not None or slot.is_warm for slot in self._slots.values())

    def enter_without_slot(self, user: object) -> None:
        """Count ``user``, which needs no slot, until :meth:`release`.

        :raises InvalidTransactionStateError: if the pool is closed.
        """
        with self._guard:
            if self._closed:
                raise InvalidTransactionStateError("this DualWrite is closed: make a new one")
            self._without_slot.add(user)

    def acquire_now(self, user: object) -> Slot | None:
        """A warm slot for ``user``, if one is free and no unit of work waits; None otherwise."""
        with self._guard:
            if self._closed or self._queue or self.abandoned or not self._has_room():
                return None
            slot = self._idle_slot()
            if slot is None or not slot.is_warm or self.registry.is_overdue(slot.lease):
                return None
            slot.user = user
            return slot

    def acquire(self, user: object, deadline: float | None = None) -> Slot:
        """A slot for ``user``: a warm one, else a cold one, else a newly leased one; else wait for one, in turn.

        Call this inside the ``try`` that ends in :meth:`release`: an interrupt may come after the slot was taken, and
        before this returns. :meth:`release` from another thread ends the wait.

        :param deadline: in monotonic seconds, for a caller that has waited elsewhere before.
        :raises NoFreeSlotError: if no slot was free in time.
        :raises InvalidTransactionStateError: if the pool is closed, or ``user`` was released meanwhile.
        """
        warm = self.acquire_now(user)
        if warm is not None:
            self._keep_beating()
            return warm
        if deadline is None:
            deadline = self._now() + self._settings.acquire_timeout
        next_look = 0.0
        with self._guard:
            self._queue.append(user)
        try:
            for slot in self.slots():
                slot.hurry()
            self._keep_beating()
            while True:
                self.abandoned.end()
                self._drop_fenced()  # slots that the background has found lost since
                idle = self._await_turn(user, next_look, deadline)
                if idle is not None and self._keeps_lease(idle):
                    return idle
                if next_look and self._now() >= deadline:
                    raise self._no_free_slot()
                with self._guard:
                    is_first = self._may_take(user)
                if is_first:
                    leased = self._lease(user)
                    if leased is not None:
                        return leased
                next_look = self._now() + LOOK_INTERVAL
        finally:
            self._leave_queue(user)

    def release(self, user: object) -> None:
        """End ``user``'s use of its slot, or its wait for one. Does nothing if that has ended before."""
        with self._guard:
            released = [slot for slot in self._slots.values() if slot.user is user]
            for slot in released:
                self._slots.move_to_end(slot.transactional_id)  # first: a signal handler's close() drops unused slots
                slot.user = None
            self._without_slot.discard(user)
            self._leave_queue(user)  # under the same lock: a wait in another thread takes no slot after it
        self._drop_fenced(released)

    def give_up(self, user: object) -> None:
        """End ``user``'s wait for a slot. Does nothing if it has got one."""
        with self._guard:
            if all(slot.user is not user for slot in self._slots.values()):
                self._leave_queue(user)

    def forget_transferred(self, user: object, *, finished: bool) -> None:
        """Forget the slot of ``user``, which has closed its participant: slot and open transaction now belong to
        another owner. Does nothing if ``user`` has no slot.

        :param finished: False if the transfer is uncertain: then its lease expires at once, under any signature.
        """
        with self._guard:
            slot = next((slot for slot in self._slots.values() if slot.user is user), None)
            if slot is None:
                return
            del self._slots[slot.transactional_id]
            slot.user = None
        self._changed.ring()
        slot.close(0)
        if slot.contradiction is not None:
            self._take_contradiction(slot.contradiction)
        if not finished:
            self.registry.give_back([slot.lease], finished=False)
        self.registry.forget([slot.lease])

    def users(self) -> list[object]:
        """The users of slots, and those that wait for one."""
        with self._guard:
            used = (slot.user for slot in self._slots.values() if slot.user is not None)
            return [*used, *self._without_slot, *self._queue]

    def start_heartbeat(self) -> None:
        """Let the heartbeat look for slots of dead owners, even without leases here."""
        self.heartbeat.start()

    def _leave_queue(self, user: object) -> None:
        with self._guard:
            if user in self._queue:
                self._queue.remove(user)
        self._changed.ring()

    def _keep_beating(self) -> None:
        """Begin the heartbeat if there are leases and an interrupt has prevented its start."""
        if self._slots and not self.heartbeat.is_beating:
            self.heartbeat.start()

    def beat(self) -> None:
        """Renew all leases, and look for slots of dead owners. Fence slots whose lease was lost, and drop them after
        their use."""
        self.abandoned.end()
        lost = {error.lease: error for error in self.registry.renew()}
        for slot in self.slots():
            slot.resume()
            if slot.lease in lost:
                slot.fence(lost[slot.lease])
        self._complete_idle()
        self._drop_fenced()
        self._sweeper.look(again=True)

    def close(self, timeout: float) -> None:
        """End within ``timeout`` seconds: refuse the units of work that wait for a slot, wait for those of other
        threads, finish the background work, and give the leases back. The rest is left to recovery: a unit of work that
        still runs in another thread loses its lease, and is rolled back."""
        deadline = self._now() + timeout
        self.abandoned.end()
        with self._guard:
            self._closed = True
        self._changed.ring()
        if not self._changed.wait(self._is_unused, timeout):
            log_left(self._settings.application, [name for name, slot in self._slots.items() if slot.user is not None])
        ended: dict[bool, list[Lease]] = {True: [], False: []}
        with self._guard:
            slots = list(self._slots.values())
        for slot in slots:
            finished = slot.close(max(0.0, deadline - self._now()))
            if not slot.is_fenced:
                ended[finished].append(slot.lease)
            if slot.contradiction is not None:  # the background has found it since the last heartbeat
                self.unmatched.add(slot.contradiction)
        self._sweeper.stop(max(0.0, deadline - self._now()))
        self.heartbeat.stop(max(0.0, deadline - self._now()))
        last = max(deadline, self._now() + _LAST_WORD)
        with self.registry.limited(last - self._now(), "timeout of close()"):
            self.unmatched.close(last)
            for finished, leases in ended.items():
                self.registry.give_back(leases, finished=finished)
        log_unfinished(self._settings.application, [slot.transactional_id for slot in slots if slot.is_unfinished])
        with self._guard:  # last: a close that was interrupted can be called again, and one that has left units
            for slot in slots:
                if slot.user is None:
                    self._slots.pop(slot.transactional_id, None)

    def wait_idle(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until no slot is in use, the background has completed every earlier unit of
        work, and no sweep is in progress; True if so."""
        deadline = self._now() + timeout
        for slot in self.slots():
            slot.hurry()
        is_idle = self._changed.wait(self._is_idle, timeout)
        return is_idle and self._sweeper.wait(max(0.0, deadline - self._now()))

    def abandon(self) -> None:
        """After a fork, in the child: release the resources of the parent's slots here. The parent keeps its slots."""
        for slot in self._slots.values():
            if slot.is_ready:
                slot.lend().close()

    def slots(self) -> list[Slot]:
        """The leased slots, the most recently used last."""
        with self._guard:
            return list(self._slots.values())

    def _is_unused(self) -> bool:
        self.abandoned.end()
        return not self._without_slot and all(slot.user is None for slot in self.slots())

    def _is_idle(self) -> bool:
        self.abandoned.end()  # at every look: a block may be collected during the wait
        self._complete_idle()
        with self._guard:
            if self._queue or self._without_slot:
                return False
            return not any(slot.user is not None or slot.pending for slot in self._slots.values())

    def _complete_idle(self) -> None:
        """Let the background wait for the commits that were sent in slots without a user."""
        with self._guard:  # no unit takes such a slot meanwhile
            for slot in self._slots.values():
                if slot.user is None:
                    slot.complete_later()

    def _may_take(self, user: object) -> bool:
        """True if ``user`` is next in line, and one more slot may be in use."""
        return bool(self._queue) and self._queue[0] is user and self._has_room()

    def _has_room(self) -> bool:
        in_excess = len(self._slots) - self._most_in_use
        for slot in reversed(self._slots.values()):  # the most recently released come first
            if in_excess < 0:
                break
            in_excess -= slot.user is None
        return in_excess < 0

    def _await_turn(self, user: object, next_look: float, deadline: float) -> Slot | None:
        """Wait for a slot, and use it; None at ``next_look`` or after ``deadline``."""
        until = min(next_look, deadline)
        ticket: Ticket | None = None
        while True:
            with self._guard:
                if self._closed:
                    raise InvalidTransactionStateError("this DualWrite is closed: make a new one")
                if user not in self._queue:
                    raise InvalidTransactionStateError("the wait for a slot was given up")
                slot = self._idle_slot() if self._may_take(user) else None
                if slot is not None:
                    slot.user = user
                    return slot
            left = until - self._now()
            if left <= 0:
                return None
            if ticket is not None:
                ticket.wait(left)
            ticket = self._changed.draw()  # before the next look: what changes after it rings

    def _keeps_lease(self, slot: Slot) -> bool:
        """Renew the lease of ``slot``, which a unit of work has just got, if the heartbeat has missed it; False if it
        is lost. The row is unlocked now, as no unit of work uses the slot yet."""
        lost = self.registry.renew_overdue(slot.lease)
        if lost is None:
            return True
        slot.fence(lost)
        with self._guard:
            slot.user = None  # the unit is still the first in line
        self._drop_fenced([slot])
        return False

    def _idle_slot(self) -> Slot | None:
        """An unused slot, a warm one if possible. The most recently used come first, so that few slots are used."""
        cold: Slot | None = None
        for slot in reversed(self._slots.values()):
            if slot.user is None and not slot.is_busy and not slot.is_fenced:
                if slot.is_warm:
                    return slot
                if cold is None:
                    cold = slot
        return cold

    def _lease(self, user: object) -> Slot | None:
        """Lease a slot for ``user``, which must recover it first; None if no slot is free."""
        lease: Lease | None = None
        try:
            lease = self.registry.lease_one(self._settings.size, self._observe)
            slot = None if lease is None else self._add(lease, user)
            if lease is not None and slot is None:
                self.registry.give_back([lease], finished=False)
        except BaseException:
            if lease is not None and all(slot.lease != lease for slot in self._slots.values()):
                self.registry.forget([lease])  # not used: it can be taken again
            raise
        if slot is not None and self.heartbeat.start():
            self._sweeper.look(again=False)
        return slot

    def _add(self, lease: Lease, user: object) -> Slot | None:
        """Make the slot of a new lease, in use by ``user``; None if the pool was closed, or the wait given up."""
        name = lease.transactional_id
        with self._guard:
            if self._closed or user not in self._queue:
                return None
            self._slots[name] = slot = Slot(
                self._runtime,
                lease,
                self._store,
                lambda: self._make(name),
                self._counters,
                self._changed.ring,
                self._observe,
                self._repair,
            )
            slot.user = user
        return slot

    def _drop_fenced(self, among: Sequence[Slot] | None = None) -> None:
        """Drop unused slots that were lost, ``among`` these or all: a unit of work pays for its own slot."""
        with self._guard:
            every = self._slots.values()  # another thread may have dropped some of ``among``
            own = every if among is None else [slot for slot in among if slot in every]
            lost = [slot for slot in own if slot.user is None and slot.is_fenced]
            for slot in lost:
                del self._slots[slot.transactional_id]
        for slot in lost:
            slot.close(0)
            if slot.contradiction is not None:
                self._take_contradiction(slot.contradiction)
        self.unmatched.record()  # first: it also corrects the row, which the slot's next owner reads
        self.registry.forget([slot.lease for slot in lost])

    def _take_contradiction(self, error: LeaseContradictedError) -> None:
        self.unmatched.add(error)
        if error.finding is RowFinding.COPIED:
            self.registry.renew_signature()

    def _no_free_slot(self) -> NoFreeSlotError:
        with self._guard:
            own = dict(self._slots)
        foreign, cluster_id = self.registry.foreign()
        error = NoFreeSlotError(
            no_free_slot(
                self._settings,
                own,
                self.registry.seen,
                one_writer=self._store.one_writer,
                foreign=foreign,
                cluster_id=cluster_id,
            )
        )
        error.__cause__ = next((slot.last_error for slot in own.values() if slot.pending and slot.last_error), None)
        return error
