"""The identities that both sides of a dual write agree on. Equality of transactions is defined here and nowhere else.

KIP-939 names a prepared transaction ``producerId:epoch``. That is unique only where every transaction bumps the epoch
(KIP-890 part 2). A client that speaks the older protocol keeps one epoch for its whole session, so its transactions N
and N+1 have the same pair. Two facts distinguish them. The anchor is the offset at which the transaction began in one
of its partitions; no other transaction has it while the topic exists. The start time that the transaction coordinator
keeps survives the deletion of topics, and differs between the transactions of a session (librdkafka.py ensures that).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dualwrite.errors import ConfigurationError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = 32767
TWO_PHASE_TIMEOUT_MS = 2147483647
"""The transaction.timeout.ms of a transaction that never expires: how Apache Kafka stores one of two-phase commit,
and how a client that cannot say Enable2Pc asks for it."""

LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS = TWO_PHASE_TIMEOUT_MS - 100
"""The transaction.timeout.ms by which librdkafka asks for two-phase commit: the longest beside which it takes a
socket.timeout.ms (librdkafka_settings.py)."""

TWO_PHASE_TIMEOUTS_MS = frozenset((TWO_PHASE_TIMEOUT_MS, LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS))
"""The timeouts that ask for two-phase commit."""

UNKNOWN_START = -1
"""The start time of a transaction of which none is known."""

_LONGEST_TOPIC_IN_ANCHOR = 198
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = "(0|[1-9][0-9]{0,18})"
_STATE = re.compile(f"{_NUMBER}:{_NUMBER}(?::([^:]+):{_NUMBER}:{_NUMBER})?")
_MAX_INT, _MAX_LONG = 2**31 - 1, 2**63 - 1
_LEGAL_TRANSACTIONAL_ID = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
"""UTF-8 cannot encode what is between D800 and DFFF."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch, by which the broker decides which producer may write (KIP-98)."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH

    def __bool__(self) -> bool:
        return self.producer_id >= 0

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"


NO_PRODUCER = ProducerIdentity()


def is_legal_topic(name: str) -> bool:
    """True if a topic can be called ``name`` (Kafka: Topic.validate)."""
    return _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def validated_transactional_id(value: str) -> str:
    """Return ``value`` if it can name a transactional producer and be a key of the state table.

    :raises ConfigurationError: if it is empty, longer than 255 characters, or contains a control character.
    """
    if not _LEGAL_TRANSACTIONAL_ID.fullmatch(value):
        raise ConfigurationError(f"transactional id {value!r}: use 1 to 255 characters, no control characters")
    return value


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a transaction began in one of its partitions: unique for ever, as a log gives no offset twice.

    :param topic: the topic's name, shortened by a digest if it is very long (see :meth:`of`).
    :param partition: the partition's index.
    :param offset: the offset of the transaction's first record there.
    """

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, partition: TopicPartition, offset: int) -> "Anchor":
        """The anchor of a transaction whose first record in ``partition`` has ``offset``."""
        return cls(_shortened(partition.topic), partition.partition, offset)

    def is_in(self, partition: TopicPartition) -> bool:
        """True if the anchor lies in ``partition``."""
        return self.partition == partition.partition and self.topic == _shortened(partition.topic)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


def _shortened(topic: str) -> str:
    """A topic name that leaves room for the rest of the state in 255 characters. '~' is illegal in topic names, so a
    shortened name is never some other topic's."""
    if len(topic) <= _LONGEST_TOPIC_IN_ANCHOR:
        return topic
    return topic[:165] + "~" + hashlib.sha256(topic.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class OngoingTransaction:
    """The open transaction of a transactional id, as the cluster describes it.

    :param producer: the identity under which its records were written.
    :param start_offsets: CurrentTxnStartOffset of ``producer`` in the partitions that were asked (DescribeProducers). A
        partition whose topic was deleted, or was created again, has none.
    :param partitions: the transaction's partitions (DescribeTransactions), including deleted ones.
    :param started_ms: when it began, by its coordinator's clock; UNKNOWN_START if that is unknown.
    """

    producer: ProducerIdentity
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = UNKNOWN_START


class Match(Enum):
    """Whether an open transaction is the one of a stored state."""

    SAME = "the transaction that was prepared"
    OTHER = "another transaction"
    UNKNOWN = "unknown: the topic or the start time that would show it is missing"


class Ending(Enum):
    """How a transaction ended, as the log of its first record shows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "its records are not where they were acknowledged: the log ends before, or another producer's are there"
    OPEN = "it has no end, as far as the log goes"
    UNKNOWN = "the log does not show it: the record is too old, compacted or deleted, or this client may not read it"


class EndedTransaction(NamedTuple):
    """How a prepared transaction ended, as a log shows.

    :param was_overtaken: True if the same producer id has committed another transaction after it, as far as the log
        was read.
    :param unread: the topic that this client may not read, so that the ending is UNKNOWN; empty if it may.
    """

    ending: Ending
    was_overtaken: bool = False
    unread: str = ""


@dataclass(frozen=True, slots=True, init=False)
class PreparedTxnState:
    """KIP-939's PreparedTxnState: which transaction was prepared, as one string of at most 255 characters.

    The string is the KIP's ``producerId:epoch``, followed by ``:topic:partition:offset`` if there is an anchor. The
    empty state, ``PreparedTxnState()``, is the empty string and identifies nothing.

    :param producer: the string that ``str()`` gave, as in KIP-939; or the identity, with the anchor if there is one.
    :param first_record: where a record of the transaction is: the anchor, if there is one. It says where to look for
        how the transaction ended; it is no part of the identity, nor of the string.
    :param started_ms: of a state with an anchor: when the transaction began, by its coordinator's clock; UNKNOWN_START
        if that is not known. It is no part of the string; :meth:`match` and :meth:`is_same_as` use it.
    :param topic_id: the id of the topic of ``first_record``, as Kafka writes it; empty if it is not known. A topic of
        another id has taken over the name, and says nothing of this transaction.
    :raises ConfigurationError: if the string is no such string.
    :raises TypeError: if it is neither. None is neither, so that a value that is missing never means "abort".
    """

    producer: ProducerIdentity
    anchor: Anchor | None
    first_record: Anchor | None = field(compare=False)
    started_ms: int = field(compare=False)
    topic_id: str = field(compare=False)

    def __init__(
        self,
        producer: ProducerIdentity | str = NO_PRODUCER,
        anchor: Anchor | None = None,
        first_record: Anchor | None = None,
        started_ms: int = UNKNOWN_START,
        topic_id: str = "",
    ) -> None:
        if type(producer) is not ProducerIdentity:
            if anchor is not None or not isinstance(producer, str):
                raise TypeError(
                    f"PreparedTxnState of type {type(producer).__name__}: give the text that str() wrote, or a"
                    " ProducerIdentity"
                )
            producer, anchor = _parsed(producer)
        object.__setattr__(self, "producer", producer)
        object.__setattr__(self, "anchor", anchor)
        object.__setattr__(self, "first_record", anchor or first_record)
        object.__setattr__(self, "started_ms", UNKNOWN_START if anchor is None else started_ms)
        object.__setattr__(self, "topic_id", topic_id)

    def __bool__(self) -> bool:
        return bool(self.producer)

    def identifies(self, ongoing: OngoingTransaction) -> bool:
        """True if ``ongoing`` is the very transaction that was prepared, and not an earlier or later one."""
        return self.match(ongoing) is Match.SAME

    def match(self, ongoing: OngoingTransaction) -> Match:
        """What ``ongoing`` is to the transaction that was prepared.

        Without an anchor the pair decides, as KIP-939 has it. With one, the ongoing transaction must also have begun at
        the anchor: a transaction of the same session that began anywhere else is another transaction. So is one that
        began at another time: a topic that was made anew gives its offsets again. Where the anchor's partition has
        nothing of the transaction (its topic was deleted, or made anew, or an operator has ended it there), the time
        decides alone.
        """
        if not self or self.producer != ongoing.producer:
            return Match.OTHER
        if self.anchor is None:
            return Match.SAME
        starts = {offset for partition, offset in ongoing.start_offsets.items() if self.anchor.is_in(partition)}
        is_in_it = bool(starts) or any(self.anchor.is_in(partition) for partition in ongoing.partitions)
        if not is_in_it or starts - {self.anchor.offset} or _differ(self.started_ms, ongoing.started_ms):
            return Match.OTHER
        is_dated = UNKNOWN_START not in (self.started_ms, ongoing.started_ms)
        return Match.SAME if starts or is_dated else Match.UNKNOWN

    def is_same_as(self, other: "PreparedTxnState") -> bool:
        """True if both name one transaction: they are equal, and not known to have begun at different times."""
        return self == other and not _differ(self.started_ms, other.started_ms)

    def __str__(self) -> str:
        if not self:
            return ""
        return str(self.producer) if self.anchor is None else f"{self.producer}:{self.anchor}"

    @classmethod
    def parse(cls, text: str) -> "PreparedTxnState":
        """The state that ``str()`` wrote: as the constructor, of text alone.

        :raises ConfigurationError: if ``text`` is no such string.
        :raises TypeError: if it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"a prepared transaction state of type {type(text).__name__}: give the text that str() wrote"
            )
        return cls(text)


def _differ(one: int, other: int) -> bool:
    """True if both start times are known, and are not the same."""
    return one != other and UNKNOWN_START not in (one, other)


def _parsed(text: str) -> tuple[ProducerIdentity, Anchor | None]:
    if not text:
        return NO_PRODUCER, None
    match = _STATE.fullmatch(text)
    if match is not None:
        producer = ProducerIdentity(int(match[1]), int(match[2]))
        anchor = Anchor(match[3], int(match[4]), int(match[5])) if match[3] else None
        if _is_in_range(producer, anchor):
            return producer, anchor
    raise ConfigurationError(f"prepared transaction state {text!r}: expected producerId:epoch[:topic:partition:offset]")


def _is_in_range(producer: ProducerIdentity, anchor: Anchor | None) -> bool:
    """True if Kafka's types can hold every number."""
    if producer.producer_id > _MAX_LONG or producer.epoch > MAX_PRODUCER_EPOCH:
        return False
    return anchor is None or (anchor.partition <= _MAX_INT and anchor.offset <= _MAX_LONG)


def require_prepared_state(state: object) -> PreparedTxnState:
    """``state``, if complete_transaction() can take it: anything else would be no transaction's name, and so an abort.

    :raises TypeError: if it is no PreparedTxnState.
    """
    if not isinstance(state, PreparedTxnState):
        raise TypeError(
            f"complete_transaction(): state of type {type(state).__name__}: give a PreparedTxnState,"
            " as PreparedTxnState(text) makes one"
        )
    return state
