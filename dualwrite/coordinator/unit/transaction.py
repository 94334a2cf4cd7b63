"""``tx``: a unit of work inside its block, with the database connection and the Kafka transaction."""

import asyncio
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable, ScalarResult
from sqlalchemy.orm import Session

from dualwrite.client.producer.arguments import one_callback
from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.unit.offsets import UnitOffsets
from dualwrite.coordinator.unit.serializers import RecordGiven
from dualwrite.coordinator.unit.unit_of_work import Unit
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.records.outgoing import HeadersGiven, OnDelivery, OutgoingRecord

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


def require_no_loop() -> None:
    """Refuse a thread that runs an event loop: every task of the loop would wait for the database and for Kafka.

    A notebook's cells run inside the kernel's own loop, which has nothing else to do meanwhile.

    :raises InvalidTransactionStateError: naming what to use instead.
    """
    if asyncio._get_running_loop() is not None and "ipykernel" not in sys.modules:
        raise InvalidTransactionStateError(
            "a DualWrite's unit of work blocks this thread, which runs an event loop: use AsyncDualWrite there, or run "
            "the unit in another thread (asyncio.to_thread)"
        )


class BaseTransaction:
    """The common part of Transaction and AsyncTransaction."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    @property
    def _driver(self) -> UnitDriver:
        assert self._unit.driver is not None
        return self._unit.driver

    def _offsets(self) -> UnitOffsets:
        assert self._unit.offsets is not None
        return self._unit.offsets


class Transaction(BaseTransaction):
    """The unit of work inside its block: database connection and Kafka transaction.

    Only the thread that began the unit may use it. The block's end commits or rolls back: a ``commit()`` on the
    connection raises, as do COMMIT and ROLLBACK as SQL text, and a ``rollback()`` makes the whole unit of work fail.
    Savepoints (``begin_nested()``) are allowed; rolling one back does not remove records.
    """

    @property
    def _driver(self) -> UnitDriver:
        owner = self._unit.owner
        if type(owner) is not int:  # a request's unit, which moves from thread to thread
            require_no_loop()
        elif owner != threading.get_ident():
            raise InvalidTransactionStateError(
                "tx belongs to the thread that began its unit of work, and another thread uses it: begin a unit in "
                "each thread"
            )
        return super()._driver

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy Connection of this unit's database transaction."""
        return self._driver.connection

    @property
    def session(self) -> Session:
        """An ORM Session on the same connection and transaction, made at first use; flushed at the block's end.

        Its ``commit()`` raises; its ``rollback()`` makes the whole unit of work fail.
        """
        return self._driver.session

    def execute(self, statement: Executable, parameters: Parameters = None) -> CursorResult[Any]:
        """``Connection.execute`` in this unit's database transaction."""
        return self.connection.execute(statement, parameters)

    def scalars(self, statement: Executable, parameters: Parameters = None) -> ScalarResult[Any]:
        """``Connection.scalars`` in this unit's database transaction."""
        return self.connection.scalars(statement, parameters)

    def scalar(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """``Connection.scalar`` in this unit's database transaction."""
        return self.connection.scalar(statement, parameters)

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersGiven | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Add a record to this unit's Kafka transaction, like confluent-kafka's ``Producer.produce``.

        :param value: bytes, text, or None for none, and so is the key. If the DualWrite's configuration has
            ``value.serializer`` or ``key.serializer``: the content that this serializer takes.
        :param partition: -1 lets the partitioner choose by key.
        :param timestamp: milliseconds since the epoch; 0 is now.
        :param on_delivery: called as ``on_delivery(error, message)`` when the record is acknowledged, which is before
            the unit of work is committed.
        :param callback: another name of ``on_delivery``, as in confluent-kafka.
        :raises TypeError: if an argument has a wrong type; ValueError, if no record can have a value that is given.
        :raises KafkaUnavailableError: and every other error of the participant. A record that raised is not part of the
            unit of work; if you catch the error, the rest may still be committed.
        """
        try:
            if callback is not None:
                on_delivery = one_callback(on_delivery, callback)
            if (serializers := self._unit.serializers) is None:
                record = OutgoingRecord(topic, value, key, partition, timestamp, headers, on_delivery)
            else:
                given = RecordGiven(topic, value, key, partition, timestamp, headers, on_delivery)
                record = serializers.record(given)
        except BaseException:  # the headers may be the user's iterator, which may raise anything
            self._driver.refuse_record()
            raise
        self._driver.produce(record)

    def send_offsets(self, consumer: KafkaConsumer, offsets: Iterable[Any] | None = None) -> None:
        """Commit the offsets of ``consumer`` in this unit's Kafka transaction (KIP-447): its group continues there if
        the unit is committed, and not otherwise.

        :param consumer: confluent_kafka.Consumer, a member of its group by
            ``subscribe(topics, on_assign=dw.seek_to_committed)``, with ``enable.auto.commit=false``, and with
            ``isolation.level=read_committed``: only then does the next owner of the partitions wait for a unit that is
            decided but not yet complete in Kafka.
        :param offsets: confluent_kafka.TopicPartition with the next offset to read of each; by default the consumer's
            positions in all assigned partitions that it has read from.
        :raises RebalancedError: if the group has given the partitions to another member. The unit is rolled back, even
            if the error is caught.
        :raises InvalidTransactionStateError: if a unit of work has failed, and the consumer's offsets go on without
            ``seek_to_committed(consumer)``: the records in between would be lost.
        :raises KafkaUnavailableError: and other errors of the participant; the unit is rolled back then, too.
        """
        self._offsets().send(self._driver, consumer, offsets)

    def store_offsets(self, consumer: KafkaConsumer, offsets: Iterable[Any] | None = None) -> None:
        """Write the offsets of ``consumer`` into the database, in this unit's transaction: its group continues there if
        the unit is committed. The consumer must have been positioned by ``seek_to_stored``. One UPDATE.

        Best called first in the block: it waits for another member's unit that uses the same records, and a unit that
        ``retries`` runs again is then recognized as the same unit. Not in a callback of the consumer (``on_revoke``):
        the call may ask the consumer for its cluster, and confluent-kafka then ends the process.

        :param consumer: confluent_kafka.Consumer, with ``enable.auto.commit=false``; a member of its group, or with
            partitions that were assigned by hand.
        :param offsets: as for :meth:`send_offsets`.
        :raises RebalancedError: if another member has advanced one of the partitions since this consumer's
            ``seek_to_stored``. The unit is rolled back, even if the error is caught.
        :raises InvalidTransactionStateError: inside a savepoint; if the consumer was not positioned by
            ``seek_to_stored``; or if a unit of work has failed, and the consumer's offsets go on without
            ``seek_to_stored(consumer)``.
        :raises ForeignClusterError: if an offset that ``on_assign=dw.seek_to_stored`` has set was stored by a consumer
            of another Kafka cluster; its message says what to do.
        :raises KafkaUnavailableError: if the consumer's cluster does not answer the first call after an assignment.
        :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
        """
        self._offsets().store(self._driver, consumer, offsets)


def unit_of(transaction: BaseTransaction) -> Unit:
    """The unit of work of ``transaction``: for this library's own rooms and its tests."""
    return transaction._unit


def driver_of(transaction: BaseTransaction) -> UnitDriver:
    """The driver of the unit of work of ``transaction``, which has begun: for this library's own rooms."""
    driver = transaction._unit.driver
    assert driver is not None
    return driver
