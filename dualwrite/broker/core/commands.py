"""The commands of the transaction coordinator, its replies, and the effects that follow once its facts are on disk."""

from typing import NamedTuple

from dualwrite.broker.facts.transactions import TransactionFact, TransactionRecorded, TransactionVersion
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode


class InitProducerId(NamedTuple):
    """A transactional client begins a session (KIP-98; ``expected`` by KIP-360; the two flags by KIP-939).

    :param timeout_ms: transaction.timeout.ms; 2147483647 and 2147483547 ask for two-phase commit, as ``enable_2pc``
        does, because librdkafka has no other way to say it. With 2147483547 an open transaction is not aborted: the
        command is refused. Ignored with ``enable_2pc``.
    :param keep_prepared: keep an ongoing transaction instead of aborting it.
    :param expected: the identity that the client believes to have, or none on its first request.
    """

    transactional_id: str
    timeout_ms: int
    enable_2pc: bool = False
    keep_prepared: bool = False
    expected: ProducerIdentity = NO_PRODUCER


class AddPartitions(NamedTuple):
    """Add partitions to the transaction; begin one if none is ongoing (AddPartitionsToTxn; Produce from TV2 on).

    :param version: TV2 if the partitions join by being written to.
    """

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition]
    version: TransactionVersion = TransactionVersion.TV1


class VerifyPartitions(NamedTuple):
    """Ask whether ``producer`` may write to ``partitions`` in its ongoing transaction (KIP-890 part 1)."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """The client commits or aborts (EndTxn). Under TV2 the answer has the identity for the next transaction."""

    transactional_id: str
    producer: ProducerIdentity
    result: Marker
    version: TransactionVersion


class MarkersWritten(NamedTuple):
    """Every marker of an ended transaction is on disk."""

    transactional_id: str


class TimeOut(NamedTuple):
    """Abort the transaction if it is past its timeout. A transaction of two-phase commit has none."""

    transactional_id: str


class Expire(NamedTuple):
    """Forget the transactional id if it has no transaction and was idle for transactional.id.expiration.ms."""

    transactional_id: str


Command = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | MarkersWritten | TimeOut | Expire


class Reply(NamedTuple):
    """An answer: an error, or the client's identity and (KIP-939) that of the kept transaction."""

    error: ErrorCode = ErrorCode.NONE
    producer: ProducerIdentity = NO_PRODUCER
    ongoing: ProducerIdentity = NO_PRODUCER


class WriteMarkers(NamedTuple):
    """An effect: write ``marker`` for ``producer`` to every partition, then tell the coordinator ``MarkersWritten``."""

    transactional_id: str
    producer: ProducerIdentity
    marker: Marker
    partitions: frozenset[TopicPartition]


class Decision(NamedTuple):
    """The consequences of a command.

    :param reply: the answer; None means that the caller decides the same command again after the effects.
    :param facts: the caller appends and applies them first, in this order.
    :param effects: the caller runs them once the facts are on disk, before it sends the reply.
    """

    reply: Reply | None
    facts: tuple[TransactionFact, ...] = ()
    effects: tuple[WriteMarkers, ...] = ()

    def takes(self, producer_id: int) -> bool:
        """True if a fact uses ``producer_id``, the unused id that the caller offered."""
        for fact in self.facts:
            if isinstance(fact, TransactionRecorded) and (
                fact.producer.producer_id == producer_id or fact.next_producer.producer_id == producer_id
            ):
                return True
        return False
