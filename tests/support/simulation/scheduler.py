"""Several processes in one thread: their threads are greenlets, their clock is virtual, and a seed decides who is next.

A thread runs until it waits for something of its Runtime or calls a model of the network or of the database. So one
seed is one order of events, and a process can be killed or stalled wherever a thread of it may wait. What belongs to no
thread (a message that arrives, a timer of an event loop) is a function that the scheduler calls at its time.
"""

import heapq
import math
import random
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

PAUSE = 0.01
"""The longest time in seconds that a request is under way."""
LONGEST_RUN = 3600.0
"""In seconds of the simulation."""
_LATER = 1e-9
"""Added to the end of each wait in seconds: a clock with a rate of its own must have reached it then."""
_NO_THREAD = -1
"""In place of a thread's turn: the entry is a function."""
_SWITCHES = 0.04
"""The probability that another thread comes first where one takes a lock."""


class ProcessKilled(BaseException):
    """The process has been killed: nothing that it does from now on has an effect."""


class SimulatedThread:
    """A thread of a process, from its start to its end."""

    def __init__(self, process: "SimulatedProcess", act: Callable[[], object], name: str) -> None:
        self.process = process
        self.name = f"{process.number}:{name}"
        self.has_ended = False
        self.turn = 0
        """A wake-up of an earlier turn is outdated."""
        self.was_woken = False
        self._act = act
        self.greenlet = greenlet(self._run, process.scheduler.hub)

    def _run(self) -> None:
        try:
            self._act()
        except ProcessKilled:
            assert not self.process.is_alive
        except BaseException as error:  # noqa: BLE001 - a thread's own end; the test fails by it
            self.process.scheduler.failures.append(f"{self.name}: {error!r}")
        finally:
            self.has_ended = True


class Scheduler:
    """Runs one thread after the other, by time; at one time, by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.chance = self.random.random
        """A number from 0 to 1, by the seed."""
        self.now = 0.0
        self.current: SimulatedThread | None = None
        self.events: list[tuple[float, str, str]] = []
        """What has happened: when, to whom, and what."""
        self.failures: list[str] = []
        """The exceptions that ended threads."""
        self.before_turn: Callable[[SimulatedThread], None] = lambda thread: None
        """May kill or stall the process of the thread that is next."""
        self.hub = getcurrent()
        """Where a thread goes that waits or ends."""
        self._order = count()
        self._wakings: list[tuple[float, int, int, Any]] = []
        """When, in which order, the turn of a thread, and the thread; or a function in its place."""

    @property
    def trace(self) -> list[str]:
        """The events, as lines."""
        return [f"{time:.6f} {where} {event}" for time, where, event in self.events]

    def note(self, event: str) -> None:
        """Add ``event`` of the current thread to the events."""
        self.events.append((self.now, "world" if self.current is None else self.current.name, event))

    def run(self) -> None:
        """Run until every thread has ended, or waits for ever."""
        wakings, pop = self._wakings, heapq.heappop
        while wakings:
            time, _, turn, act = pop(wakings)
            if turn == _NO_THREAD:
                assert time < LONGEST_RUN, f"it does not end: {self.events[-3:]}"
                if time > self.now:
                    self.now = time
                act()
            elif not act.has_ended and act.turn == turn and act.process.is_alive:
                assert time < LONGEST_RUN, f"it does not end: {self.events[-3:]}"
                self._take_turn(act, time)

    def _take_turn(self, thread: SimulatedThread, time: float) -> None:
        """Let ``thread`` go on, unless its process stalls or is killed just now."""
        process = thread.process
        if process.stalled_until > time:
            self.wake_at(process.stalled_until, thread)
            return
        if time > self.now:
            self.now = time
        if process.is_faulty:
            self.before_turn(thread)
            if not process.is_alive:
                return
            if process.stalled_until > self.now:
                self.wake_at(process.stalled_until, thread)
                return
        thread.turn += 1
        self.current = thread
        thread.greenlet.switch()
        self.current = None

    def call_at(self, time: float, act: Callable[[], None]) -> None:
        """Call ``act``, which must not wait, at ``time``."""
        heapq.heappush(self._wakings, (time, next(self._order), _NO_THREAD, act))

    def wake_at(self, time: float, thread: SimulatedThread) -> None:
        """Let ``thread`` go on at ``time``, unless it goes on sooner."""
        heapq.heappush(self._wakings, (time, next(self._order), thread.turn, thread))

    def wake(self, thread: SimulatedThread) -> None:
        """Let ``thread``, which waits, go on soon."""
        thread.was_woken = True
        self.wake_at(self.now + self.chance() * PAUSE / 10, thread)

    def wait(self, until: float = math.inf) -> bool:
        """Let the current thread wait until it is woken or the time comes; True if it was woken."""
        thread = self.current
        assert thread is not None
        process = thread.process
        if not process.is_alive:
            raise ProcessKilled
        thread.was_woken = False
        if until != math.inf:
            self.wake_at(until, thread)
        self.hub.switch()
        if not process.is_alive:
            raise ProcessKilled
        return thread.was_woken

    def pause(self) -> None:
        """Let the current thread wait for a network."""
        self.wait(self.now + self.chance() * PAUSE)

    def kill(self, process: "SimulatedProcess") -> None:
        """End every thread of ``process`` where it is. What its ``except`` and ``finally`` do has no effect."""
        process.is_alive = False
        self.events.append((self.now, str(process.number), "is killed"))
        for thread in process.threads:
            self.current = thread
            while thread.greenlet:  # started, and not ended
                thread.greenlet.throw(ProcessKilled())
            thread.has_ended = True
        self.current = None


class SimulatedLock:
    """A Lock."""

    def __init__(self, process: "SimulatedProcess", *, is_reentrant: bool) -> None:
        self._process = process
        self._is_reentrant = is_reentrant
        self._holder: SimulatedThread | None = None
        self._depth = 0
        self._waiting: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        process = self._process
        if not process.is_alive:
            raise ProcessKilled
        scheduler = process.scheduler
        me = scheduler.current
        if self._holder is me and self._is_reentrant:
            self._depth += 1
            return True
        until = process.later(timeout) if timeout >= 0 else math.inf
        if scheduler.chance() < _SWITCHES:
            scheduler.wait(scheduler.now)
        if self._holder is not None and not self._await_release(blocking, until):
            return False
        self._holder, self._depth = me, 1
        return True

    def _await_release(self, blocking: bool, until: float) -> bool:
        scheduler = self._process.scheduler
        me = scheduler.current
        assert me is not None
        while self._holder is not None:
            if not blocking or scheduler.now >= until:
                return False
            self._waiting.append(me)
            scheduler.wait(until)
            self._waiting = [thread for thread in self._waiting if thread is not me]
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._process.is_alive:
            self._holder = None
            for thread in self._waiting:
                self._process.scheduler.wake(thread)

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class MachineClock(NamedTuple):
    """The clocks of one machine.

    :param offset: what its monotonic clock shows at the beginning of the simulation, in seconds.
    :param rate: how many of its seconds pass in a second of the simulation.
    :param wall_offset: as ``offset``, for its wall clock.
    """

    offset: float = 0.0
    rate: float = 1.0
    wall_offset: float = 0.0


class SimulatedProcess:
    """A process, and the Runtime in it.

    :param number: unlike that of any other process, also of earlier ones.
    :param sees_deaths: True if it runs on one machine with the others, and so knows which of them are dead.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        number: int,
        processes: "dict[int, SimulatedProcess]",
        clock: MachineClock = MachineClock(),  # noqa: B008  a NamedTuple never changes
    ) -> None:
        self.scheduler = scheduler
        self.number = number
        self.clock = clock
        self.is_alive = True
        self.stalled_until = 0.0
        self.sees_deaths = True
        self.is_faulty = False
        """True if the scheduler asks before each turn of it whether it is killed or stalled."""
        self.threads: list[SimulatedThread] = []
        self._processes = processes
        self._signatures = count()
        processes[number] = self

    def require_alive(self) -> None:
        if not self.is_alive:
            raise ProcessKilled

    def monotonic(self) -> float:
        return self.clock.offset + self.scheduler.now * self.clock.rate

    def wall_ms(self) -> int:
        return int((self.clock.wall_offset + self.scheduler.now * self.clock.rate) * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def later(self, seconds: float) -> float:
        """The scheduler's time once ``seconds`` have passed on the process's clock."""
        return self.scheduler.now + seconds / self.clock.rate + _LATER

    def when(self, monotonic: float) -> float:
        """The scheduler's time once the process's clock shows ``monotonic``."""
        return (monotonic - self.clock.offset) / self.clock.rate + _LATER

    def sleep(self, seconds: float) -> None:
        self.scheduler.wait(self.later(seconds))

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self, is_reentrant=False)

    def reentrant_lock(self) -> SimulatedLock:
        return SimulatedLock(self, is_reentrant=True)

    def start_thread(self, act: Callable[[], object], name: str) -> SimulatedThread:
        self.require_alive()
        thread = SimulatedThread(self, act, name)
        self.threads.append(thread)
        self.scheduler.wake_at(self.scheduler.now + self.scheduler.chance() * PAUSE, thread)
        return thread

    def current_thread(self) -> object:
        return self.scheduler.current

    def process_id(self) -> int:
        return self.number

    def new_owner(self) -> str:
        return f"host:{self.number} {next(self._signatures)}"

    def is_gone(self, owner: str) -> bool:
        number = int(owner.split()[0].removeprefix("host:"))
        return self.sees_deaths and not self._processes[number].is_alive

    def is_interrupt(self, error: BaseException) -> bool:
        return False

    def chance(self) -> float:
        return self.scheduler.chance()
