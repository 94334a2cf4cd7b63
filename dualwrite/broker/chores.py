"""The broker's periodic tasks: expiry, retention, compaction, idle connections, certificates."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.current_options import CurrentOptions
from dualwrite.broker.process.ending import stop_process
from dualwrite.broker.runtime.compaction import Compaction
from dualwrite.broker.runtime.retention import Retention
from dualwrite.broker.server import Server
from dualwrite.broker.tls.listener_tls import ListenerTls

Chore = Callable[[], Awaitable[object]]
"""One run of a task."""
Interval = Callable[[BrokerOptions], int]
"""The milliseconds from the end of a run to the next one, by the options of the moment."""

_LONGEST_UNSYNCED_MS = 100
"""The longest time until an append is on disk if no request waits for it."""
_IDLE_LOOKS, _SHORTEST_LOOK_MS = 10, 100
"""Looks for idle connections within connections.max.idle.ms, and the least time between two."""
_STALLED_LOOK_MS = 500
"""How often the broker looks for connections that hold memory and make no progress."""
_CERTIFICATES_MS = 1000
"""How often the broker looks whether a file of certificates has changed."""


def begin_chores(current: CurrentOptions, chores: Iterable[tuple[Chore, Interval]]) -> list[asyncio.Task[None]]:
    """Begin to run each of ``chores`` again and again, until its task is cancelled."""
    loop = asyncio.get_running_loop()
    return [loop.create_task(_repeat(chore, interval, current)) for chore, interval in chores]


def fixed(interval_ms: int) -> Interval:
    """An interval that no change of a setting changes."""
    return lambda _: interval_ms


def broker_chores(
    current: CurrentOptions,
    context: BrokerContext,
    compaction: Compaction,
    server: Server,
    renewing: Sequence[ListenerTls],
) -> Iterator[tuple[Chore, Interval]]:
    """The periodic tasks, each with its interval."""

    async def expire_producers() -> None:
        context.cluster.expire_producers(current.options.number("producer.id.expiration.ms"))

    async def renew_certificates() -> None:
        for tls in renewing:
            tls.renew()

    coordinator = context.coordinator

    async def write_the_rest() -> None:
        coordinator.write_ends()
        await context.flusher.barrier()

    yield write_the_rest, fixed(_LONGEST_UNSYNCED_MS)
    yield context.offsets.expire, _by("offsets.retention.check.interval.ms")
    yield coordinator.end_overdue, _by("transaction.abort.timed.out.transaction.cleanup.interval.ms")
    yield coordinator.forget_idle, _by("transaction.remove.expired.transaction.cleanup.interval.ms")
    yield expire_producers, _by("producer.id.expiration.check.interval.ms")
    retention = Retention(context.cluster, context.flusher, context.clock)
    yield retention.run_once, _by("log.retention.check.interval.ms")
    yield server.close_idle, _between_idle_looks
    yield server.close_stalled, fixed(_STALLED_LOOK_MS)
    yield renew_certificates, fixed(_CERTIFICATES_MS)
    yield compaction.run_once, _by("log.cleaner.backoff.ms")


def _by(key: str) -> Interval:
    """The interval that the setting ``key`` says."""
    return lambda options: options.number(key)


def _between_idle_looks(options: BrokerOptions) -> int:
    return max(_SHORTEST_LOOK_MS, options.number("connections.max.idle.ms") // _IDLE_LOOKS)


async def _repeat(chore: Chore, interval: Interval, current: CurrentOptions) -> None:
    while True:
        await current.pause(interval)
        try:
            await chore()
        except Exception as error:  # noqa: BLE001  a bug must be noticed, or transactions pile up
            stop_process(error)
