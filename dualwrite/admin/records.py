"""Reads the records of a topic with the state of their transactions, as no consumer of librdkafka or Java can.

A consumer of a Kafka library hides control records and, with read_committed, aborted records; with read_uncommitted it
does not tell which are aborted or open. This reads the log itself, with the project's own client, and joins no group.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from dualwrite.admin.arguments import require_indexes, require_integer, require_text
from dualwrite.admin.connecting import DEFAULT_TIMEOUT, connected, partitions_of
from dualwrite.admin.open_transactions import transactional_ids
from dualwrite.admin.starts import start_offsets
from dualwrite.admin.views import Start, TopicRecord
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.admin.log_reader import LogReader
from dualwrite.client.encoding.record_states import LaterMarkers, StatedRecord, stable_records
from dualwrite.client.encoding.transaction_end import LogSlice, batches_before, offset_after
from dualwrite.client.terms.record_states import RecordState
from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.records.header import MalformedBatchError

FOLLOW_SECONDS = 0.2
"""How long ``follow`` pauses between two looks at the ends of the partitions."""

PIECE_BYTES = 1024 * 1024
"""Bytes of the log that one Fetch reads; a batch that is larger comes whole."""


def read_records(
    kafka: Mapping[str, Any],
    topic: str,
    *,
    partitions: Collection[int] | None = None,
    start: Start = "beginning",
    committed: bool = True,
    markers: bool = False,
    limit: int | None = None,
    follow: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[TopicRecord]:
    """The records of ``topic`` from ``start`` on, up to the end that each partition had when it was reached: one
    partition after the other, each in the order of offsets.

    Nothing is written: there is no group, and no offset is committed. READ on the topic must be granted. Behind the
    last stable offset a partition is read twice: first for the markers that tell how the transactions there ended.

    :param partitions: only these; None for all that there are at the beginning.
    :param start: where to begin; see ``dualwrite.admin.views.Start``. The end is that of ``committed``.
    :param committed: True for the records that read_committed consumers see; False for all of them, with the state that
        each has when it is read.
    :param markers: True for control records, too.
    :param limit: the most records to read.
    :param follow: True to go on with new records. Then the iteration does not end, unless there is a ``limit``.
    :param sleep: waits between two looks.
    :raises InputError: if ``topic`` is not a topic's name, or a partition does not exist, or ``limit`` is negative; or
        if a log has a batch that is damaged, or older than format v2.
    :raises KafkaRefusedError: if there is no such topic, or READ is not granted.
    """
    require_text(topic=topic)
    require_indexes(partitions)
    require_integer(limit=limit)
    if limit is not None and limit < 0:
        raise InputError(f"limit {limit}: use 0 or more")
    with connected(kafka, timeout) as cluster:
        chosen = partitions_of(cluster, topic, partitions)
        offsets = start_offsets(cluster, chosen, start, committed=committed)
        names = _Names(cluster)
        logs = LogReader(cluster, None)
        readers = [_PartitionReader(logs, partition, offsets[partition], committed) for partition in chosen]
        records = (
            record
            for reader in _turns(readers, follow, sleep)
            for piece in reader.to_the_end()
            for record in _shown(piece, reader.partition, names, committed=committed, markers=markers)
        )
        yield from islice(records, None if limit is None else min(limit, sys.maxsize))


def count_unread(cluster: ClusterClient, partition: TopicPartition, offset: int, end: int) -> int | None:
    """How many records a read_committed consumer gets from ``offset`` up to ``end``, a last stable offset; None if
    they are more than one Fetch reads, or one of them cannot be read.

    :raises KafkaRefusedError: if READ on the topic is not granted.
    """
    piece = LogReader(cluster, None).read(partition, offset, committed=True, most=PIECE_BYTES)
    if piece is None:
        return None
    following = offset_after(piece.records)
    if following is not None and following < min(end, piece.last_stable_offset):
        return None
    try:
        records = list(stable_records(piece, offset))
    except MalformedBatchError:
        return None
    return sum(stated.state.may_be_read for stated in records if stated.record.offset < end)


class _Piece(NamedTuple):
    """Records of one partition, and whether they are before its last stable offset."""

    records: list[StatedRecord]
    is_stable: bool


class _Names:
    """The transactional ids of producers. Each producer is asked for once."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[int, str | None] = {}

    def of(self, records: Collection[StatedRecord]) -> Mapping[int, str | None]:
        """The transactional id of each producer of ``records``; None if the cluster does not tell it."""
        needed = {stated.producer.producer_id for stated in records if stated.state is not RecordState.PLAIN}
        unknown = needed - self._known.keys()
        if unknown:
            self._known |= dict.fromkeys(unknown) | transactional_ids(self._cluster, unknown)
        return self._known


class _PartitionReader:
    """Reads one partition from ``offset`` on."""

    def __init__(self, logs: LogReader, partition: TopicPartition, offset: int, committed: bool) -> None:
        self.partition = partition
        self._logs = logs
        self._offset = offset
        self._is_committed = committed

    def to_the_end(self) -> Iterator[_Piece]:
        """The records up to the end that the partition has now. The next call goes on there."""
        piece = self._read(committed=True)
        end = piece.last_stable_offset if self._is_committed else piece.high_watermark
        while piece.records:
            with _readable(self.partition, self._offset):
                records = list(stable_records(piece, self._offset))
            self._go_behind(piece.records)
            yield _Piece(records, True)
            if self._offset >= end:
                return
            piece = self._read(committed=True)
        if not self._is_committed and self._offset < end:
            yield from self._held_back(end, max(end, piece.high_watermark))

    def _held_back(self, end: int, newest: int) -> Iterator[_Piece]:
        """The records from the last stable offset up to ``end``, in the states that they have by the log up to
        ``newest``: a reader may have taken long to come here."""
        begin, markers = self._offset, LaterMarkers()
        for records in self._uncommitted(newest):
            with _readable(self.partition, self._offset):
                markers.add(records)
        self._offset = begin
        for records in self._uncommitted(end):
            with _readable(self.partition, self._offset):
                stated = list(markers.records(records, self._offset))
            yield _Piece(stated, False)

    def _uncommitted(self, end: int) -> Iterator[bytes]:
        """Pieces of the log up to ``end``. The offset moves behind a piece when the next one is wanted."""
        while self._offset < end:
            records = batches_before(self._read(committed=False).records, end)
            if not records:
                return
            yield records
            self._go_behind(records)

    def _read(self, *, committed: bool) -> LogSlice:
        """A piece of the log; empty at its end. Goes on with the first record if those before it were deleted."""
        piece = self._logs.read(self.partition, self._offset, committed=committed, most=PIECE_BYTES)
        if piece is not None:
            return piece
        extent = self._logs.extent(self.partition)
        if self._offset < extent.start:
            self._offset = extent.start
            return self._read(committed=committed)
        return LogSlice(self._offset, self._offset, (), b"")

    def _go_behind(self, records: bytes) -> None:
        following = offset_after(records)
        assert following is not None, "the first batch is whole"
        self._offset = max(following, self._offset)


def _turns(
    readers: Collection[_PartitionReader], follow: bool, sleep: Callable[[float], None]
) -> Iterator[_PartitionReader]:
    yield from readers
    while follow:
        sleep(FOLLOW_SECONDS)
        yield from readers


def _shown(
    piece: _Piece, partition: TopicPartition, names: _Names, *, committed: bool, markers: bool
) -> Iterator[TopicRecord]:
    chosen = [
        stated
        for stated in piece.records
        if (markers if stated.state.is_marker else stated.state.may_be_read or not committed)
    ]
    known = names.of(chosen)
    for record, state, producer in chosen:
        name = None if state is RecordState.PLAIN else known.get(producer.producer_id)
        is_visible = piece.is_stable and state.may_be_read
        yield TopicRecord(partition, *record, state, is_visible, producer, name)


@contextmanager
def _readable(partition: TopicPartition, offset: int) -> Iterator[None]:
    """Turns a damaged batch into an error for the user."""
    try:
        yield
    except MalformedBatchError as error:
        raise InputError(f"partition {partition} from offset {offset} on: {error}") from None
