"""The broker's own topics: journals that clients may read like any other topic, and that only the broker writes.

``__transaction_state`` and ``__consumer_offsets`` have one partition each instead of Kafka's fifty: on one node, more
partitions would only mean more fsyncs. A coordinator's state is the replay of its topic.
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dualwrite.broker.core.cluster import CONSUMER_OFFSETS, TRANSACTION_STATE
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.log.journal import records_of, replay
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.journaling import unreadable
from dualwrite.broker.runtime.partition import Partition, replay_into
from dualwrite.ids import TopicPartition
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker, read_marker
from dualwrite.records.header import BatchFields, BatchHeader

logger = logging.getLogger(__name__)

OnRecord = Callable[[Record, BatchHeader], None]
OnMarker = Callable[[BatchHeader, Marker], None]

_JOURNAL = {"cleanup.policy": "compact", "segment.bytes": "4194304", "delete.retention.ms": "60000"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    CONSUMER_OFFSETS: {**_JOURNAL, "compression.type": "producer"},
    TRANSACTION_STATE: {**_JOURNAL, "compression.type": "uncompressed"},
}
"""The settings of these topics: Kafka's, except those that limit the time of a start (docs/decisions/0007)."""


class InternalTopic:
    """One of the broker's own topics. Belongs to the event loop's thread."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        """The topic's only partition, which is also registered in the cluster."""

    @classmethod
    def open(
        cls,
        name: str,
        files: Files,
        data_dir: Path,
        cluster: Cluster,
        flusher: Flusher,
        on_record: OnRecord,
        on_marker: OnMarker | None = None,
        segment_bytes: int | None = None,
    ) -> "InternalTopic":
        """The topic ``name``, replayed and registered in ``cluster``.

        :param on_record: called with every record in order, and its batch's header.
        :param on_marker: called with every transaction marker, in its order among the records: at once for markers on
            disk, and later for each that is appended.
        :param segment_bytes: the topic's segment.bytes; None for 4 MiB.
        :raises CorruptLogError: if the log is damaged, or ``on_record`` rejects a record (ValueError, AssertionError).
        """
        directory, state = data_dir / f"{name}-0", PartitionState()
        settings = dict(SETTINGS[name])
        if segment_bytes is not None:
            settings["segment.bytes"] = str(segment_bytes)
        goes_by = LogSettings(int(settings["segment.bytes"]))
        log = PartitionLog.open(files, directory, goes_by, replay_into(state), state.restore)
        if log.cut_bytes:
            logger.warning("%s: cut %d bytes that a crash left unfinished", directory, log.cut_bytes)
        for repair in log.repairs:
            logger.warning("%s: %s", directory, repair)
        state.open_at(log.end_offset)  # all of it is durable: opening the log has synced it
        _replay(log, on_record, on_marker)
        partition = Partition(TopicPartition(name, 0), log, state, flusher, on_marker)
        # The id is derived, not stored: the same at every start, and different in every cluster.
        topic_id = uuid.uuid5(uuid.UUID(cluster.state.cluster_id), name)
        cluster.add_internal(TopicCreated(name, topic_id, 1, settings), partition)
        return cls(partition)

    def append(self, records: Sequence[Record], fields: BatchFields | None = None) -> int:
        """Append ``records`` as one batch, and return the first one's offset. After a crash either all of them exist or
        none.

        :param fields: the header fields of their transaction, if any.
        """
        return self.partition.append_own(records, fields)


def _replay(log: PartitionLog, on_record: OnRecord, on_marker: OnMarker | None) -> None:
    for header, batch in replay(log):
        if header.is_control:
            if on_marker is not None and header.record_count:  # otherwise compaction has emptied the batch
                on_marker(header, read_marker(batch))
            continue
        for record in records_of(log, header, batch):
            try:
                on_record(record, header)
            except (ValueError, AssertionError) as error:
                raise unreadable(log.directory, record, error) from error
