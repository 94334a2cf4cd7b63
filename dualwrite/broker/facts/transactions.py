"""Facts about transactions: each holds the state of one transactional id after a transition (TransactionMetadata).

A fact replaces the one before it, so that a journal can be compacted by key and replayed from any point.
"""

from enum import IntEnum
from typing import NamedTuple

from dualwrite.ids import NO_PRODUCER, TWO_PHASE_TIMEOUT_MS, ProducerIdentity, TopicPartition

NO_TIMEOUT = TWO_PHASE_TIMEOUT_MS
"""The timeout of a two-phase commit transaction, which never expires."""


LONGEST_TRANSACTIONAL_ID = 32767
"""The most bytes of a transactional id that the key of the transaction log can hold."""


class TransactionStatus(IntEnum):
    """Kafka's TransactionState; the numbers are those of the transaction log."""

    __hash__ = int.__hash__  # an enum's own is Python code

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def kafka_name(self) -> str:
        """The name that DescribeTransactions and ListTransactions use."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_ENDED = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_EMPTY, _ONGOING = TransactionStatus.EMPTY, TransactionStatus.ONGOING


class TransactionVersion(IntEnum):
    """The transaction.version (KIP-890) that a client uses: from TV2 on every EndTxn bumps the epoch."""

    TV1 = 1
    TV2 = 2


_TV2 = TransactionVersion.TV2


class TransactionRecorded(NamedTuple):
    """The state of one transactional id.

    :param producer: ProducerId and ProducerEpoch. While a transaction is ongoing, the identity of its records; in a
        Prepare status, the identity of its markers; otherwise, the client's.
    :param next_producer: NextProducerId and NextProducerEpoch. While a transaction is ongoing, the identity that a
        keepPrepared InitProducerId gave to the client (KIP-939); in a Prepare status, the next ``producer``.
    :param previous: the identity with which the client last requested a bump, to recognise a retry; or that of the
        client whose transaction has timed out, which may go on. The producer id is PrevProducerId; the epoch is in a
        tagged field of dualwrite's own, which Kafka's readers ignore.
    :param timeout_ms: ``NO_TIMEOUT`` for two-phase commit.
    :param started_ms: when the first partition was added; -1 if none was.
    :param next_timeout_ms: the client's timeout, for the transactions after a kept one, if the kept transaction has a
        different timeout; -1 if the two are the same. It is in a tagged field of dualwrite's own.
    :param version: ClientTransactionVersion. Of an ongoing transaction it is TV2 only if no transaction before had its
        epoch: see :attr:`owns_epoch`.
    """

    transactional_id: str
    producer: ProducerIdentity
    status: TransactionStatus
    timeout_ms: int
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    previous: ProducerIdentity = NO_PRODUCER
    next_producer: ProducerIdentity = NO_PRODUCER
    version: TransactionVersion = TransactionVersion.TV1
    next_timeout_ms: int = -1

    @property
    def client(self) -> ProducerIdentity:
        """The identity that the client must use. All others are fenced."""
        return self.next_producer if self.next_producer.producer_id >= 0 else self.producer

    @property
    def is_kept(self) -> bool:
        """True if the ongoing transaction was kept for a recovering client, which may only end it."""
        return self.status is _ONGOING and self.next_producer.producer_id >= 0

    @property
    def owns_epoch(self) -> bool:
        """True if records with the client's identity can only belong to the ongoing transaction, or else to the next
        one: a new session and the end of a transaction of TV2 give the client a new epoch."""
        return self.status is _EMPTY or self.version is _TV2

    @property
    def is_ended(self) -> bool:
        """True if commit or abort is decided and some markers are still to be written."""
        return self.status in _ENDED


class TransactionForgotten(NamedTuple):
    """The transactional id expired (transactional.id.expiration.ms): a tombstone."""

    transactional_id: str


TransactionFact = TransactionRecorded | TransactionForgotten
