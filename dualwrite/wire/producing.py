"""What a transactional producer asks for every unit of work, encoded by hand: byte for byte what kafka-python writes.

Each has the two methods of kafka-python's messages that ``codec.write_request`` uses, so it goes wherever they do.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dualwrite.records.varint import encode_unsigned_varint

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_NO_TAGS = b"\x00"
_THREE_TAG_BUFFERS = b"\x00\x00\x00"
_ONE = b"\x02"
"""The length of a compact array of one."""
_ALL_REPLICAS = -1
_VERSION = 12


class ProduceBatch(NamedTuple):
    """One batch of a request: the bytes, and where they are to go."""

    topic: str
    partition: int
    data: bytes


class TransactionalProduce(NamedTuple):
    """A Produce request v12 of a transaction, with acks=all.

    :param batches: at most one of each partition.
    """

    transactional_id: str
    timeout_ms: int
    batches: Sequence[ProduceBatch]

    def flexible_version_q(self, version: int) -> bool:
        """v12 is flexible."""
        assert version == _VERSION, "encoded here in v12 alone"
        return True

    def encode(self, version: int) -> bytes:
        """The request's body."""
        head = _compact(self.transactional_id) + _ACKS_AND_TIMEOUT.pack(_ALL_REPLICAS, self.timeout_ms)
        if len(self.batches) == 1:
            topic, partition, data = self.batches[0]
            size = encode_unsigned_varint(len(data) + 1)
            place = _compact(topic) + _ONE + _INDEX.pack(partition)
            return b"".join((head, _ONE, place, size, data, _THREE_TAG_BUFFERS))
        topics: dict[str, list[ProduceBatch]] = {}
        for batch in self.batches:
            topics.setdefault(batch.topic, []).append(batch)
        parts = [head, encode_unsigned_varint(len(topics) + 1)]
        for name, batches in topics.items():
            parts += _compact(name), encode_unsigned_varint(len(batches) + 1)
            for batch in batches:
                parts += _INDEX.pack(batch.partition), encode_unsigned_varint(len(batch.data) + 1), batch.data, _NO_TAGS
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
        return b"".join(parts)


def _compact(text: str) -> bytes:
    data = text.encode()
    return encode_unsigned_varint(len(data) + 1) + data
