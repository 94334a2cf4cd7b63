"""One fsync for many: the appends of all connections during one round of fsyncs become durable by the next round.

A round begins when a request waits for it. Some appends have no waiting request, such as the end of a transaction whose
markers are durable. They go with the next round, because a separate round would delay the next client.

``durability=fsync``: the broker acknowledges nothing, and shows nothing to readers, before it is on disk.
``durability=os``: bytes count as durable once the operating system has them, as by Kafka's default. They survive a
killed process but not a power cut. flush.messages and flush.ms of a topic begin rounds of fsyncs, too, and so does a
reservation of producer ids; requests wait for a round in progress.

A failed append or fsync leaves files in an unknown state. So the process stops, and a restart recovers from the disk.
Thus there are no undo paths.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Executor

SYNC_THREADS = 4
"""How many files are synced at a time. Several flushes together take a disk little more time than one."""


class Flushable(Protocol):
    """An appendable object whose end can be made durable."""

    @property
    def end_offset(self) -> int:
        """The offset after the last append."""

    def sync(self) -> None:
        """Make everything durable that was appended before the call. Runs in a worker thread."""

    def flushed(self, end_offset: int) -> None:
        """Called on the event loop's thread: everything below ``end_offset`` is durable."""


class _Critical:
    """A context that ends the process if an exception leaves it. It has no state, so all users share one object."""

    def __init__(self, on_failure: Callable[[BaseException], NoReturn]) -> None:
        self._on_failure = on_failure

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):  # after any error the process must not go on
            self._on_failure(error)


class Flusher:
    """Groups fsyncs across connections. Belongs to one event loop.

    :param durable: True for ``durability=fsync``.
    :param on_failure: called with the error when storage fails; must not return.
    :param threads: SYNC_THREADS threads for the fsyncs; None for those of the event loop. :meth:`close` ends them.
    :param timed: makes a context that measures one round of fsyncs.
    """

    def __init__(
        self,
        durable: bool,
        on_failure: Callable[[BaseException], NoReturn],
        threads: "Executor | None" = None,
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._durable = durable
        self._on_failure = on_failure
        self._critical = _Critical(on_failure)
        self._timed = timed
        self._dirty: dict[Flushable, None] = {}
        self._current: list[asyncio.Future[None]] | None = None
        """Those that wait for the round in progress; None if there is none."""
        self._following: list[asyncio.Future[None]] = []
        """Those that wait for the next round. Each has a future of its own: a request that is cancelled ends no other
        one's wait, and each wakes its task without a turn of the event loop in between."""
        self._rounds: asyncio.Task[None] | None = None
        self._is_wanted = False
        """True if another round must follow."""
        self.latest_waiter: asyncio.Future[None] | None = None
        """What the latest call of :meth:`barrier` waits for: so a request's wait for the disk is recognised."""
        self._background: set[asyncio.Task[None]] = set()
        self._threads = threads

    @property
    def is_durable(self) -> bool:
        """True for ``durability=fsync``. False if an append is visible to readers at once."""
        return self._durable

    def fail(self, error: Exception) -> NoReturn:
        """End the process because of ``error``, as :meth:`critical` does."""
        self._on_failure(error)

    def critical(self) -> "_Critical":
        """A context for an append together with its change of state. It ends the process after a failure between the
        two, because memory and log would differ."""
        return self._critical

    def touch(self, target: Flushable) -> None:
        """Register an append to ``target``. Calls its ``flushed`` once the append is durable: see :meth:`hurry`."""
        if not self._durable:
            target.flushed(target.end_offset)
            return
        self._dirty[target] = None

    def sync(self, target: Flushable) -> None:
        """Begin a round of fsyncs for ``target``, with ``durability=os``. The requests that follow wait for it."""
        self._dirty[target] = None
        self.hurry()

    def hurry(self) -> None:
        """Begin a round of fsyncs, as soon as the round in progress is over."""
        if self._dirty:
            self._is_wanted = True
            if self._rounds is None:
                self._rounds = asyncio.get_running_loop().create_task(self._flush_rounds())

    @property
    def must_wait(self) -> bool:
        """False if :meth:`barrier` would return at once, so that its call can be left out."""
        return bool(self._dirty) or self._current is not None

    async def barrier(self) -> None:
        """Return once everything appended before the call is durable."""
        self.hurry()
        waiters = self._following if self._dirty else self._current
        if waiters is not None:
            waiter = self.latest_waiter = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            await waiter

    def in_background(self, work: Callable[[], None]) -> None:
        """Run ``work`` in an fsync thread once everything appended so far is durable. Only :meth:`close` waits for it.

        ``work`` must not sync files that the rounds sync: if two threads sync a file, only one of them gets a failure.
        """
        task = asyncio.get_running_loop().create_task(self._work(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _work(self, work: Callable[[], None]) -> None:
        await self.barrier()
        with self.critical():
            await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        """Make the remaining appends durable, and release the threads."""
        await self.barrier()
        await asyncio.gather(*self._background)
        if self._rounds is not None:
            await self._rounds
        if self._threads is not None:
            self._threads.shutdown()

    async def _flush_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_wanted:
            self._is_wanted = False
            self._current, self._following = self._following, []
            positions = {target: target.end_offset for target in self._dirty}
            self._dirty.clear()
            with self.critical():
                shares = _shares(list(positions))
                with self._timed():
                    for syncing in [loop.run_in_executor(self._threads, _sync_all, share) for share in shares]:
                        await syncing
                for target, end_offset in positions.items():
                    target.flushed(end_offset)
            waiters, self._current = self._current, None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._rounds = None


def _shares(targets: list[Flushable]) -> list[list[Flushable]]:
    """``targets``, divided into one share for each thread."""
    return [targets[number::SYNC_THREADS] for number in range(min(SYNC_THREADS, len(targets)))]


def _sync_all(targets: Iterable[Flushable]) -> None:
    for target in targets:
        target.sync()
