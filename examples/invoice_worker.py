"""A worker that reads orders from a topic and writes an invoice for each: a row in a table and a record in a topic.

    dualwrite db upgrade --db sqlite:///invoices.db
    DATABASE_URL=sqlite:///invoices.db KAFKA=127.0.0.1:9092 python examples/invoice_worker.py

An order in the topic ``orders-to-invoice`` is JSON with ``number``, ``quantity`` and ``unit_cents``. Each is
invoiced once, through any crash and any rebalance: how far the input has been read is in the database, in the unit of
work of the invoices, so it moves on together with them or not at all. The consumer group is there to share partitions.
payment_worker.py keeps its offsets in Kafka instead.
"""

import json
import logging
import os
import signal
import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Message
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert

from dualwrite import DualWrite, DualWriteError, RebalancedError

INPUT, OUTPUT = "orders-to-invoice", "invoices"

metadata = MetaData()
invoices = Table(
    "invoices",
    metadata,
    Column("order_number", String(40), primary_key=True),
    Column("cents", Integer, nullable=False),
)


class InvoiceWorker:
    """Reads, and writes both sides, until :meth:`stop`."""

    def __init__(self, engine: Engine, kafka: dict[str, str]) -> None:
        self._dual_write = DualWrite(engine, kafka, application="invoices")
        reading = {"isolation.level": "read_committed", "enable.auto.commit": "false", "session.timeout.ms": "6000"}
        self._consumer = Consumer({**kafka, "group.id": "invoices", **reading})
        self._stopping = threading.Event()
        self._has_failed = False

    def run(self) -> None:
        """Work until :meth:`stop`; the records of a batch that failed are read again."""
        self._dual_write.recover()
        self._consumer.subscribe([INPUT], on_assign=self._dual_write.seek_to_stored)
        while not self._stopping.is_set():
            try:
                self._use_next_batch()
            except DualWriteError as error:
                if not error.retriable and not isinstance(error, RebalancedError):
                    raise
                logging.warning("nothing was written, once more: %s", error)
                self._has_failed = True
                self._stopping.wait(1)  # a server that is down refuses at once
        self._consumer.close()
        self._dual_write.close()

    def _use_next_batch(self) -> None:
        if self._has_failed:
            self._dual_write.seek_to_stored(self._consumer)  # this may fail, too
            self._has_failed = False
        batch = [message for message in self._consumer.consume(num_messages=100, timeout=0.5) if _is_sound(message)]
        if batch:
            self.invoice(batch)

    def stop(self) -> None:
        """Let :meth:`run` return after the batch in hand; may be called by a signal handler or another thread."""
        self._stopping.set()

    def invoice(self, batch: Sequence[Message]) -> None:
        """One unit of work: the invoices of ``batch``, and how far the input has been read."""
        with self._dual_write.transaction() as tx:
            tx.store_offsets(self._consumer)
            for message in batch:
                order = json.loads(message.value())
                invoice = {"order_number": order["number"], "cents": order["quantity"] * order["unit_cents"]}
                tx.execute(insert(invoices).values(invoice))
                tx.produce(OUTPUT, key=order["number"], value=json.dumps(invoice))


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
    if not {"DATABASE_URL", "KAFKA"} <= os.environ.keys():
        raise SystemExit("set DATABASE_URL and KAFKA: the first lines of this file show how")
    engine = create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)
    worker = InvoiceWorker(engine, {"bootstrap.servers": os.environ["KAFKA"]})
    signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
