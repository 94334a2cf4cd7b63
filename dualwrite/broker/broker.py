"""The composition root: creates every part of the broker, in the order of recovery at a start."""

import asyncio
import fcntl
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.data_dir import refuse_foreign
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY, Cluster
from dualwrite.broker.runtime.compaction import Compaction
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.disk import DiskFiles
from dualwrite.broker.runtime.flusher import Flusher, stop_process
from dualwrite.broker.runtime.group_log import GroupLog
from dualwrite.broker.runtime.groups import GroupCoordinator
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.runtime.offsets import GroupOffsets
from dualwrite.broker.runtime.retention import Retention
from dualwrite.broker.server import Server, listen
from dualwrite.errors import ConfigurationError, DualWriteError

if TYPE_CHECKING:
    from dualwrite.broker.metrics_server import MetricsServer

logger = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[None]]

_LOCK_NAME = ".lock"
_LOCK_POLL_SECONDS = 0.02
_PREDECESSOR_SECONDS = 3.0
"""How long an embedded broker waits for the broker of a killed process, which stops once it notices that."""
_LONGEST_UNSYNCED_MS = 100
"""How long an append that no request waits for may stay off the disk."""
_OPEN_FILES_IF_UNLIMITED = 10240  # macOS allows no more, whatever it reports


class SystemClock:
    """The system's clocks, as :class:`~dualwrite.ports.Clock`."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()


class SystemEntropy:
    """The system's randomness, as :class:`~dualwrite.ports.Entropy`."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` random bytes."""
        return os.urandom(count)


def serve(options: BrokerOptions) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it cleanly.

    :raises ConfigurationError: if the address cannot be listened on, the data directory is used by another broker or
        made by another program, or a file cannot be opened or written.
    :raises CorruptLogError: if the data directory contradicts itself where it was already acknowledged.
    """
    if options.metrics is not None:  # its library is optional; if it is missing, fail before anything has begun
        from dualwrite.broker import metrics_server  # noqa: F401
    with _exclusive(options.data_dir, _PREDECESSOR_SECONDS if options.embedded else 0):
        if options.ready_file is not None:
            _clear_ready_file(options.ready_file)
        try:
            _run(_serve(options))
        finally:
            if options.ready_file is not None:
                with suppress(OSError):  # the next start reports it
                    options.ready_file.unlink()


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not on every platform; asyncio's own loop works as well, but slower
        asyncio.run(main)
    else:
        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(main)
        finally:
            loop.close()


async def _serve(options: BrokerOptions) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.embedded:
        loop.add_reader(sys.stdin.fileno(), stopped.set)  # nothing is written there: readable at its end
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    began = time.monotonic()
    meters = Meters()
    flusher = Flusher(durable=options.durability == "fsync", on_round=meters.fsyncs.observe)
    open_files = _raise_limit_of_open_files()
    try:
        context = _open_rooms(options, flusher, meters, port, open_files // 2)
        metrics = _serve_metrics(options.metrics, context) if options.metrics is not None else None
    except (OSError, DualWriteError) as error:
        await flusher.close()  # parts of the broker may have started a round
        if not isinstance(error, OSError):
            raise
        raise ConfigurationError(f"cannot open {error.filename or options.data_dir}: {error.strerror}") from None
    finished = await context.coordinator.finish_decided()
    context.groups.start()
    server = Server(context, options.number("socket.request.max.bytes"), max_connections=open_files // 4)
    await server.start(listener)
    address = f"{_in_url(options.host)}:{port}"
    logger.info(
        "listening on %s, %d topics, %d transactions finished, recovered in %.3f s",
        address, len(context.cluster.state.topics), finished, time.monotonic() - began,
    )  # fmt: skip
    given = context.cluster.given_while_running()
    if given:
        told = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
        logger.info("settings that were given while it ran hold, whatever --config says: %s", told)
    if options.ready_file is not None:
        _write_ready_file(options.ready_file, address)
    compaction = Compaction(DiskFiles(), context.cluster, flusher, context.clock, options.cleaner)
    due = _chores(options, context, compaction)
    chores = [loop.create_task(_repeat(chore, every_ms / 1000)) for chore, every_ms in due]
    await stopped.wait()
    logger.info("stopping")
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)
    compaction.close()
    await server.close()
    if metrics is not None:
        await metrics.close()
    await flusher.close()
    with flusher.critical():  # it may be the first fsync of all
        context.cluster.checkpoint()
    logger.info("stopped")


def _raise_limit_of_open_files() -> int:
    """Raise this process's limit of open files as far as the system allows, and return it. Running out of files would
    stop the broker, so partitions may take half of them and connections a quarter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_IF_UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _in_url(host: str) -> str:
    """``host`` in the form that precedes a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _serve_metrics(address: tuple[str, int], context: BrokerContext) -> "MetricsServer":
    from dualwrite.broker.metrics_server import MetricsServer

    metrics = MetricsServer(*address, context)
    logger.info("metrics at http://%s:%d/metrics", _in_url(address[0]), metrics.port)
    return metrics


def _open_rooms(
    options: BrokerOptions, flusher: Flusher, meters: Meters, port: int, most_partitions: int
) -> BrokerContext:
    files, clock, entropy = DiskFiles(), SystemClock(), SystemEntropy()
    topics = replace(options.topics, most_partitions=most_partitions)
    cluster = Cluster(files, options.data_dir, flusher, clock, entropy, topics)
    coordinator = TransactionCoordinator(files, options.data_dir, cluster, flusher, clock, options.transactions)
    segment_bytes = options.number("offsets.topic.segment.bytes")
    group_log = GroupLog(files, options.data_dir, cluster, flusher, clock, segment_bytes)
    groups = GroupCoordinator(group_log, flusher, clock, entropy, options.groups)
    offsets = GroupOffsets(group_log, cluster, flusher, clock, options.offsets)
    host, port = options.advertised or (options.host, port)
    creates_topics = options.is_on("auto.create.topics.enable")
    return BrokerContext(
        cluster, coordinator, groups, offsets, flusher, clock, host, port, creates_topics, options, meters
    )


def _chores(options: BrokerOptions, context: BrokerContext, compaction: Compaction) -> Iterator[tuple[Chore, int]]:
    """The periodic tasks, each with its interval in milliseconds."""

    async def expire_producers() -> None:
        context.cluster.expire_producers(options.number("producer.id.expiration.ms"))

    async def expire_offsets() -> None:
        await context.offsets.expire()

    coordinator = context.coordinator
    if options.durability == "fsync":
        yield context.flusher.barrier, _LONGEST_UNSYNCED_MS
    yield expire_offsets, options.number("offsets.retention.check.interval.ms")
    yield coordinator.end_overdue, options.number("transaction.abort.timed.out.transaction.cleanup.interval.ms")
    yield coordinator.forget_idle, options.number("transaction.remove.expired.transaction.cleanup.interval.ms")
    yield expire_producers, options.number("producer.id.expiration.check.interval.ms")
    retention = Retention(context.cluster, context.flusher, context.clock)
    yield retention.run_once, options.number("log.retention.check.interval.ms")
    yield compaction.run_once, options.number("log.cleaner.backoff.ms")


async def _repeat(chore: Chore, interval_seconds: float) -> None:
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            await chore()
        except Exception as error:  # noqa: BLE001  a bug there must not go unnoticed while transactions pile up
            stop_process(error)


def _clear_ready_file(path: Path) -> None:
    """Remove the file of an earlier broker, which would be mistaken for this one's; fail at once if none can be
    written."""
    trial = path.with_name(path.name + ".tmp")
    try:
        path.unlink(missing_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigurationError(f"ready file {path}: {error.strerror}") from None


def _write_ready_file(path: Path, address: str) -> None:
    """Write it atomically, so that a reader of the file sees the whole line."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(address + "\n")
        unfinished.replace(path)
    except OSError as error:  # the disk may have become full since the check
        raise ConfigurationError(f"ready file {path}: {error.strerror}") from None


@contextmanager
def _exclusive(data_dir: Path, wait_seconds: float) -> Iterator[None]:
    """Lock the data directory: two brokers on one would destroy it. The lock ends with the process."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        refuse_foreign(data_dir, JOURNAL_DIRECTORY)
        lock = (data_dir / _LOCK_NAME).open("w")
    except OSError as error:
        raise ConfigurationError(f"data directory {data_dir}: {error.strerror}") from None
    deadline = time.monotonic() + wait_seconds
    with lock:
        while not _locks(lock):
            if time.monotonic() >= deadline:
                raise ConfigurationError(f"data directory {data_dir} is in use by another broker")
            time.sleep(_LOCK_POLL_SECONDS)
        yield


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
