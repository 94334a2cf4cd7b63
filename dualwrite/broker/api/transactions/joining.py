"""How records and offsets join a transaction, the same for Produce and TxnOffsetCommit (KIP-890).

A client of TV2 adds partitions by writing to them. A client of TV1 must have added them before, and the broker verifies
that. So no records can follow a transaction's markers, which would leave it hanging for ever, unless
transaction.partition.verification.enable is off. Even then no record joins a transaction that was prepared and kept.
"""

from dataclasses import dataclass

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.commands import AddPartitions, VerifyPartitions
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class JoiningVersions:
    """The versions of one API that introduced a feature (Kafka: TransactionSupportedOperation).

    :param abortable: the first version with TRANSACTION_ABORTABLE.
    :param implicit: the first version of TV2, in which partitions join by being written to.
    """

    abortable: int
    implicit: int

    def error(self, error: ErrorCode, version: int) -> ErrorCode:
        """The coordinator's ``error`` in the terms of ``version`` (Kafka: AddPartitionsToTxnManager)."""
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.TRANSACTION_ABORTABLE and version < self.abortable:
            return ErrorCode.INVALID_TXN_STATE
        return error


PRODUCE = JoiningVersions(abortable=11, implicit=12)
TXN_OFFSET_COMMIT = JoiningVersions(abortable=4, implicit=5)


async def join_transaction(
    broker: BrokerContext,
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    implicit: bool,
) -> ErrorCode:
    """NONE if ``producer`` may now write to all of ``partitions`` in the ongoing transaction of ``transactional_id``;
    else the coordinator's own error, for :meth:`JoiningVersions.error`.

    The caller must append without an ``await`` in between: another task may end or fence the transaction during any
    wait. For the same reason nothing is awaited between the last check here and the return. It must wait at the
    flusher's barrier before it replies.

    :param implicit: add the partitions first (TV2), all in one fact. It becomes durable with the records if possible.
    """
    if implicit:
        command = AddPartitions(transactional_id, producer, partitions, TransactionVersion.TV2)
        return await broker.coordinator.join(command)
    return broker.coordinator.check(VerifyPartitions(transactional_id, producer, partitions)).error
