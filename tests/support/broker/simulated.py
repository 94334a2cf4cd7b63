"""The runtime on simulated ports: a disk that stops, a clock that stands still, an event loop with a seeded order."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.log.cleaner import Cleaned
from dualwrite.broker.runtime.cluster import Cluster, TopicSettings
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import GroupCoordinator
from dualwrite.broker.runtime.groups.consumer import ConsumerGroupCoordinator
from dualwrite.broker.runtime.groups.group_log import GroupLog
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.broker.runtime.partition import AppendResult, Partition
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.ports import Files
from dualwrite.records.batch import Record, build_batch, iterate_records
from dualwrite.records.control import Marker, read_marker
from dualwrite.records.header import BatchFields, iterate_batches, peek_header
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.ending_files import EndingFiles, no_last_words

DATA_DIR = Path("/data")
TOPIC = "t"

ResultT = TypeVar("ResultT")


class LoopCleanerThread:
    """A CleanerThread in the event loop's own threads, of which the simulated loop has none."""

    def __init__(self) -> None:
        self.pause: Callable[[], None] = lambda: None

    async def run(self, clean: Callable[[Callable[[], None]], Cleaned]) -> Cleaned:
        return await asyncio.get_running_loop().run_in_executor(None, clean, self.pause)

    def close(self) -> None:
        """There is no thread."""


class SimulatedClock:
    """Time goes on when a test says so; the wall clock also jumps."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self.jumped_ms = 0
        """How far the wall clock is ahead of the clock that does not jump."""
        self.timers: list[FakeTimer] = []

    def wall_ms(self) -> int:
        return self.now_ms + self.jumped_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def call_later(self, seconds: float, function: Callable[[], None]) -> "FakeTimer":
        timer = FakeTimer(self.now_ms + round(seconds * 1000), function)
        self.timers.append(timer)
        return timer

    def pass_ms(self, milliseconds: int) -> None:
        """Let time go on, and everything happen that was to happen meanwhile, in its order."""
        end_ms = self.now_ms + milliseconds
        while due := [timer for timer in self.timers if not timer.is_over and timer.at_ms <= end_ms]:
            first = min(due, key=lambda timer: timer.at_ms)
            self.now_ms, first.is_over = first.at_ms, True
            first.function()
        self.now_ms = end_ms
        self.timers = [timer for timer in self.timers if not timer.is_over]


class FakeTimer:
    """One function to be called when a :class:`SimulatedClock` says so."""

    def __init__(self, at_ms: int, function: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.function = function
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class SeededEntropy:
    """Randomness that a seed repeats."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def random_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)


class Killed(BaseException):
    """The process is gone: raised by every use of the disk from then on; the code under test must not catch it."""


class StoppableFiles(EndingFiles):
    """A disk that stops before its ``stop_at``-th append or sync: of that append a part may be written, and no more.

    :param error: the number of the OSError that every use raises from then on, until :meth:`end_process`. None: the
        process is killed at once.
    """

    beneath: MemoryFiles

    def __init__(
        self, files: MemoryFiles, rng: random.Random, stop_at: int | None = None, error: int | None = None
    ) -> None:
        super().__init__(files, rng)
        self.stopped = asyncio.Event()
        self._left = stop_at
        self._error = error

    def stop_before(self, stop_at: int) -> None:
        """Stop before the ``stop_at``-th append or sync from now on."""
        self._left = stop_at

    def end_process(self, error: BaseException) -> NoReturn:
        """What the broker does once its disk has failed."""
        if not isinstance(error, OSError):
            raise error
        self.stopped.set()
        raise Killed

    def require_alive(self) -> None:
        if self.stopped.is_set():
            raise Killed

    def use(self, last_words: Callable[[], None] = no_last_words) -> None:
        self.require_alive()
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            last_words()
            if self._error is not None:
                raise OSError(self._error, os.strerror(self._error), "simulated")
            self.stopped.set()
            raise Killed


class SteppedLoop(asyncio.SelectorEventLoop):
    """An asyncio loop without threads: what would run in a worker runs here, some steps later, as the seed has it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.set_exception_handler(self._handle)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def run(steps: int) -> None:
            if steps:
                self.call_soon(run, steps - 1)
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001  as a worker hands over whatever it meets
                if not future.done():  # its waiter may have died first
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(run, self._rng.randrange(6))
        return future

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Killed):
            self.default_exception_handler(context)


def run(main: Coroutine[Any, Any, ResultT], seed: int = 0) -> ResultT:
    """Run ``main`` on a :class:`SteppedLoop`, and end what it left running."""
    loop = SteppedLoop(random.Random(seed))
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(end_other_tasks())
        loop.close()


async def end_other_tasks() -> None:
    """Cancel every task but the one that asks: what a process leaves behind when it dies."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def never(error: BaseException) -> NoReturn:
    """For a flusher whose storage must not fail in this test."""
    raise error


class Rooms:
    """The rooms of a broker that a client's requests meet, opened on ``files`` as a start opens them."""

    def __init__(
        self,
        files: Files,
        flusher: Flusher | None = None,
        clock: SimulatedClock | None = None,
        settings: TransactionSettings | None = None,
        rng: random.Random | None = None,
        group_settings: GroupSettings | None = None,
    ) -> None:
        self.files = files
        self.flusher = flusher or Flusher(durable=True, on_failure=never)
        self.clock = clock or SimulatedClock()
        entropy = SeededEntropy(rng or random.Random(1))
        self.cluster = Cluster(files, DATA_DIR, self.flusher, self.clock, entropy, TopicSettings())
        settings = settings or TransactionSettings()
        self.coordinator = TransactionCoordinator(files, DATA_DIR, self.cluster, self.flusher, self.clock, settings)
        self.group_log = GroupLog(files, DATA_DIR, self.cluster, self.flusher, self.clock, settings.log_segment_bytes)
        self.groups = GroupCoordinator(
            self.group_log, self.flusher, self.clock, entropy, group_settings or GroupSettings(), self.clock.call_later
        )
        self.consumer_groups = ConsumerGroupCoordinator(
            self.group_log, self.cluster, self.flusher, self.clock, entropy, self.groups, later=self.clock.call_later
        )
        self.offsets = GroupOffsets(self.group_log, self.cluster, self.flusher, self.clock)

    async def with_topic(self, partitions: int = 3) -> "Rooms":
        """The topic ``t``, made durable if it is new."""
        if self.cluster.topic(TOPIC) is None:
            assert self.cluster.create_topic(CreateTopic(TOPIC, partitions)).fact is not None
        await self.flusher.barrier()
        return self

    def partition(self, index: int) -> Partition:
        found = self.cluster.partition(TopicPartition(TOPIC, index))
        assert found is not None
        return found

    def partitions(self) -> list[Partition]:
        return [self.partition(index) for index in range(self.cluster.topics()[TOPIC].partitions)]


def everybody_may(rooms: Rooms) -> SimpleNamespace:
    """What handlers use of a BrokerContext, without an authorizer."""
    return SimpleNamespace(
        cluster=rooms.cluster,
        coordinator=rooms.coordinator,
        flusher=rooms.flusher,
        clock=rooms.clock,
        access=SimpleNamespace(is_enabled=False),
        may=lambda *_: True,
        may_somewhere=lambda *_: True,
    )


def append(
    partition: Partition, value: bytes, producer: ProducerIdentity = NO_PRODUCER, sequence: int = -1
) -> AppendResult:
    """Append one record, transactional if it has a producer."""
    fields = BatchFields(producer, sequence, transactional=bool(producer))
    batch = build_batch([Record(None, value)], fields)
    return partition.append(batch, peek_header(batch))


class Logged:
    """One entry of a partition's log: a record's value, or a marker."""

    def __init__(self, offset: int, producer: ProducerIdentity, value: bytes | None, marker: Marker | None) -> None:
        self.offset = offset
        self.producer = producer
        self.value = value
        self.marker = marker


def read_log(partition: Partition) -> list[Logged]:
    """Everything in the log of ``partition``."""
    entries, offset = [], 0
    while offset < partition.log.end_offset:
        for header, batch in iterate_batches(partition.log.read(offset, 1 << 20, partition.log.end_offset)):
            if header.is_control:
                entries.append(Logged(header.base_offset, header.producer, None, read_marker(batch)))
            else:
                for record in iterate_records(batch):
                    entries.append(Logged(record.offset, header.producer, record.value, None))
            offset = header.next_offset
    return entries


async def reserved(rooms: Rooms) -> None:
    """Reserve producer ids: that reservation alone is synced with ``durability=os``, too."""
    rooms.cluster.reserve_producer_ids()
    await rooms.flusher.barrier()
