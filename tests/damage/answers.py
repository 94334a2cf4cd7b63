"""Everything that clients are answered from a data directory: each batch, the look-ups by time, and the state."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dualwrite.broker.runtime.partition import Partition
from dualwrite.records.control import read_marker
from dualwrite.records.header import BatchHeader, MalformedBatchError, iterate_batches
from dualwrite.records.log_records import log_records
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import Rooms

TIMES = (0, 1030, 1075, 2000, 3003, 3007, 5015, 6010, 1_000_001, 2**50)
"""Timestamps to look up, in milliseconds since the epoch: before all records, among them, and after them."""
REFUSED = "an error"
"""What a reader of a damaged batch gets."""
Place = tuple[str, str, int]


class BrokerAnswers(NamedTuple):
    """What a broker answers.

    :param reads: by partition, kind of question and offset or time, the answer as text, or REFUSED.
    :param state: by name, what the broker's memory holds.
    :param warnings: the lines that the start has logged.
    """

    reads: dict[Place, str]
    state: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def whole(self) -> tuple[dict[Place, str], dict[str, str]]:
        """The answers without the log."""
        return self.reads, self.state


async def answers_of(files: MemoryFiles, known: BrokerAnswers | None = None) -> BrokerAnswers:
    """Start on ``files``, and ask for everything.

    :param known: the answers from the undamaged directory. Where a reader is refused, each batch in them is asked for
        alone.
    """
    with _warnings() as lines:
        rooms = Rooms(files)
        await rooms.coordinator.finish_decided()
        await rooms.flusher.barrier()
    reads: dict[Place, str] = {}
    state = _state(rooms)
    for partition in rooms.cluster.partitions():
        name = str(partition.name)
        reads.update(_batches(partition, known))
        for time in TIMES:
            reads[name, "time", time] = _look_up(partition, time)
        reads[name, "highest time", 0] = _look_up(partition, None)
        state[name] = _partition_state(partition)
    await rooms.flusher.close()
    rooms.cluster.checkpoint()
    return BrokerAnswers(reads, state, tuple(lines))


def _state(rooms: Rooms) -> dict[str, str]:
    cluster = rooms.cluster.state
    return {
        "cluster": repr(cluster),
        "transactions": repr(sorted(rooms.coordinator.table.entries.items())),
        "groups": repr(rooms.group_log.table.groups),
        "offsets": repr(rooms.offsets.table),
    }


def _partition_state(partition: Partition) -> str:
    state, log = partition.state, partition.log
    producers = [
        (entry.producer_id, entry.epoch, tuple(entry.batches), entry.transaction_start, entry.coordinator_epoch)
        for _, entry in sorted(state.producers.items())
    ]
    bounds = log.start_offset, partition.last_stable_offset, state.high_watermark, log.end_offset
    return repr((bounds, producers, list(state.open_transactions.items())))


def _batches(partition: Partition, known: BrokerAnswers | None) -> Iterator[tuple[Place, str]]:
    name, offset = str(partition.name), partition.log.start_offset
    answers: dict[Place, str] = {}
    try:
        while data := partition.log.read(offset, 1 << 20, partition.log.end_offset):
            for header, batch in iterate_batches(data):
                answers[name, "batch", header.base_offset] = _content(partition, header, batch)
                offset = header.next_offset
        yield from answers.items()
        return
    except (MalformedBatchError, OSError) as error:
        if known is None:
            raise AssertionError(f"the undamaged directory cannot be read: {error}") from error
    for place in known.reads:
        if place[:2] == (name, "batch"):
            yield place, _one_batch(partition, place[2])


def _one_batch(partition: Partition, offset: int) -> str:
    """The answer to a reader that asks for one batch."""
    try:
        data = partition.log.read(max(offset, partition.log.start_offset), 1, partition.log.end_offset)
        return next((_content(partition, *batch) for batch in iterate_batches(data)), "nothing")
    except (MalformedBatchError, OSError):
        return REFUSED


def _content(partition: Partition, header: BatchHeader, batch: memoryview) -> str:
    """What a consumer makes of a batch without a look at its checksum, as librdkafka does by default."""
    if header.is_control:
        marker = read_marker(batch) if header.record_count else None
        return f"{header.base_offset}: {marker} of {header.producer}"
    first, before = header.base_offset, header.next_offset
    aborted = [ended.producer_id for ended in partition.state.aborted_between(first, before)]
    is_aborted = header.is_transactional and header.producer_id in aborted
    records = [tuple(record) for record in log_records(header, batch)]
    fields = header.producer, header.base_sequence, header.is_transactional, header.max_timestamp
    return repr((first, before, "aborted" if is_aborted else "shown", header.partition_leader_epoch, fields, records))


def _look_up(partition: Partition, time: int | None) -> str:
    log = partition.log
    try:
        if time is None:
            return repr(log.max_timestamp(log.end_offset))
        return repr(log.offset_for_timestamp(time, log.end_offset))
    except (MalformedBatchError, OSError):
        return REFUSED


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The warnings of the broker, which go nowhere else meanwhile."""
    logger, handler = logging.getLogger("dualwrite"), _Lines()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
