"""The process that the recipe runs in, as Protocols: clock, threads and their locks, identity, chance.

``process/this_process.py`` implements them. A simulation runs several processes in one thread, by a clock of its own.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from dualwrite.ports import Clock


class Lock(Protocol):
    """Excludes other threads: threading.Lock, or RLock. Taken by ``with`` alone (``concurrency/waiting.py`` says why,
    and has the one exception)."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, within ``timeout`` seconds; True if it is taken."""

    def release(self) -> None:
        """Let another thread take it."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Runtime(Clock, Protocol):
    """A process. Its threads may run at the same time, and may be interrupted anywhere by a signal handler's exception.

    Nothing says how long a thread waits beyond the time that it asked for, or which of several threads gets a lock.
    """

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""

    def lock(self) -> Lock:
        """A new lock, free."""

    def reentrant_lock(self) -> Lock:
        """A new lock, free, which the thread that holds it may take again."""

    def start_thread(self, act: Callable[[], object], name: str) -> object:
        """Start a daemon thread that calls ``act``; returns the thread. If this raises, the thread may run or not."""

    def current_thread(self) -> object:
        """The calling thread, unlike any other that runs."""

    def process_id(self) -> int:
        """The number of the process: another one in a forked child."""

    def new_owner(self) -> str:
        """A signature for leases, unlike any other, which :meth:`is_gone` understands."""

    def is_gone(self, owner: str) -> bool:
        """True if the process of the signature ``owner`` is known not to run any more. False if that is not known."""

    def is_interrupt(self, error: BaseException) -> bool:
        """True if a signal handler of the process has raised ``error``, for example a time limit."""

    def chance(self) -> float:
        """A random number from 0 to 1."""
