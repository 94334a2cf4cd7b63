"""Encodes records of one partition as one batch of a transaction, in the message format v2 (KIP-98, "RecordBatch").

Every produce() encodes a record, so this is written for speed: most numbers in records are small, and their varints
come from a table.
"""

from dualwrite.ids import ProducerIdentity
from dualwrite.records.compression import Codec, compress
from dualwrite.records.header import HEADER_SIZE, seal_transactional
from dualwrite.records.outgoing import Headers
from dualwrite.records.varint import encode_varint

_TABLE_SIZE = 16 * 1024
_VARINTS = tuple(encode_varint(value) for value in range(_TABLE_SIZE))
_NULL = encode_varint(-1)
_LONGEST_FRAME = 21
"""The most bytes that a record takes beside its key, value and headers: its size, attributes, two deltas, and the
sizes of key and value (Kafka: DefaultRecord.MAX_RECORD_OVERHEAD)."""
_LONGEST_VARINT = 5
RECORD_OVERHEAD = _LONGEST_FRAME + _LONGEST_VARINT
"""The most bytes that a record takes beside its key, value and headers, with the number of its headers."""


def record_size(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """The most bytes that a record can take in a batch (Kafka: DefaultRecord.recordSizeUpperBound)."""
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + headers_size(headers)


def headers_size(headers: Headers) -> int:
    """The most bytes that headers can take in a batch, without their number."""
    return sum(2 * _LONGEST_VARINT + len(name.encode()) + len(content or b"") for name, content in headers)


class BatchBuilder:
    """Gathers records, and encodes them as one batch.

    :param limit: bytes of the batch before compression, past which it has no room for another record. A single record
        may be larger.
    """

    __slots__ = ("_body", "_first_timestamp", "_highest_timestamp", "count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._body = bytearray()
        self._first_timestamp = 0
        self._highest_timestamp = 0

    @property
    def size(self) -> int:
        """Bytes of the batch so far, before compression."""
        return HEADER_SIZE + len(self._body)

    def has_room(self, size: int) -> bool:
        """True if a record of ``size`` bytes would leave the batch within its limit, or be its first."""
        return not self.count or HEADER_SIZE + len(self._body) + size <= self.limit

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        """Add one more record, whether there is room or not.

        :param key: None is null, as for the value and the headers' values.
        :param timestamp_ms: milliseconds since the epoch.
        """
        if self.count:
            since = timestamp_ms - self._first_timestamp
            if timestamp_ms > self._highest_timestamp:
                self._highest_timestamp = timestamp_ms
        else:
            since = 0
            self._first_timestamp = self._highest_timestamp = timestamp_ms
        record = b"".join(
            (
                b"\x00",  # attributes: none are defined
                _VARINTS[since] if 0 <= since < _TABLE_SIZE else encode_varint(since),
                _VARINTS[self.count] if self.count < _TABLE_SIZE else encode_varint(self.count),
                # Like _sized, without the cost of a call.
                _NULL if key is None else _VARINTS[len(key)] + key if len(key) < _TABLE_SIZE else _sized(key),
                _NULL if value is None else _VARINTS[len(value)] + value if len(value) < _TABLE_SIZE else _sized(value),
                _encoded(headers) if headers else b"\x00",
            )
        )
        size = len(record)
        self._body += _VARINTS[size] if size < _TABLE_SIZE else encode_varint(size)
        self._body += record
        self.count += 1

    def seal(self, codec: Codec, level: int | None, producer: ProducerIdentity, sequence: int) -> bytes:
        """The batch, with base offset 0. Stays uncompressed if ``codec`` would not make it smaller.

        :param level: as for :func:`~dualwrite.records.compression.compress`.
        :param sequence: the sequence number of its first record in the partition.
        """
        body: bytes | bytearray = self._body
        if codec:
            compressed = compress(codec, bytes(body), level)
            if len(compressed) < len(body):
                body = compressed
            else:
                codec = Codec.NONE
        timestamps = self._first_timestamp, self._highest_timestamp
        return seal_transactional(body, codec, self.count, timestamps, producer, sequence)


def _sized(data: bytes) -> bytes:
    size = len(data)
    return (_VARINTS[size] if size < _TABLE_SIZE else encode_varint(size)) + data


def _encoded(headers: Headers) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, content in headers:
        parts += [_sized(name.encode()), _NULL if content is None else _sized(content)]
    return b"".join(parts)
