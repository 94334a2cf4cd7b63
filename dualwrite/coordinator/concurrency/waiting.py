"""Waiting between threads that is safe if a signal handler raises: no lock here can be left locked.

CPython runs signal handlers between bytecodes: after calls, at the entry of a Python function, at backward jumps. So an
exception (``KeyboardInterrupt``, Celery's ``SoftTimeLimitExceeded``, RQ's ``JobTimeoutException``) may come inside
``threading.Condition.__enter__``, which is written in Python, after its lock was taken and before the ``with`` block
protects it. That lock is then never released. ``threading.Event``, ``queue.Queue`` and ``Thread.join`` contain such
a Condition or the like.

Three rules follow, in this module and for its users:

- A lock is the Runtime's, a ``threading.Lock`` or ``threading.RLock``. Both are C, and are taken by ``with lock:``
  alone: between the C-level ``__enter__`` and the block no handler runs.
- A wake-up is a hint. The waiting thread checks its condition itself, at each wake-up and at least once in
  LOOK_INTERVAL: a wake-up that an exception has swallowed costs no more than that.
- A started thread itself notes that it runs (:class:`TaskThread`): ``Thread.start`` waits for its own Event.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from dualwrite.coordinator.ports.runtime import Runtime

LOOK_INTERVAL = 1.0
"""Seconds after which a waiting thread looks again by itself."""


class Ticket:
    """One waiting thread's place: a lock that is held until the bell rings."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> None:
        """Return when the bell has rung since the ticket was drawn, after ``timeout`` seconds, or after LOOK_INTERVAL.
        Then check the condition."""
        self._lock.acquire(timeout=max(0.0, min(timeout, LOOK_INTERVAL)))

    def ring(self) -> None:
        """Wake the thread. Once for each ticket."""
        self._lock.release()


class Bell:
    """Wakes all threads that wait for something to change. Thread-safe.

    A waiting thread draws a ticket, checks its condition, and waits with that ticket: a later change rings for it. A
    thread that changes something makes the change first and then rings.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tickets: deque[Ticket] = deque()
        """The methods of a deque are atomic. A ticket whose wait was interrupted stays until the next ring."""

    def draw(self) -> Ticket:
        """A ticket for one wait."""
        ticket = Ticket(self._runtime)
        self._tickets.append(ticket)
        return ticket

    def ring(self) -> None:
        """Wake every thread that has drawn a ticket."""
        while self._tickets:
            try:
                ticket = self._tickets.popleft()
            except IndexError:  # another thread rings at the same time
                return
            ticket.ring()

    def wait(self, is_true: Callable[[], bool], timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until ``is_true()``; return its last result."""
        if is_true():
            return True
        deadline = self._runtime.monotonic() + timeout
        while True:
            ticket = self.draw()
            try:
                if is_true():
                    return True
                left = deadline - self._runtime.monotonic()
                if left <= 0:
                    return False
                ticket.wait(left)
            finally:
                self._drop(ticket)

    def _drop(self, ticket: Ticket) -> None:
        """Let go of ``ticket``, whose wait has ended: a bell may never ring."""
        with suppress(ValueError):  # it has rung
            self._tickets.remove(ticket)


class Flag:
    """Like threading.Event, but no exception can leave it locked."""

    def __init__(self, runtime: Runtime) -> None:
        self._is_set = False
        self._bell = Bell(runtime)

    def is_set(self) -> bool:
        """True after :meth:`set`, until :meth:`clear`."""
        return self._is_set

    def set(self) -> None:
        """Wake the waiting threads, and let later ones pass."""
        self._is_set = True
        self._bell.ring()

    def clear(self) -> None:
        """Let threads wait again."""
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; True if it is set."""
        return self._bell.wait(self.is_set, timeout)


class TaskThread:
    """At most one daemon thread that runs ``act``, started again when it is needed and none runs.

    An exception may come in ``Thread.start`` before or after the thread began, and may even keep it from doing its
    work. So the thread itself notes that it runs, and a thread started in vain, or twice, does no harm.

    :param act: the thread's work. It never runs twice at the same time.
    :param name: name of the thread.
    :param has_more: called when ``act`` has returned; True if ``act`` must be called once more. Make it True before
        calling :meth:`start`, which then finds the thread running, or starts one.
    :param when_idle: called by the thread when no work is left and it counts as ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        act: Callable[[], None],
        name: str,
        has_more: Callable[[], bool] = lambda: False,
        when_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._act = act
        self._name = name
        self._has_more = has_more
        self._when_idle = when_idle
        self._runtime = runtime
        self._guard = runtime.lock()
        self._bell = Bell(runtime)
        self._owner: object | None = None
        """The thread that calls ``act``."""
        self._started: object | None = None
        """The thread whose start was not interrupted, until it ends."""

    @property
    def is_running(self) -> bool:
        """True while a thread calls ``act``, or was started and is about to."""
        return self._owner is not None or self._started is not None

    def start(self, *, if_more: bool = False) -> bool:
        """Start the thread, unless one runs; True if it was started.

        :param if_more: only if there is more to do.
        """
        with self._guard:
            if self.is_running or (if_more and not self._has_more()):
                return False
            # Set afterwards: an interrupted start counts as none.
            self._started = self._runtime.start_thread(self._run, self._name)
            return True

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until no thread runs; True if none does."""
        return self._bell.wait(lambda: not self.is_running, timeout)

    def _run(self) -> None:
        thread = self._runtime.current_thread()
        with self._guard:
            if self._owner is not None:
                self._leave(thread)
                return
            self._owner = thread
        try:
            while True:
                self._act()
                with self._guard:
                    if not self._has_more():
                        self._leave(thread)
                        break
        except BaseException:
            with self._guard:
                self._leave(thread)
            raise
        finally:
            self._bell.ring()
        self._when_idle()

    def _leave(self, thread: object) -> None:
        if self._owner is thread:
            self._owner = None
        if self._started is thread:
            self._started = None
