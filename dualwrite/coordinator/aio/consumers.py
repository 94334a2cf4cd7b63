"""Consumers under asyncio: confluent_kafka.aio.AIOConsumer, or a confluent_kafka.Consumer that is polled in threads.

consuming.py uses them, in greenlets. A consumer's coroutine is awaited; any other call is made in a thread, as it may
wait until another call on the same consumer returns.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_in_thread
from typing import Any, Literal, Protocol, cast

from dualwrite.coordinator.aio.thread_calls import submitted
from dualwrite.coordinator.concurrency.waiting import LOOK_INTERVAL
from dualwrite.coordinator.offsets.consumers import KafkaConsumer, OffsetReset
from dualwrite.coordinator.offsets.seeking import Seeker
from dualwrite.coordinator.process.greenlets import greenlet_spawn, wait_for
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError


class AwaitedConsumer:
    """``wrapped`` as a KafkaConsumer, for use inside ``greenlet_spawn``.

    :param threads: threads for the calls of a consumer that blocks.
    """

    def __init__(self, wrapped: Any, threads: ThreadPoolExecutor) -> None:
        self.wrapped = wrapped
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, getattr(self.wrapped, name))

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return wait_for(method(*arguments, **options))
        call = functools.partial(method, *arguments, **options)
        return wait_for(asyncio.wrap_future(submitted(self._threads, call)))


class AsyncSeeker(Seeker, Protocol):
    """The AsyncUnitManager, as AsyncSeekingConsumers uses it."""

    def check_loop(self) -> None:
        """Refuse an event loop that is not the one of the first use."""

    def awaited(self, consumer: Any) -> KafkaConsumer:
        """``consumer``, for use in a greenlet."""

    def know_database(self) -> None:
        """Connect once; in a greenlet."""

    def run_in_this_thread(self, act: Callable[[], None]) -> None:
        """Call ``act``, which uses the database, in a thread that has no event loop."""


class AsyncSeekingConsumers:
    """The part of AsyncDualWrite that positions consumers at their group's offsets.

    A consumer is a ``confluent_kafka.aio.AIOConsumer``, or a ``confluent_kafka.Consumer`` that is polled in a thread,
    as by ``await asyncio.to_thread(consumer.consume, 100, 0.5)``.
    """

    @property
    def _seeker(self) -> AsyncSeeker:
        raise NotImplementedError

    async def seek_to_stored(
        self, consumer: Any, partitions: Sequence[Any] | None = None, *, auto_offset_reset: OffsetReset = "earliest"
    ) -> None:
        """Seek to the offsets in the database; see DualWrite.seek_to_stored. It can be the ``on_assign`` of an
        AIOConsumer; for a Consumer, :meth:`on_assign` makes one."""
        await self._ready()
        seek = functools.partial(self._seeker.seek_to_stored, auto_offset_reset=auto_offset_reset)
        await greenlet_spawn(seek, self._seeker.awaited(consumer), partitions)

    async def seek_to_committed(
        self, consumer: Any, partitions: Sequence[Any] | None = None, *, auto_offset_reset: OffsetReset = "earliest"
    ) -> None:
        """Seek to the offsets in Kafka; see DualWrite.seek_to_committed. Can be an ``on_assign``, as
        :meth:`seek_to_stored`."""
        await self._ready()
        seek = functools.partial(self._seeker.seek_to_committed, auto_offset_reset=auto_offset_reset)
        await greenlet_spawn(seek, self._seeker.awaited(consumer), partitions)

    def on_assign(
        self, to: Literal["stored", "committed"] = "stored", *, auto_offset_reset: OffsetReset = "earliest"
    ) -> Callable[[KafkaConsumer, Sequence[Any]], None]:
        """Make the callback for ``consumer.subscribe(topics, on_assign=dw.on_assign())``, for a
        confluent_kafka.Consumer that is polled in a thread. The callback does what DualWrite.seek_to_stored or
        DualWrite.seek_to_committed does.

        Call this method in the event loop. The callback raises InvalidTransactionStateError if the consumer is polled
        in the event loop's own thread, which would wait for itself.

        :param to: "stored" for ``tx.store_offsets``, "committed" for ``tx.send_offsets``.
        :raises ConfigurationError: if ``to`` is anything else.
        """
        if to not in ("stored", "committed"):
            raise ConfigurationError(f"on_assign({to!r}): use 'stored' or 'committed'")
        self._seeker.check_loop()
        put = self._seeker.seek_to_stored if to == "stored" else self._seeker.seek_to_committed
        loop, loops_thread = asyncio.get_running_loop(), threading.get_ident()

        def assigned(consumer: KafkaConsumer, partitions: Sequence[Any]) -> None:
            if threading.get_ident() == loops_thread:
                raise InvalidTransactionStateError(
                    "the consumer is polled in the event loop's thread, which blocks that: poll in another one "
                    "(asyncio.to_thread), or use confluent_kafka.aio.AIOConsumer"
                )
            _run_in(loop, self._ready)
            seek = functools.partial(put, auto_offset_reset=auto_offset_reset)
            self._seeker.run_in_this_thread(lambda: seek(consumer, partitions))

        return assigned

    async def _ready(self) -> None:
        self._seeker.check_loop()
        await greenlet_spawn(self._seeker.know_database)


def _run_in(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the coroutine that ``make`` returns in ``loop``, from another thread.

    :raises InvalidTransactionStateError: if ``loop`` is closed before that: it never runs the coroutine then.
    """
    coroutine = make()
    running: Future[None] = Future()
    try:
        running = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        if not loop.is_closed():
            raise
    while not running.done() and not loop.is_closed():
        wait_in_thread([running], LOOK_INTERVAL)
    if running.done():
        running.result()
        return
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
    raise InvalidTransactionStateError(
        "the event loop in which on_assign() was called is closed: stop polling before the event loop ends"
    )


def awaited(consumer: Any, threads: ThreadPoolExecutor) -> KafkaConsumer:
    """``consumer``, for use in a greenlet."""
    return cast(KafkaConsumer, AwaitedConsumer(consumer, threads))
