"""What consumers of the classic protocol tell each other: their subscriptions, and the leader's assignments.

To a classic group these are opaque bytes. The broker reads them to know which topics a group reads, and when members of
both protocols are in one group. A later version has the form of the last known one, and perhaps more behind it. (Kafka:
ConsumerProtocol, ConsumerProtocolSubscription, ConsumerProtocolAssignment.)
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dualwrite.broker.facts.fields import INT, SHORT, decode_string, encode_string
from dualwrite.ids import TopicPartition

NEWEST_VERSION = 3
"""The newest version of both structures that is known here."""

_FIRST_WITH_OWNED, _FIRST_WITH_GENERATION, _FIRST_WITH_RACK = 1, 2, 3
_NULL = -1


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """A member's metadata for an assignor.

    :param owned: the partitions that the member has when it joins (v1). It has given all others up.
    :param generation: the generation in which it got them (v2); negative if it does not say.
    """

    version: int
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """The partitions that the leader has assigned to a member, and a word of the assignor to itself."""

    partitions: frozenset[TopicPartition]
    user_data: bytes = b""


def read_topics(data: bytes) -> frozenset[str]:
    """The topics of a subscription, which begins with them in every version.

    :raises ValueError: if ``data`` is no subscription.
    """
    return frozenset(_Reader(data).subscription_head()[1])


def read_subscription(data: bytes) -> ConsumerSubscription:
    """The subscription that ``data`` stands for.

    :raises ValueError: if it is none.
    """
    reader = _Reader(data)
    version, topics = reader.subscription_head()
    reader.bytes()
    return ConsumerSubscription(
        version,
        tuple(topics),
        reader.partitions() if version >= _FIRST_WITH_OWNED else frozenset(),
        reader.number(INT) if version >= _FIRST_WITH_GENERATION else -1,
        reader.text() if version >= _FIRST_WITH_RACK else None,
    )


def read_assignment(data: bytes) -> ConsumerAssignment:
    """The assignment that ``data`` stands for; without data there are no partitions.

    :raises ValueError: if it is none.
    """
    if not data:
        return ConsumerAssignment(frozenset())
    reader = _Reader(data)
    reader.version()
    return ConsumerAssignment(reader.partitions(), reader.bytes())


def write_assignment(version: int, partitions: Iterable[TopicPartition]) -> bytes:
    """``partitions`` as an assignment of ``version``, or of the newest one known here."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    parts = [SHORT.pack(min(version, NEWEST_VERSION)), INT.pack(len(numbers))]
    for topic, of_topic in numbers.items():
        parts += encode_string(topic), INT.pack(len(of_topic)), *map(INT.pack, of_topic)
    return b"".join([*parts, INT.pack(_NULL)])


class _Reader:
    """Reads ``data`` from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, form: struct.Struct) -> int:
        if self._position + form.size > len(self._data):
            raise ValueError("consumer protocol data cut short")
        value: int = form.unpack_from(self._data, self._position)[0]
        self._position += form.size
        return value

    def version(self) -> int:
        version = self.number(SHORT)
        if version < 0:
            raise ValueError(f"consumer protocol of version {version}")
        return version

    def text(self) -> str | None:
        if self.number(SHORT) == _NULL:
            return None
        text, self._position = decode_string(self._data, self._position - SHORT.size)
        return text

    def bytes(self) -> bytes:
        size = max(self.number(INT), 0)
        if self._position + size > len(self._data):
            raise ValueError("consumer protocol data cut short")
        self._position += size
        return self._data[self._position - size : self._position]

    def subscription_head(self) -> tuple[int, list[str]]:
        version = self.version()
        return version, [self.text() or "" for _ in range(self.number(INT))]

    def partitions(self) -> frozenset[TopicPartition]:
        found = set()
        for _ in range(self.number(INT)):
            topic = self.text() or ""
            for _ in range(self.number(INT)):
                found.add(TopicPartition(topic, self.number(INT)))
        return frozenset(found)
