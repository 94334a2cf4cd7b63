"""A partition log as a journal of the broker's own records (``__transaction_state``, ``__cluster_metadata``).

The broker reads a journal from its beginning at every start: memory is always its replay. Batches are uncompressed.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files
from dualwrite.records.batch import Record, iterate_records, place_records
from dualwrite.records.header import (
    BatchHeader,
    MalformedBatchError,
    iterate_batches,
)

_SETTINGS = LogSettings(segment_bytes=64 * 1024 * 1024)
_READ_BYTES = 1024 * 1024


class Journal:
    """Records in the order of their append. The threading rules of :class:`PartitionLog` apply here too."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        """The underlying log, for its offsets and to sync and close it."""

    @classmethod
    def open(cls, files: Files, directory: Path, on_record: Callable[[Record], None]) -> "Journal":
        """The journal in ``directory``, which is created if it is missing. Calls ``on_record`` with every record in
        order.

        A torn tail is cut, as from any log: its records were never acknowledged.

        :raises CorruptLogError: if any other part is damaged.
        """
        log = PartitionLog.open(files, directory, _SETTINGS, lambda header, body: None)
        for header, batch in replay(log):
            for record in records_of(log, header, batch):
                on_record(record)
        return cls(log)

    def append(self, records: Sequence[Record]) -> None:
        """Append ``records`` as one batch: after a crash either all of them exist or none. Ignores their offsets.

        :raises ValueError: if there are no records.
        """
        header, batch = place_records(self.log.end_offset, records)
        self.log.append(batch, header)


def replay(log: PartitionLog) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of ``log`` in order. Each was checked, by the start or by the read.

    :raises CorruptLogError: if a batch is damaged.
    """
    offset = log.start_offset
    try:
        while data := log.read(offset, _READ_BYTES, log.end_offset):
            for header, batch in iterate_batches(data):
                yield header, batch
                offset = header.next_offset
    except MalformedBatchError as error:
        raise CorruptLogError(f"{log.directory}: batch at offset {offset}: {error}") from None


def records_of(log: PartitionLog, header: BatchHeader, batch: memoryview) -> Iterator[Record]:
    """The records of one batch from :func:`replay`.

    :raises CorruptLogError: if they cannot be read.
    """
    try:
        yield from iterate_records(batch)
    except MalformedBatchError as error:
        raise CorruptLogError(f"{log.directory}: batch at offset {header.base_offset}: {error}") from None
