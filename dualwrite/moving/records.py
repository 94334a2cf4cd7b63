"""One record on its way from one cluster to the other, and digests of records."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]
_DIGEST_BYTES = 16


class ReadMessage(Protocol):
    """The part of confluent_kafka.Message that is moved."""

    def partition(self) -> int | None:
        """The partition."""

    def offset(self) -> int | None:
        """The offset at the source."""

    def timestamp(self) -> tuple[int, int]:
        """The type of the timestamp, and milliseconds since the epoch; -1 if the record has none."""

    def key(self) -> Any:
        """The key, or None."""

    def value(self) -> Any:
        """The value, or None for a tombstone."""

    def headers(self) -> Any:
        """The headers in their order, or None."""


class MovedRecord(NamedTuple):
    """A record without its topic. ``timestamp`` is in milliseconds since the epoch; -1 for none."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, message: ReadMessage) -> "MovedRecord":
        """The record of a message that a consumer has read."""
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        headers = tuple((name, value) for name, value in message.headers() or ())
        return cls(partition, offset, message.timestamp()[1], message.key(), message.value(), headers)

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    def digest_at(self, offset: int) -> bytes:
        """A digest of everything that is moved, as a record with this offset at the target."""
        hashed = blake2b(digest_size=_DIGEST_BYTES)
        parts: list[bytes | None] = [self.key, self.value]
        for name, value in self.headers:
            parts += (name.encode(), value)
        hashed.update(b"%d %d %d" % (offset, self.timestamp, len(parts)))
        for part in parts:
            hashed.update(b" -" if part is None else b" %d:" % len(part))
            hashed.update(part or b"")
        return hashed.digest()


class PartitionDigest:
    """Count and digest of the records of one partition, in order.

    :param only_last: for a compacted topic, whose clusters remove different records: only the last record of each key,
        and no tombstones. Takes about 200 bytes for each key.
    """

    def __init__(self, *, only_last: bool) -> None:
        self._last: dict[bytes | None, bytes] | None = {} if only_last else None
        self._left_out: set[bytes | None] = set()
        self._running = blake2b(digest_size=_DIGEST_BYTES)
        self._count = 0

    def add(self, record: MovedRecord, offset: int) -> None:
        """Add the next record, which has this offset at the target."""
        digest = record.digest_at(offset)
        if self._last is None:
            self._count += 1
            self._running.update(digest)
        elif record.key in self._left_out:
            return
        elif record.value is None:
            self._last.pop(record.key, None)
        else:
            self._last[record.key] = digest

    def leave_out(self, key: bytes | None) -> None:
        """In a compacted topic: do not count records with this key, because it has a record behind those that are
        compared. The cluster with it may have removed the others."""
        if self._last is not None:
            self._left_out.add(key)
            self._last.pop(key, None)

    @property
    def count(self) -> int:
        """The number of records that count."""
        return self._count if self._last is None else len(self._last)

    def digest(self) -> str:
        """The digest of the records that count, in hexadecimal digits."""
        if self._last is None:
            return self._running.hexdigest()
        return blake2b(b"".join(sorted(self._last.values())), digest_size=_DIGEST_BYTES).hexdigest()


def by_partition(records: Iterable[MovedRecord]) -> Mapping[int, list[MovedRecord]]:
    """The records of each partition, in their order."""
    partitions: dict[int, list[MovedRecord]] = {}
    for record in records:
        partitions.setdefault(record.partition, []).append(record)
    return partitions
