"""The composition root: creates every part of the broker, in the order of recovery at a start."""

import asyncio
import gc
import logging
import resource
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.chores import begin_chores, broker_chores, fixed
from dualwrite.broker.clients.listeners import PLAINTEXT_LISTENER, Listener, host_and_port
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.current_options import CurrentOptions
from dualwrite.broker.listening import BoundListener, bind_listeners
from dualwrite.broker.metrics.health import BrokerStage, DiskProbe, Health
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.process.cleaning_thread import CleaningThread
from dualwrite.broker.process.data_dir import readable_by_others
from dualwrite.broker.process.data_lock import exclusive
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.broker.process.ending import TEMPORARY_ERRORS, stop_process
from dualwrite.broker.process.stop_deadline import STOP_SIGNALS, StopDeadline
from dualwrite.broker.process.system import (
    SystemClock,
    SystemEntropy,
    sync_threads,
    telling_slow_rounds,
    timed,
)
from dualwrite.broker.runtime.access_control import AccessControl
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY, Cluster
from dualwrite.broker.runtime.compaction import Compaction
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import GroupCoordinator
from dualwrite.broker.runtime.groups.consumer import ConsumerGroupCoordinator
from dualwrite.broker.runtime.groups.group_log import GroupLog
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.sasl_listeners import SaslListeners
from dualwrite.broker.server import Server
from dualwrite.broker.tls.listener_tls import ListenerTls
from dualwrite.errors import ConfigurationError, DualWriteError

if TYPE_CHECKING:
    from dualwrite.broker.metrics.http import MetricsServer

logger = logging.getLogger(__name__)

_PREDECESSOR_SECONDS = 3.0
"""How long an embedded broker waits for the broker of a killed process, which stops once it notices the kill."""
_OPEN_FILES_IF_UNLIMITED = 10240  # macOS allows no more, even if it reports more


def serve(options: BrokerOptions) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it cleanly.

    :raises ConfigurationError: if the address cannot be used, the data directory belongs to another broker or program,
        or a file cannot be opened or written.
    :raises CorruptLogError: if acknowledged data in the data directory is damaged or missing.
    """
    if options.metrics is not None:  # if the optional library is missing, fail before anything has begun
        from dualwrite.broker.metrics import http  # noqa: F401
    with exclusive(options.data_dir, _PREDECESSOR_SECONDS if options.embedded else 0):
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
    except ImportError:  # uvloop is not on every platform; asyncio's own loop works too, but slower
        asyncio.run(main)
    else:
        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(main)
        finally:
            loop.close()


async def _serve(options: BrokerOptions) -> None:
    loop = asyncio.get_running_loop()
    stopped = stop_request(loop, embedded=options.embedded)
    deadline = StopDeadline(options.stop_timeout)
    bound = bind_listeners(options)
    health = Health(DiskProbe(options.data_dir), loop)
    metrics = _serve_metrics(options.metrics, health) if options.metrics is not None else None
    began = time.monotonic()
    meters = Meters()
    flusher = _flusher(options, meters)
    open_files = _raise_limit_of_open_files()
    try:
        context = _build_context(options, flusher, meters, bound[0].listener, open_files // 2)
        credentials = context.cluster.security.credentials
        sasl = SaslListeners(bound, options, credentials, context.clock, SystemEntropy(), meters)
    except (OSError, DualWriteError) as error:
        await flusher.close()  # parts of the broker may have started a round
        if not isinstance(error, OSError):
            raise
        if error.errno in TEMPORARY_ERRORS:
            stop_process(error)
        raise ConfigurationError(f"cannot open {error.filename or options.data_dir}: {error.strerror}") from None
    _warn_if_readable(options.data_dir)
    finished = await context.coordinator.finish_decided()
    context.groups.start()
    context.consumer_groups.start()
    server = Server(
        context, options.number("socket.request.max.bytes"), options.connections(open_files // 4), sasl.authentications
    )
    compaction = Compaction(DiskFiles(), context.cluster, flusher, context.clock, options.cleaner, CleaningThread())
    current = CurrentOptions(options, context.cluster)
    current.keep(partial(_apply, context.coordinator, compaction, server, open_files // 4))
    await server.start(bound)
    health.stage, meters.serving_since_ms = BrokerStage.SERVING, context.clock.wall_ms()
    if metrics is not None:
        metrics.measure(context)
    logger.info(
        "listening on %s, %d topics, %d transactions finished, recovered in %.3f s",
        _names(bound), len(context.cluster.state.topics), finished, time.monotonic() - began,
    )  # fmt: skip
    _log_settings(options, context.cluster)
    if options.ready_file is not None:
        write_ready_file(options.ready_file, [one.listener for one in bound])
    renewing = [one.tls for one in bound if one.tls is not None]
    loop.add_signal_handler(signal.SIGHUP, _renew_all, renewing)
    refreshes = ((refresh, fixed(interval_ms)) for refresh, interval_ms in sasl.refreshes())
    chores = begin_chores(current, chain(broker_chores(current, context, compaction, server, renewing), refreshes))
    await stopped.wait()
    deadline.begin()
    health.stage = BrokerStage.STOPPING
    logger.info("stopping")
    await _end(chores)
    compaction.close()
    await server.close(deadline.seconds_left / 2)  # the other half is for the disk
    sasl.close()
    if metrics is not None:
        await metrics.close()
    await _close_logs(context)
    deadline.end()
    logger.info("stopped")


def _flusher(options: BrokerOptions, meters: Meters) -> Flusher:
    slow_rounds = LimitedLog(logger, 1, SystemClock().monotonic)
    timing = partial(timed, telling_slow_rounds(meters.fsyncs.observe, slow_rounds))
    return Flusher(options.durability == "fsync", stop_process, sync_threads(), timing)


def stop_request(loop: asyncio.AbstractEventLoop, *, embedded: bool) -> asyncio.Event:
    """Is set when the broker is to stop: by a signal, or, if it is embedded, by the end of its parent."""
    stopped = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    if embedded:
        stdin = sys.stdin.fileno()

        def parent_has_ended() -> None:  # it writes nothing, so stdin is readable only at its end, and from then on
            loop.remove_reader(stdin)
            stopped.set()

        loop.add_reader(stdin, parent_has_ended)
    return stopped


async def _end(chores: Sequence[asyncio.Task[None]]) -> None:
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)


def _apply(
    coordinator: TransactionCoordinator,
    compaction: Compaction,
    server: Server,
    most_connections: int,
    options: BrokerOptions,
) -> None:
    """Let the parts of the broker use ``options``."""
    coordinator.settings = options.transactions
    compaction.settings = options.cleaner
    server.limits = options.connections(most_connections)


async def _close_logs(context: BrokerContext) -> None:
    """Make everything durable, and note the ends of the logs as recovery points."""
    context.coordinator.write_ends()
    await context.flusher.close()
    with context.flusher.critical(), sync_threads() as threads:  # this may be the first fsync
        context.cluster.checkpoint(threads.map)


def _warn_if_readable(data_dir: Path) -> None:
    exposed = readable_by_others(data_dir, JOURNAL_DIRECTORY)
    if exposed is not None:
        logger.warning(
            "other users of this machine can read %s, where the users' credentials are: run chmod -R go= %s",
            exposed, data_dir,
        )  # fmt: skip


def _raise_limit_of_open_files() -> int:
    """Raise this process's limit of open files as far as the system allows, and return it.

    A broker without free files would stop. So partitions may take half of them, and connections a quarter.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _OPEN_FILES_IF_UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    return highest


def _names(bound: Sequence[BoundListener]) -> str:
    """The addresses for the log; the name of a lone listener of the usual kind says nothing."""
    listeners = [one.listener for one in bound]
    if [listener.name for listener in listeners] == [PLAINTEXT_LISTENER.name]:
        return listeners[0].address
    return ", ".join(f"{listener.name}://{listener.address}" for listener in listeners)


def _log_settings(options: BrokerOptions, cluster: Cluster) -> None:
    if options.absent_listeners:
        logger.info("not listening for controllers, of which there are none: %s", ", ".join(options.absent_listeners))
    dynamic = cluster.given_while_running()
    if dynamic:
        listing = ", ".join(f"{name}={value}" for name, value in sorted(dynamic.items()))
        logger.info("settings that clients changed override --config: %s", listing)


def _serve_metrics(address: tuple[str, int], health: Health) -> "MetricsServer":
    from dualwrite.broker.metrics.http import MetricsServer

    metrics = MetricsServer(*address, health)
    logger.info("metrics at http://%s/metrics", host_and_port(address[0], metrics.port))
    return metrics


def _build_context(
    options: BrokerOptions, flusher: Flusher, meters: Meters, first: Listener, most_partitions: int
) -> BrokerContext:
    files, clock, entropy = DiskFiles(), SystemClock(), SystemEntropy()
    topics = replace(options.topics, most_partitions=most_partitions)
    cluster = Cluster(files, options.data_dir, flusher, clock, entropy, topics)
    coordinator = TransactionCoordinator(files, options.data_dir, cluster, flusher, clock, options.transactions)
    segment_bytes = options.number("offsets.topic.segment.bytes")
    group_log = GroupLog(files, options.data_dir, cluster, flusher, clock, segment_bytes)
    groups = GroupCoordinator(group_log, flusher, clock, entropy, options.groups)
    consumer_groups = ConsumerGroupCoordinator(
        group_log, cluster, flusher, clock, entropy, groups, options.consumer_groups
    )
    offsets = GroupOffsets(group_log, cluster, flusher, clock, options.offsets)
    access = AccessControl(cluster, options.access, clock)
    gc.freeze()  # a full collection would look at every partition again, for tenths of a second if there are thousands
    return BrokerContext(
        cluster, access, coordinator, groups, consumer_groups, offsets, flusher, clock,
        first.advertised_host, first.advertised_port,
        options.is_on("auto.create.topics.enable"), options, ConnectionMemory(options.memory_bytes), meters,
    )  # fmt: skip


def _renew_all(renewing: Sequence[ListenerTls]) -> None:
    for tls in renewing:
        tls.renew(even_if_unchanged=True)


def _clear_ready_file(path: Path) -> None:
    """Remove the ready file of an earlier broker, which a reader would mistake for this one's. Fail at once if the file
    cannot be written."""
    trial = _unfinished(path)
    try:
        path.unlink(missing_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigurationError(f"ready file {path}: {error.strerror}") from None


def _unfinished(path: Path) -> Path:
    """The ready file ``path`` until it is complete. A path such as ``.`` has no name."""
    return path.parent / f"{path.name}.tmp"


def write_ready_file(path: Path, listeners: Sequence[Listener]) -> None:
    """Write the ready file atomically, so that a reader sees all of it: the first listener's address, then the name and
    the address of every listener."""
    unfinished = _unfinished(path)
    lines = [listeners[0].address, *(f"{listener.name} {listener.address}" for listener in listeners)]
    try:
        unfinished.write_text("".join(f"{line}\n" for line in lines))
        unfinished.replace(path)
    except OSError as error:  # the disk may have become full since the check
        raise ConfigurationError(f"ready file {path}: {error.strerror}") from None
