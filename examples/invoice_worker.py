"""A worker that reads orders from a topic and writes an invoice for each: a row in a table and a record in a topic.

    dualwrite db upgrade --db sqlite:///invoices.db
    DATABASE_URL=sqlite:///invoices.db KAFKA=127.0.0.1:9092 python invoice_worker.py worker-1

Each order is invoiced once, through any crash and any rebalance: how far the input has been read is a row of the same
unit of work, so it moves on together with the invoices or not at all. The consumer group is there to share partitions.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from dualwrite import DualWrite, DualWriteError

INPUT, OUTPUT = "orders", "invoices"

metadata = MetaData()
invoices = Table(
    "invoices",
    metadata,
    Column("order_number", String(40), primary_key=True),
    Column("cents", Integer, nullable=False),
)
positions = Table(
    "invoice_worker_positions",
    metadata,
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
)


class Worker:
    """Reads, and writes both sides, until :meth:`stop`.

    :param name: one for each worker; the same after a restart, which then gets its partitions back at once.
    """

    def __init__(self, engine: Engine, kafka: dict[str, str], name: str) -> None:
        self._engine = engine
        self._dual_write = DualWrite(engine, kafka, application="invoices")
        group = {"group.id": "invoices", "group.instance.id": name, "enable.auto.commit": "false"}
        reading = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**kafka, **group, **reading})
        self._stopping = threading.Event()

    def run(self) -> None:
        """Work until :meth:`stop`; a batch that failed and left nothing is tried again."""
        self._dual_write.recover()
        self._consumer.subscribe([INPUT], on_assign=self._go_on)
        while not self._stopping.is_set():
            batch = [message for message in self._consumer.consume(num_messages=100, timeout=0.5) if _is_sound(message)]
            while batch and not self._stopping.is_set():
                try:
                    self.invoice(batch)
                    break
                except DualWriteError as error:
                    if not error.retriable:
                        raise
                    logging.warning("nothing was written, once more: %s", error)
        self._consumer.close()
        self._dual_write.close()

    def stop(self) -> None:
        """Let :meth:`run` return after the batch in hand; may be called by a signal handler or another thread."""
        self._stopping.set()

    def invoice(self, batch: Sequence[Message]) -> None:
        """One unit of work: the invoices of ``batch``, and how far the input has been read."""
        with self._dual_write.transaction() as tx:
            for message in batch:
                # A partition may come here, or go away, while another worker has some of its records in hand: the
                # row's lock makes the two take turns, and the second finds nothing to do.
                here = (positions.c.topic == message.topic(), positions.c.partition == message.partition())
                unread = update(positions).where(*here, positions.c.next_offset <= message.offset())
                if tx.execute(unread.values(next_offset=message.offset() + 1)).rowcount:
                    order = json.loads(message.value())
                    invoice = {"order_number": order["number"], "cents": order["quantity"] * order["unit_cents"]}
                    tx.execute(insert(invoices).values(invoice))
                    tx.produce(OUTPUT, key=order["number"], value=json.dumps(invoice))

    def _go_on(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start each partition that was assigned where its last unit of work ended."""
        for partition in partitions:
            row = {"topic": partition.topic, "partition": partition.partition}
            with suppress(IntegrityError), self._engine.begin() as connection:  # it is there, but for the first time
                connection.execute(insert(positions).values(**row, next_offset=0))
            with self._engine.connect() as connection:
                partition.offset = connection.scalar(select(positions.c.next_offset).filter_by(**row))
        consumer.assign(partitions)


def _is_sound(message: Message) -> bool:
    """True if it is a record; False for an error that librdkafka gets over by itself."""
    error = message.error()
    if error is not None:
        if error.fatal():
            raise KafkaException(error)
        logging.warning("%s", error)
    return error is None


def main() -> None:
    """Work until SIGTERM."""
    engine = create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)
    worker = Worker(engine, {"bootstrap.servers": os.environ["KAFKA"]}, sys.argv[1])
    signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
