"""Transaction markers: the control records COMMIT and ABORT (KIP-98; Kafka's EndTransactionMarker)."""

import struct
from enum import IntEnum
from functools import lru_cache

from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, build_batch, iterate_records
from dualwrite.records.header import HEADER_SIZE, BatchFields, BatchHeader, MalformedBatchError, seal_placed

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(IntEnum):
    """The type of a control record, as in its key."""

    __hash__ = int.__hash__  # an enum's own is Python code

    ABORT = 0
    COMMIT = 1


def build_marker(marker: Marker, producer: ProducerIdentity, coordinator_epoch: int, timestamp: int) -> bytes:
    """The control batch that ends ``producer``'s transaction in one partition."""
    return place_marker(0, marker, producer, coordinator_epoch, timestamp)[1]


def place_marker(
    base_offset: int, marker: Marker, producer: ProducerIdentity, coordinator_epoch: int, timestamp: int
) -> tuple[BatchHeader, bytes]:
    """As :func:`build_marker`, but with the offset in a log. Also returns the header."""
    fields = BatchFields(producer, transactional=True, control=True)
    return seal_placed(base_offset, _body(marker, coordinator_epoch), fields, 1, (timestamp, timestamp))


@lru_cache(maxsize=16)
def _body(marker: Marker, coordinator_epoch: int) -> bytes:
    """The control record, which is the same at every timestamp and offset."""
    return build_batch([Record(_KEY.pack(0, marker), _VALUE.pack(0, coordinator_epoch))])[HEADER_SIZE:]


def read_marker(batch: bytes | memoryview) -> Marker:
    """The marker in a control batch.

    :raises MalformedBatchError: if the batch has no marker, or an unknown one.
    """
    record = _control_record(batch)
    kind = _KEY.unpack_from(record.key or b"")[1]
    try:
        return Marker(kind)
    except ValueError:
        raise MalformedBatchError(f"control record of unknown type {kind}") from None


def read_coordinator_epoch(batch: bytes | memoryview) -> int:
    """The epoch of the coordinator that wrote the marker in a control batch.

    :raises MalformedBatchError: if the batch has no coordinator epoch.
    """
    record = _control_record(batch)
    if record.value is None or len(record.value) < _VALUE.size:
        raise MalformedBatchError("control record without a coordinator epoch")
    return int(_VALUE.unpack_from(record.value)[1])


def _control_record(batch: bytes | memoryview) -> Record:
    record = next(iterate_records(batch), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise MalformedBatchError("control batch without a control record")
    return record
